"""Exponentials clamped away from the arguments and values for which CPUs are slow."""

from __future__ import annotations

from typing import Any

import torch

EXPONENT_FLOOR = -70.0
"""Arguments of exp below this are raised to it. float32 exp below about -87 and subnormal numbers
run 7 to 14 times slower on CPUs; exp(-70) = 4e-31 stays a normal float32 even when it is multiplied
by the smallest outputscale (1e-6)."""

NEGLIGIBLE_SLOPE = 1e-18
"""float32 derivatives below this are set to zero. Beside a kernel value of one they are far below
rounding, and times an incoming gradient they would be subnormal."""


def exponential(argument: Any) -> Any:
    """exp(argument), of a tensor not below exp(-70); of a KeOps lazy tensor unclamped."""
    if isinstance(argument, torch.Tensor):
        return argument.clamp(min=EXPONENT_FLOOR).exp()
    return argument.exp()
