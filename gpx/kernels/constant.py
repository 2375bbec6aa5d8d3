"""The constant kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, Unchanging


class Constant(Kernel):
    """k = variance: a function that is the same unknown number everywhere.

    Args:
        variance: initial prior variance of that number, in squared units of y.
    """

    constant: Tensor

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        positive_parameter(self, "constant", float(variance))

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The variance at every pair."""
        return self.constant.to(x1).expand(x1.shape[0], x2.shape[0])

    def variance(self, x: Tensor) -> Tensor:
        """The variance at every row."""
        return self.constant.to(x).expand(x.shape[0])

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``: zero."""
        return Unchanging(a, b, self.constant.to(a))

    def draw_frequencies(
        self, count: int, num_inputs: int, *, generator: torch.Generator
    ) -> Tensor:
        """One frequency, zero: a single wave is the constant function already."""
        return torch.zeros(1, num_inputs, dtype=self.constant.dtype, device=self.constant.device)

    @property
    def has_formula(self) -> bool:
        """True."""
        return True

    def formula(
        self, squared_distance: Callable[[Tensor, Tensor], Any], x1: Tensor, x2: Tensor
    ) -> Any:
        """The variance, whatever the distance; see ``Kernel.formula``."""
        return squared_distance(x1[:, :1], x2[:, :1]) * 0.0 + self.constant
