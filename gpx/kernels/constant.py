"""The constant kernel."""

from __future__ import annotations

from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.kernels.base import Kernel


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
        return self.constant.expand(x1.shape[0], x2.shape[0])

    def variance(self, x: Tensor) -> Tensor:
        """The variance at every row."""
        return self.constant.expand(x.shape[0])
