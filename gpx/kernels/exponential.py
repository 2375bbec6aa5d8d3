"""Exponentials that stay fast: no argument and no value in the slow range of a CPU."""

from __future__ import annotations

from typing import Any

import torch

EXPONENT_FLOOR = -80.0
"""Arguments below it are raised to it: exp(-80) = 1.8e-35 is still a normal float32, while float32
exp below about -87 and subnormal results run 7 to 14 times slower."""

SLOPE_FLOOR = -40.0
"""The same for float32 derivatives, which are multiplied by incoming gradients before they enter a
matrix product: exp(-40) = 4e-18 times a gradient above 3e-21 is still normal, and far below
rounding beside the kernel's value of one."""


def exponential(argument: Any) -> Any:
    """exp(argument) for a tensor (floored at -80) or for a KeOps lazy tensor (as it is)."""
    if isinstance(argument, torch.Tensor):
        return argument.clamp(min=EXPONENT_FLOOR).exp()
    return argument.exp()


def slope_floor(dtype: torch.dtype) -> float:
    """Floor of the exponent where a derivative is wanted; lower in double precision."""
    return EXPONENT_FLOOR if dtype == torch.float64 else SLOPE_FLOOR
