"""Matern kernels of any smoothness, by Bessel functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln, kve
from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.derivatives import no_derivatives
from gpx.kernels.exponential import EXPONENT_FLOOR
from gpx.kernels.matern import Matern, Matern12, Matern32, Matern52
from gpx.linalg.known_gradient import first_derivative_only

MAX_NU = 50.0
"""Largest smoothness; above it RBF is practically the same."""


class MaternNu(Matern):
    """k = outputscale 2^(1 - nu) / Gamma(nu) z^nu K_nu(z), z = sqrt(2 nu) r, for any nu.

    Samples are ceil(nu) - 1 times differentiable. ``Matern12``, ``Matern32`` and ``Matern52`` are
    the same kernels at 1/2, 3/2 and 5/2, and at least nine times faster.

    Args:
        ard_num_dims, lengthscale, outputscale, active_dims: as in ``Stationary``.
        nu: smoothness, above 0 and at most 50; fixed.

    Raises:
        ConfigError: nu out of range.

    Accuracy: as ``Stationary``; values in float64 by SciPy on the CPU, whatever the device. For
    nu <= 1/2 the derivative with respect to an input is taken as zero at coincident points.
    Frequencies can be drawn where 2 nu is a whole number.
    Source: Rasmussen and Williams 2006, equation 4.14.
    """

    def __init__(
        self,
        ard_num_dims: int | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float | None = 1.0,
        active_dims: Sequence[int] | None = None,
        *,
        nu: float = 1.5,
    ) -> None:
        super().__init__(ard_num_dims, lengthscale, outputscale, active_dims)
        if not 0.0 < nu <= MAX_NU:
            raise ConfigError(
                f"nu={nu}: the smoothness of a Matern kernel is above 0, and above {MAX_NU:g} RBF "
                "is as good"
            )
        self.nu = float(nu)

    @property
    def has_formula(self) -> bool:
        """False: Bessel functions are evaluated by SciPy."""
        return False

    def of_squared_distance(self, r2: Any) -> Any:
        """The profile; of tensors only."""
        return _Profile.apply(r2, self.nu)

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The profile, and multiples of those of smoothness nu - 1 and nu - 2.

        Raises:
            ConfigError: nu is 2 or less.
        """
        nu = self.nu
        if nu <= 2.0:
            raise no_derivatives(self, f"it writes them for nu above 2 only, and has nu={nu:g}")
        first: Any = _Profile.apply(r2 * (nu / (nu - 1.0)), nu - 1.0)
        second: Any = _Profile.apply(r2 * (nu / (nu - 2.0)), nu - 2.0)
        by_second = nu * nu / (4.0 * (nu - 1.0) * (nu - 2.0))
        return self.of_squared_distance(r2), -nu / (2.0 * (nu - 1.0)) * first, by_second * second

    @property
    def denominator_normals(self) -> int:
        """As in ``Matern``.

        Raises:
            ConfigError: 2 nu is no whole number.
        """
        if 2.0 * self.nu != round(2.0 * self.nu):
            raise ConfigError(
                f"frequencies of a Matern kernel are drawn where 2 nu is a whole number, got nu="
                f"{self.nu}; use the nearest, for example nu={max(1, round(2.0 * self.nu)) / 2}"
            )
        return super().denominator_normals


class _Profile(torch.autograd.Function):
    """The profile over the scaled squared distance; its slope is a Bessel function again."""

    @staticmethod
    def forward(ctx: Any, r2: Tensor, nu: float) -> Tensor:
        """2^(1 - nu) / Gamma(nu) z^nu K_nu(z), elementwise; one where z is zero."""
        ctx.save_for_backward(r2)
        ctx.nu = nu
        return _bessel(r2, nu, order=nu, factor=1.0, at_zero=1.0)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """d/dr2 = -nu 2^(1 - nu) / Gamma(nu) z^(nu - 1) K_(nu - 1)(z), zero where it has no end."""
        (r2,) = ctx.saved_tensors
        nu = ctx.nu
        at_zero = nu / (2.0 * (nu - 1.0)) if nu > 1.0 else 0.0
        return -grad * _bessel(r2, nu, order=nu - 1.0, factor=nu, at_zero=at_zero), None


def _bessel(r2: Tensor, nu: float, *, order: float, factor: float, at_zero: float) -> Tensor:
    """factor 2^(1 - nu) / Gamma(nu) z^order K_order(z) at z = sqrt(2 nu r2), in logarithms.

    At z = 0, and where K is beyond the range of numbers, ``at_zero``; NaN where r2 is.
    """
    z = np.sqrt(2.0 * nu * r2.detach().double().cpu().numpy())
    constant = math.log(factor) + (1.0 - nu) * math.log(2.0) - float(gammaln(nu))
    with np.errstate(divide="ignore", invalid="ignore"):
        log = constant + order * np.log(z) + np.log(kve(order, z)) - z
        values = np.exp(np.maximum(log, EXPONENT_FLOOR))
    values = np.where((z > 0.0) & np.isfinite(values) | np.isnan(z), values, at_zero)
    return torch.as_tensor(values).to(r2)


# the classes that a call of Matern itself instantiates
Matern.closed_forms = {kind.nu: kind for kind in (Matern12, Matern32, Matern52)}
Matern.general = MaternNu
