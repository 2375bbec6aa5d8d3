"""Columns of a table as given, before they are converted to numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.data.columns.column import Values
from gpx.data.columns.delimited import EmptyRows, Layout, read_cells, read_numbers
from gpx.data.columns.numbers import EXACT, would_round
from gpx.errors import DTypeError, ShapeError


@dataclass(frozen=True)
class Frame:
    """Named columns of equal length: numbers, texts or dates.

    Attributes:
        names: of the columns.
        columns: each (n,): float64, texts (dtype object) or datetime64; missing values are NaN,
            empty texts or NaT.
        where: file or argument, for error messages.
        place: maps indices of row and column to a description, for error messages.
    """

    names: tuple[str, ...]
    columns: tuple[Values, ...]
    where: str
    place: Callable[[int, int], str]

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def placed(self, column: int) -> Callable[[int], str]:
        """``place`` for one column, as a function of the row."""
        return lambda row: self.place(row, column)

    def renamed(self, names: tuple[str, ...]) -> Frame:
        """The same columns with other names."""
        return replace(self, names=names)

    def select(self, columns: Sequence[int]) -> Frame:
        """Some of the columns, in this order."""
        kept = list(columns)
        return Frame(
            tuple(self.names[i] for i in kept),
            tuple(self.columns[i] for i in kept),
            self.where,
            lambda row, column: self.place(row, kept[column]),
        )


def read_frame(
    layout: Layout,
    columns: Sequence[int],
    texts: bool = False,
    empty_rows: EmptyRows = "none",
) -> Frame:
    """Some columns of a delimited file: as numbers if all cells are numbers, otherwise as texts.

    Args:
        layout: of the file.
        columns: indices of the columns.
        texts: read them as texts in any case.
        empty_rows: which lines of delimiters alone are rows, all of whose values are missing.

    Raises:
        DataError: rows of different lengths, or a quote that is not closed, with the line.
    """
    kept = list(columns)
    names = tuple(layout.names[i] for i in kept)
    values = None if texts else read_numbers(layout, kept)
    if values is not None:
        # line numbers are only looked up for messages
        return Frame(
            names,
            tuple(values.T),
            str(layout.path),
            lambda row, i: layout.place(read_cells(layout, [kept[i]])[0][row], kept[i]),
        )
    lines, cells = read_cells(layout, kept, empty_rows)
    return Frame(
        names,
        tuple(np.array(column, dtype=object) for column in cells),
        str(layout.path),
        lambda row, column: layout.place(lines[row], kept[column]),
    )


def array_frame(array: NDArray[Any], names: Sequence[str], where: str, row: str = "row") -> Frame:
    """The columns of an array (n, d) of numbers, texts and dates as a frame.

    Args:
        array: (n, d).
        names: d of them.
        where, row: for error messages, as in ``places``.
    """
    columns = tuple(plain_values(array[:, i], names[i]) for i in range(array.shape[1]))
    return Frame(tuple(names), columns, where, places(where, names, row))


def frame_of(values: Any, names: Sequence[str], where: str) -> Frame:
    """A frame of numbers, texts or dates from a caller's values.

    Args:
        values: (n, d), or (d,) for one row, or (n,) if d = 1: a data frame with columns of these
            names, an array, or a list of rows.
        names: of the d columns.
        where: name of the values, for error messages.

    Raises:
        ShapeError: not d columns.
        DTypeError: values other than numbers, texts and dates.
    """
    columns = getattr(values, "columns", None)
    if columns is not None and not callable(columns):
        given = {str(name): name for name in columns}
        if set(names) <= set(given):
            made = tuple(plain_values(values[given[name]], name) for name in names)
            return Frame(tuple(names), made, where, places(where, names))
        values = np.asarray(values)
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    numeric = getattr(getattr(values, "dtype", None), "kind", "O") in "biufM"
    array = as_rows(np.asarray(values) if numeric else np.array(values, dtype=object), len(names))
    require_columns(array, names)
    return array_frame(array, names, where)


def as_rows(array: NDArray[Any], columns: int) -> NDArray[Any]:
    """An array as a matrix: (d,) becomes one row, or (n,) n rows if there is one column."""
    return array[:, None] if array.ndim == 1 and columns == 1 else np.atleast_2d(array)


def require_columns(array: NDArray[Any], names: Sequence[str]) -> None:
    """Raise ShapeError unless an array has rows of these columns."""
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ShapeError(
            f"expected inputs with {len(names)} columns "
            f"({', '.join(names[:6])}{'...' if len(names) > 6 else ''}), got shape {array.shape}"
        )


def places(where: str, names: Sequence[str], row: str = "row") -> Callable[[int, int], str]:
    """``Frame.place`` for rows that are not lines of a file; ``row`` is the word for a row."""
    return lambda number, i: f"{where}, {row} {number + 1}, column {i + 1} ({names[i]!r})"


def plain_values(values: Any, name: str) -> Values:
    """A column (n,) of numbers, texts or dates as one of ``Values``.

    Whole numbers that float64 would round become texts, as they may be categories; a column of
    numbers reads them as numbers.

    Args:
        values: an array, a column of a data frame, or a list; None, NaN, NaT and pandas.NA are
            missing values.
        name: of the column, for the error message.

    Raises:
        DTypeError: other values.
    """
    array: NDArray[Any] = np.asarray(values)
    if would_round(array):
        return np.array([str(value) for value in array.tolist()], dtype=object)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    if array.dtype.kind == "M":
        return array.astype("datetime64[us]")
    if array.dtype.kind in "UT":
        return np.array([str(value).strip() for value in array], dtype=object)
    if array.dtype.kind == "O":
        return _of_objects(array, name)
    raise DTypeError(
        f"the column {name!r} must hold real numbers, texts or dates (found {array.dtype})"
    )


def _of_objects(array: NDArray[Any], name: str) -> Values:
    """A column of Python objects: all numbers, all dates, or otherwise texts."""
    gaps = np.array([absent(value) for value in array], dtype=bool)
    given = array[~gaps]
    if any(isinstance(value, complex) for value in given):
        raise DTypeError(f"the column {name!r} must hold real numbers (found a complex one)")
    numeric = all(isinstance(value, (bool, int, float, np.number, np.bool_)) for value in given)
    if numeric and not any(map(rounded, given)):
        found = np.full(len(array), np.nan)
        found[~gaps] = given.astype(np.float64)
        return found
    if all(hasattr(value, "isoformat") for value in given):  # dates and times of Python and pandas
        return np.array(
            ["" if a else v.isoformat() for v, a in zip(array, gaps, strict=True)], object
        )
    odd = next((v for v in given if not isinstance(v, (str, bool, int, float, np.generic))), None)
    if odd is not None:
        raise DTypeError(
            f"the column {name!r} must hold real numbers, texts or dates "
            f"(found {type(odd).__name__})"
        )
    return np.array(["" if a else _cell(v) for v, a in zip(array, gaps, strict=True)], dtype=object)


def rounded(value: Any) -> bool:
    """Whether a value is a whole number that float64 may round."""
    return isinstance(value, (int, np.integer)) and abs(int(value)) > EXACT


def _cell(value: Any) -> str:
    """A value of a column of texts as text, numbers as ``texts_of`` writes them."""
    number = isinstance(value, (float, np.floating))
    return repr(float(value)).removesuffix(".0") if number else str(value).strip()


def absent(value: Any) -> bool:
    """Whether a value is missing: None, NaN, NaT or pandas.NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))
