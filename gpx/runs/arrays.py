"""Conversion of callers' inputs and targets: NumPy arrays, tensors, lists, data frames."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpx.data.columns.coding import Coding
from gpx.data.columns.frame import Frame, absent, as_rows, frame_of, require_columns
from gpx.data.columns.numbers import numbered_names
from gpx.data.images.pixels import pixel_rows
from gpx.errors import DataError, DTypeError, GPXError


def real_array(values: ArrayLike | Tensor, name: str) -> NDArray[Any]:
    """``values`` as float64, of the same shape; a tensor may lie on any device.

    Args:
        values: anything that NumPy can convert to an array.
        name: of the values, for the error message.

    Raises:
        DTypeError: not real numbers: text, complex numbers, dates, rows of different lengths.
    """
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            if values.is_floating_point():  # NumPy has no bfloat16
                values = values.double()
        array = np.asarray(values)
        if array.dtype.kind == "O":  # NumPy cannot convert pandas.NA to a number
            cells = [np.nan if absent(cell) else cell for cell in array.flat]
            array = np.array(cells, dtype=object).reshape(array.shape)
        if array.dtype.kind not in "cmM" and values is not None:
            return array.astype(np.float64)
        problem = "found None" if values is None else f"found {array.dtype}"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise DTypeError(f"{name} must be an array of real numbers ({problem})")


def column_names(values: Any) -> tuple[str, ...] | None:
    """Names of the columns of a data frame, or of the entries of one of its rows.

    Args:
        values: a data frame (which has ``columns``), one of its rows (which has an ``index``), or
            anything else.

    Returns:
        names as text; None for arrays, lists, and frames whose columns are only numbered.
    """
    names = _labels(values)
    return tuple(map(str, names)) if any(isinstance(name, str) for name in names) else None


def _labels(values: Any) -> list[Any]:
    """Labels of columns, or of the entries of a row, of any type; none if they have none."""
    found = getattr(values, "columns", None)
    if found is None and getattr(values, "ndim", 0) == 1:
        found = getattr(values, "index", None)
    return [] if found is None or callable(found) else list(found)


def columns_by_name(values: Any, names: Sequence[str], what: str) -> Any:
    """The columns ``names`` of a data frame, in this order; values without names unchanged.

    Args:
        values: a data frame, one of its rows, or an array.
        names: of the columns to select.
        what: name of the values, for the error message.

    Raises:
        DataError: a column is missing, or two have that name.
    """
    given = column_names(values)
    if given is None:
        return values
    for name in names:
        if given.count(name) != 1:
            found = "no column" if name not in given else "more than one column"
            listed = ", ".join(given[:12]) + (", ..." if len(given) > 12 else "")
            raise DataError(
                f"{what} have {found} {name!r}, which the model was trained on; they have {listed}"
            )
    labels = {str(label): label for label in _labels(values)}
    return values[[labels[name] for name in names]]


def coded_inputs(
    inputs: ArrayLike | Frame, columns: tuple[str, ...], coding: Coding | None
) -> NDArray[np.float64]:
    """The inputs (n, d) of a model, not standardised, from the columns of a table.

    Args:
        inputs: as for ``Predictor.predict``, or a ``Frame`` of ``columns`` in their order.
        columns: names of the columns that the model was trained on.
        coding: how inputs are computed from columns; None: the columns are the inputs.

    Raises:
        ShapeError: another number of columns.
        DTypeError, DataError: not real numbers, not finite, or a column is missing.
    """
    if isinstance(inputs, Frame):
        return (coding or Coding.of_numbers(columns))(inputs)
    given = column_names(inputs)
    unnamed = columns == numbered_names(len(columns))
    if given is not None and not (unnamed and set(given).isdisjoint(columns)):
        inputs = columns_by_name(inputs, columns, "inputs")
    if coding is not None and not coding.plain:
        return coding(frame_of(inputs, columns, "inputs"))
    try:
        array = pixel_rows(real_array(inputs, "inputs"), columns)  # type: ignore[arg-type]
    except DTypeError:
        with suppress(GPXError, ValueError):  # texts that are numbers, such as true, as in training
            return Coding.of_numbers(columns)(frame_of(inputs, columns, "inputs"))
        raise
    array = as_rows(array, len(columns))
    require_columns(array, columns)
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise DataError(
            f"inputs, row {row + 1}, column {column + 1} ({columns[column]!r}): found "
            f"{array[row, column]}, expected a finite number"
        )
    return array
