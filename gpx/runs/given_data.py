"""Conversion of a caller's arrays into the archive and options of ``data=npz``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpx.data.columns.column import texts_of
from gpx.data.columns.frame import Frame, absent, frame_of, plain_values, rounded
from gpx.data.columns.numbers import EXACT, number_of, numbered_names, would_round
from gpx.data.images.pixels import channels_first, pixel_names, pixel_rows, pixel_shape
from gpx.errors import DataError, DTypeError, ShapeError
from gpx.runs.arrays import column_names, columns_by_name, real_array

TARGETS = "targets, with classes as numbers,"
"""Name of targets in error messages."""

ROW_VALUES = {"noise": 0.0, "weights": 1.0}
"""Arrays with a number for each row, and the value that test rows get."""


@dataclass(frozen=True)
class GivenData:
    """The arrays of an archive, and names of their columns.

    Attributes:
        arrays: ``x`` (n, d), or ``x1``, ``x2``, ... (n,) if inputs are not all numbers; ``y`` (n,),
            also of texts, or (n, p); and if given ``noise`` (n,) or (n, p), ``weights`` (n,), and
            ``test`` (n,), which marks the test rows.
        input_names, target_name, target_names: of a data frame; None without names.
    """

    arrays: Mapping[str, NDArray[Any]]
    input_names: tuple[str, ...] | None
    target_name: str | None
    target_names: tuple[str, ...] | None

    @property
    def has_text_targets(self) -> bool:
        """Whether targets are texts other than numbers, that is, names of classes."""
        y = self.arrays["y"]
        return y.dtype.kind == "U" and any(number_of(text) is None for text in y.tolist())

    def options(self) -> dict[str, Any]:
        """Options of ``data=npz`` that describe the archive.

        Raises:
            DataError: a name that config.yaml would read as a reference.
        """

        def texts(names: tuple[str, ...] | None) -> list[str] | None:
            return None if names is None else [_as_text(name) for name in names]

        found: dict[str, Any] = {
            **{
                name: name if name in self.arrays else None for name in ("noise", "weights", "test")
            },
            "input_names": texts(self.input_names),
            "target_name": None if self.target_name is None else _as_text(self.target_name),
            "target_names": texts(self.target_names),
        }
        if "x" not in self.arrays:
            columns = _input_columns(self.arrays)
            found["x"] = columns
            found["input_names"] = found["input_names"] or list(numbered_names(len(columns)))
        return found

    def defaults(self) -> list[str]:
        """Options of ``data=npz`` that those of the user override.

        Values of a data frame may be missing, and columns useless; NaN in an array is more likely
        a fault.
        """
        if self.input_names is None or pixel_shape(self.input_names) is not None:
            return []
        return ["data.missing=auto", "data.unusable=leave_out"]


def given_data(
    x: ArrayLike,
    y: ArrayLike,
    *,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    noise: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> GivenData:
    """Convert the arguments of ``gpx.fit``; images become rows of named pixels.

    Raises:
        ShapeError: shapes of the arrays do not match.
        DTypeError: values that are not numbers, texts or dates.
        DataError: columns of a frame that share a name, or are missing in the test frame.
    """
    pixels = None
    if _num_axes(x, "inputs") in (3, 4):
        images = channels_first(real_array(x, "inputs"))
        x, pixels = images.reshape(len(images), -1), pixel_names(images.shape[1:])
    names = pixels or _column_names(x, "inputs")
    arrays = _arrays(x, y, names)
    shape = len(arrays["y"]), _width(arrays, "x")
    if 0 in shape:
        raise ShapeError(
            f"inputs have {shape[0]} rows and {shape[1]} columns; give one of each at least"
        )
    for name, values in (("noise", noise), ("weights", weights)):
        if values is None:
            continue
        arrays[name] = real_array(values, name)
        rows, cells = arrays["y"].shape[:1], arrays["y"].shape
        by_cell = name == "noise" and len(cells) > 1
        if arrays[name].shape != rows and not (by_cell and arrays[name].shape == cells):
            raise ShapeError(
                f"{name}= has shape {arrays[name].shape}, expected {rows}: one number for each row"
                + (f", or {cells}: one for each target of it" if by_cell else "")
            )
    several = arrays["y"].ndim == 2
    target_names = _column_names(y, "targets") if several else None
    if test is not None:
        if not isinstance(test, (tuple, list)) or len(test) != 2:
            raise ShapeError("test= takes a pair (inputs, targets) of arrays")
        more_x, more_y = test
        if pixels is not None:
            more_x = pixel_rows(real_array(more_x, "test inputs"), pixels)
        if names is not None:
            more_x = columns_by_name(more_x, names, "test inputs")
        if target_names is not None:
            more_y = columns_by_name(more_y, target_names, "test targets")
        more = _arrays(more_x, more_y, names, "test inputs", by_column="x" not in arrays)
        arrays = _with_test_rows(arrays, more)
    return GivenData(arrays, names, None if several else _series_name(y), target_names)


def _with_test_rows(
    arrays: Mapping[str, NDArray[Any]], more: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Training rows followed by test rows, and ``test``, which marks the latter."""
    for what, ours, theirs in (
        ("inputs", _width(arrays, "x"), _width(more, "x")),
        ("targets", _width(arrays, "y"), _width(more, "y")),
    ):
        if ours != theirs:
            raise ShapeError(f"test {what} have {theirs} columns, training {what} {ours}")
    for name in ROW_VALUES.keys() & arrays.keys():
        more[name] = np.full((len(more["y"]), *arrays[name].shape[1:]), ROW_VALUES[name])
    both = {name: _joined(arrays[name], more[name], name) for name in arrays}
    return {**both, "test": np.repeat([False, True], [len(arrays["y"]), len(more["y"])])}


def _joined(ours: NDArray[Any], theirs: NDArray[Any], name: str) -> NDArray[Any]:
    """One array followed by another; if only one holds texts, both become texts."""
    if ours.dtype.kind == theirs.dtype.kind:
        return np.concatenate([ours, theirs])
    texts = [text for part in (ours, theirs) for text in texts_of(plain_values(part, name))]
    return np.array(texts, dtype=str)


def _column_names(values: Any, what: str) -> tuple[str, ...] | None:
    """Names of a data frame's columns, or of a series.

    Args:
        values: inputs or targets, as given.
        what: name of the values, for the error message.

    Raises:
        DataError: two columns have the same name.
    """
    if _num_axes(values, what) == 1:
        name = _series_name(values)
        return None if name is None else (name,)
    names = column_names(values)
    twice = [name for name in names or () if (names or ()).count(name) > 1]
    if twice:
        raise DataError(f"{what} have two columns named {twice[0]!r}; rename one")
    return names


def _num_axes(values: Any, what: str) -> int:
    """Number of axes of ``values``; raises ShapeError if rows differ in length."""
    try:
        return np.ndim(values)
    except ValueError as error:
        raise ShapeError(
            f"{what} are rows or images of different sizes; bring them to one size first"
        ) from error


def _as_text(name: str) -> str:
    """``name``; raises DataError if config.yaml would read it as a reference to an option."""
    if "${" in name:
        raise DataError(
            f"the column {name!r} has ${{ in its name, which refers to options; rename it"
        )
    return name


def _series_name(values: Any) -> str | None:
    """Name of a series, or of the first column of a data frame; None if it has none."""
    columns = getattr(values, "columns", None)
    name = getattr(values, "name", None) if columns is None else next(iter(columns), None)
    return name if isinstance(name, str) else None


def _arrays(
    x: ArrayLike,
    y: ArrayLike,
    names: tuple[str, ...] | None,
    what: str = "inputs",
    by_column: bool | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays ``x`` (n, d) and ``y`` (n,), or (n, p) for p > 1 outputs, of the archive.

    If a column holds texts or dates, each column is an array, ``x1``, ``x2``, ..., instead of
    ``x``; also if the texts are numbers, which may be codes with leading zeros, and if it holds
    whole numbers that float64 would round, which may be codes, too.

    Args:
        x, y: as given.
        names: of the columns of x.
        what: name of x, for error messages.
        by_column: whether each column is an array; None: as above.

    Raises:
        DTypeError: values that are not numbers, texts or dates.
        ShapeError: inputs and targets with different numbers of rows, or of other dimensions.
    """
    made: dict[str, NDArray[Any]] = {}
    if not (_holds_texts(x) or _holds_long_numbers(x) if by_column is None else by_column):
        try:
            inputs = real_array(x, what)
            made["x"] = inputs[:, None] if inputs.ndim == 1 else inputs
        except DTypeError:
            if by_column is False:
                raise
    if not made:
        frame = _columns(x, names)
        numbered = numbered_names(len(frame.names))
        # NumPy writes texts without pickling, and other objects with it
        columns = (v.astype(str) if v.dtype.kind == "O" else v for v in frame.columns)
        made = dict(zip(numbered, columns, strict=True))
    targets = _targets(y)
    rows = {len(array) for array in (*made.values(), targets)}
    plain = made.get("x")
    if (plain is not None and plain.ndim != 2) or targets.ndim not in (1, 2) or len(rows) > 1:
        raise ShapeError(
            f"inputs of shape {np.shape(x)} and targets of shape {np.shape(y)}; expected (n, d) "
            "and (n,), or (n, p) for p targets, with the same n, or images (n, h, w)"
        )
    return {**made, "y": targets}


def _holds_texts(values: Any) -> bool:
    """Whether a value is a text."""
    if hasattr(values, "detach"):  # a tensor, which may be on another device
        return False
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return False
    return array.dtype.kind in "UT" or (
        array.dtype.kind == "O" and any(isinstance(value, str) for value in array.flat)
    )


def _holds_long_numbers(values: Any) -> bool:
    """Whether a value is a whole number that float64 would round."""
    if hasattr(values, "detach"):
        return False
    columns = getattr(values, "columns", None)
    # of a frame column by column, as an array of all may be of floating-point numbers
    whole = columns is None or callable(columns)
    parts = [values] if whole else [values[name] for name in columns]  # type: ignore[union-attr]
    try:
        arrays = list(map(np.asarray, parts))
        for i, (array, part) in enumerate(zip(arrays, parts, strict=True)):
            rounds = array.dtype.kind == "f" and bool((np.abs(array) >= EXACT).any())
            if rounds and not hasattr(part, "dtype"):  # a list with other numbers
                arrays[i] = np.array(part, dtype=object)
    except ValueError:
        return False
    return any(
        any(map(rounded, array.flat)) if array.dtype.kind == "O" else would_round(array)
        for array in arrays
    )


def _columns(x: ArrayLike, names: tuple[str, ...] | None) -> Frame:
    """Inputs of numbers, texts and dates as a frame.

    Raises:
        DTypeError: other values.
    """
    shape = np.shape(x) if isinstance(x, (list, tuple)) else tuple(getattr(x, "shape", ()))
    if len(shape) not in (1, 2):
        real_array(x, "inputs")  # raises
    values = np.array(x, dtype=object)[:, None] if len(shape) == 1 else x
    width = shape[1] if len(shape) == 2 else 1
    try:
        return frame_of(values, names or numbered_names(width), "inputs")
    except DTypeError:
        real_array(x, "inputs")  # raises with a message for arrays
        raise


def _targets(y: ArrayLike) -> NDArray[Any]:
    """Targets as float64, or names of classes, which may be numbers, (n,) as text, "" for none.

    Raises:
        DTypeError: other values.
    """
    if _holds_texts(y):
        array = np.asarray(y)
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if array.ndim == 1:
            texts = ["" if absent(value) else value for value in array]
            if all(isinstance(text, str) for text in texts):
                return np.array(texts, dtype=str)
    targets = real_array(y, TARGETS)
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _width(arrays: Mapping[str, NDArray[Any]], name: str) -> int:
    """Number of columns of the inputs or of the targets."""
    if name in arrays:
        return (*arrays[name].shape, 1)[1]
    return len(_input_columns(arrays))


def _input_columns(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Names of the arrays that hold one column of the inputs each."""
    return [name for name in arrays if name not in ("y", "test", *ROW_VALUES)]
