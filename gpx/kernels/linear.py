"""The linear kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, OfInnerProduct
from gpx.kernels.parameters import dimensions, per_dimension


class Linear(Kernel):
    """k = sum_d slope_variance_d x_d x'_d: Bayesian linear regression through the origin.

    Add ``Constant`` for an unknown intercept.

    Args:
        ard_num_dims: number of slope variances, one per (active) input; None for a single one.
        slope_variance: initial prior variance of the slopes, in squared units of y over x.
        active_dims: columns of x that the kernel uses; None for all.

    Raises:
        ConfigError: as many variances as ``ard_num_dims`` are needed.
        ShapeError: when evaluated at inputs with another number of columns.

    Source: Burt thesis, section 1.2.1.
    """

    slope_variance: Tensor

    def __init__(
        self,
        ard_num_dims: int | None = None,
        slope_variance: float | Sequence[float] = 1.0,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.ard_num_dims = ard_num_dims = dimensions(ard_num_dims, slope_variance)
        positive_parameter(self, "slope_variance", per_dimension(slope_variance, ard_num_dims))

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Weighted inner products."""
        return self._weighted(x1) @ x2.mT

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, in O(n d)."""
        left, right = self._weighted(self._select(x1)), self._select(x2)
        return torch.einsum("nd,nd->n", left, right)

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``, in closed form."""

        def make(a: Tensor, b: Tensor) -> KernelDerivatives:
            self._check_columns(a.reshape(-1, a.shape[-1]), "slope variances")
            return OfInnerProduct(
                a, b, self.slope_variance, lambda inner: (inner, torch.ones_like(inner), None)
            )

        return self._in_columns(a, b, make)

    def variance(self, x: Tensor) -> Tensor:
        """Weighted squared norms."""
        return (self._weighted(x) * x).sum(1)

    def _weighted(self, x: Tensor) -> Tensor:
        self._check_columns(x, "slope variances")
        return x * self.slope_variance
