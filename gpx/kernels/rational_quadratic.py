"""The rational quadratic kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.kernels.exponential import exponential
from gpx.kernels.stationary import Stationary


class RationalQuadratic(Stationary):
    """k = outputscale * (1 + r2 / (2 alpha))^(-alpha): a mixture of RBF kernels over lengthscales.

    Args:
        alpha: initial shape, without unit; small values mix many lengthscales, large ones give RBF.
        ard_num_dims, lengthscale, outputscale, active_dims: as in ``Stationary``.

    It has no frequency sampler: its spectrum is not a function of finitely many normals.

    Accuracy: as ``Stationary`` for any alpha, except in products with backend=keops, which have an
    error of about alpha machine epsilons (1e-7 alpha in float32).
    """

    falls = True

    alpha: Tensor
    radial_profile = "rational_quadratic"

    def __init__(
        self,
        ard_num_dims: int | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float | None = 1.0,
        active_dims: Sequence[int] | None = None,
        *,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(ard_num_dims, lengthscale, outputscale, active_dims)
        positive_parameter(self, "alpha", float(alpha))

    @property
    def radial_shape(self) -> Tensor:  # type: ignore[override]
        """alpha."""
        return self.alpha

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The profile times 1, -1/(2 t) and (alpha + 1) / (4 alpha t^2), t = 1 + r2 / (2 alpha)."""
        value, inverse = self.of_squared_distance(r2), 1.0 / (1.0 + r2 / (2.0 * self.alpha))
        first = -0.5 * value * inverse
        return value, first, -0.5 * (1.0 + 1.0 / self.alpha) * first * inverse

    def of_squared_distance(self, r2: Any) -> Any:
        """(1 + r2 / (2 alpha))^(-alpha)."""
        ratio = r2 / (2.0 * self.alpha)
        # log1p is accurate where alpha is large; KeOps does not have it
        log = ratio.log1p() if isinstance(ratio, Tensor) else (ratio + 1.0).log()
        return exponential(log * -self.alpha)
