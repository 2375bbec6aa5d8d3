"""Parameters in kernels' constructors: one value or one per input, and signal variances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError
from gpx.tensor_checks import check_at_least


def per_dimension(
    value: float | Sequence[float], num_dims: int | None, option: str = "ard_num_dims"
) -> Tensor:
    """Initial value, float64, of a parameter: shape () when ``num_dims`` is None, else (num_dims,).

    Args:
        value: one number, or one for each dimension.
        num_dims: number of dimensions; None: one value for all inputs.
        option: name of the argument that gives ``num_dims``, for the messages.

    Raises:
        ConfigError: a list has another length, or there are no dimensions.
    """
    check_at_least(1, **{option: num_dims})
    given: Any = value
    if isinstance(given, (int, float)) or getattr(given, "ndim", 1) == 0:  # NumPy's and torch's too
        tensor = torch.tensor(float(given), dtype=torch.float64)
        return tensor if num_dims is None else tensor.expand(num_dims).clone()
    tensor = torch.tensor([float(v) for v in given], dtype=torch.float64)
    if num_dims is None or tensor.numel() != num_dims:
        raise ConfigError(
            f"{tensor.numel()} values were given for {option}={num_dims}; "
            "give a single number, or one value for each"
        )
    return tensor


def dimensions(num_dims: int | None, *values: Any) -> int | None:
    """``num_dims`` or, if that is None, the number of entries of the first list among ``values``.

    Args:
        num_dims: what ``ard_num_dims`` was set to.
        values: of parameters, as in ``per_dimension``.
    """
    if num_dims is not None:
        return num_dims
    for value in values:
        single = value is None or isinstance(value, (int, float))
        if not single and getattr(value, "ndim", 1) > 0:
            return len(value)
    return None


def add_outputscale(kernel: nn.Module, outputscale: float | None) -> None:
    """Give a kernel its ``outputscale``, learned from this value; None fixes it to one."""
    if outputscale is None:
        kernel.register_buffer("outputscale", torch.ones(()), persistent=False)
    else:
        positive_parameter(kernel, "outputscale", float(outputscale))
