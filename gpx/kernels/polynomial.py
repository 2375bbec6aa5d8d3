"""The polynomial kernel."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel


class Polynomial(Kernel):
    """k = outputscale * (x . x' + offset)^degree: polynomials up to ``degree``.

    Args:
        degree: of the polynomial, at least one; fixed.
        offset: initial value, in squared units of x; larger ones favour low-order terms.
        outputscale: initial factor, in squared units of y over x^(2 degree).
        active_dims: columns of x that the kernel looks at; None for all.

    Raises:
        ConfigError: the degree is not a positive whole number.
    """

    offset: Tensor
    outputscale: Tensor

    def __init__(
        self,
        degree: int = 2,
        offset: float = 1.0,
        outputscale: float = 1.0,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        if degree < 1 or degree != int(degree):
            raise ConfigError(f"degree of a polynomial kernel is {degree}; use 1, 2, 3, ...")
        self.degree = int(degree)
        positive_parameter(self, "offset", float(offset))
        positive_parameter(self, "outputscale", float(outputscale))

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Powers of shifted inner products."""
        return self.outputscale * (x1 @ x2.mT + self.offset).pow(self.degree)

    def variance(self, x: Tensor) -> Tensor:
        """Powers of shifted squared norms."""
        return self.outputscale * (x.square().sum(1) + self.offset).pow(self.degree)
