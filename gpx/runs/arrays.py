"""Arrays that callers give: NumPy arrays, tensors, lists, data frames with names of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpx.errors import DataError, DTypeError


def real_array(values: ArrayLike | Tensor, name: str) -> NDArray[Any]:
    """``values`` as float64, of the same shape; a tensor may lie on any device.

    Args:
        values: anything that NumPy makes an array of.
        name: what they are, for the error message.

    Raises:
        DTypeError: not real numbers: text, complex numbers, dates, rows of different lengths.
    """
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            if values.is_floating_point():  # NumPy has no bfloat16
                values = values.double()
        array = np.asarray(values)
        if array.dtype.kind not in "cmM" and values is not None:
            return array.astype(np.float64)
        problem = "found None" if values is None else f"found {array.dtype}"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise DTypeError(f"{name} must be an array of real numbers ({problem})")


def column_names(values: Any) -> tuple[str, ...] | None:
    """Names of the columns of a data frame, or of the entries of one of its rows.

    Args:
        values: anything; a frame has ``columns``, one of its rows one axis and an ``index``.

    Returns:
        names, numbers among them as text; None where there are no names: arrays, lists, and frames
        whose columns are merely numbered.
    """
    found = getattr(values, "columns", None)
    if found is None and getattr(values, "ndim", 0) == 1:
        found = getattr(values, "index", None)
    if found is None or callable(found):
        return None
    names = list(found)
    return tuple(map(str, names)) if any(isinstance(name, str) for name in names) else None


def columns_by_name(values: Any, names: Sequence[str], what: str) -> Any:
    """``values`` with its columns in the order of ``names`` and no others; as it is without names.

    Args:
        values: a data frame, one of its rows, or an array.
        names: columns wanted, in this order.
        what: the values are, for the error message.

    Raises:
        DataError: a column is missing, or there are two of one name.
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
    return values[list(names)]
