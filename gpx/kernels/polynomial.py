"""The polynomial kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, OfInnerProduct
from gpx.kernels.parameters import dimensions, per_dimension


class Polynomial(Kernel):
    """k = outputscale * (u . u' + offset)^degree, u = x / lengthscale.

    Functions drawn from it are polynomials up to ``degree``.

    Args:
        degree: of the polynomial, at least one; fixed.
        offset: initial value, in squared units of u; larger ones favour low-order terms.
        outputscale: initial factor, in squared units of y over u^(2 degree).
        active_dims: columns of x that the kernel uses; None for all.
        ard_num_dims: number of lengthscales, one per (active) input; None for a single one.
        lengthscale: initial value(s), in the unit of x; None fixes them to one.

    Raises:
        ConfigError: the degree is not a positive whole number; lengthscales and ``ard_num_dims``
            disagree in number, or the latter stands alone.
        ShapeError: when evaluated at inputs with another number of columns.
    """

    offset: Tensor
    outputscale: Tensor
    lengthscale: Tensor | None

    def __init__(
        self,
        degree: int = 2,
        offset: float = 1.0,
        outputscale: float = 1.0,
        active_dims: Sequence[int] | None = None,
        *,
        ard_num_dims: int | None = None,
        lengthscale: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(active_dims)
        if degree < 1 or degree != int(degree):
            raise ConfigError(f"degree of a polynomial kernel is {degree}; use 1, 2, 3, ...")
        self.degree = int(degree)
        positive_parameter(self, "offset", float(offset))
        positive_parameter(self, "outputscale", float(outputscale))
        self.ard_num_dims = ard_num_dims = dimensions(ard_num_dims, lengthscale)
        if lengthscale is None:
            if ard_num_dims is not None:
                raise ConfigError(
                    f"ard_num_dims={ard_num_dims} of a polynomial kernel is a number of "
                    "lengthscales: give lengthscale, for example 1.0"
                )
            self.lengthscale = None
        else:
            positive_parameter(self, "lengthscale", per_dimension(lengthscale, ard_num_dims))

    def _scaled(self, x: Tensor) -> Tensor:
        if self.lengthscale is None:
            return x
        self._check_columns(x)
        return x / self.lengthscale

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Powers of shifted inner products."""
        inner = self._scaled(x1) @ self._scaled(x2).mT
        return self.outputscale * (inner + self.offset).pow(self.degree)

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, in O(n d)."""
        left, right = self._scaled(self._select(x1)), self._scaled(self._select(x2))
        inner = torch.einsum("nd,nd->n", left, right)
        return self.outputscale * (inner + self.offset).pow(self.degree)

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``, in closed form."""

        def outer(inner: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            at, p = inner + self.offset, self.degree
            bend = p * (p - 1) * self.outputscale * at.pow(p - 2) if p > 1 else None
            return self.outputscale * at.pow(p), p * self.outputscale * at.pow(p - 1), bend

        def make(a: Tensor, b: Tensor) -> KernelDerivatives:
            if self.lengthscale is None:
                return OfInnerProduct(a, b, a.new_ones(()), outer)
            self._check_columns(a.reshape(-1, a.shape[-1]))
            return OfInnerProduct(a, b, 1.0 / self.lengthscale.square(), outer)

        return self._in_columns(a, b, make)

    def variance(self, x: Tensor) -> Tensor:
        """Powers of shifted squared norms."""
        inner = self._scaled(x).square().sum(1)
        return self.outputscale * (inner + self.offset).pow(self.degree)
