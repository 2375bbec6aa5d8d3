"""Arrays that callers give: NumPy arrays, tensors, data frames, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpx.errors import DTypeError


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
        if array.dtype.kind not in "cmM":
            return array.astype(np.float64)
        problem = f"found {array.dtype}"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise DTypeError(f"{name} must be an array of real numbers ({problem})")
