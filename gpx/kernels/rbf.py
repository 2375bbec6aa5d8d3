"""The squared exponential kernel."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.kernels.exponential import EXPONENT_FLOOR, exponential
from gpx.kernels.stationary import Stationary


class RBF(Stationary):
    """Squared exponential: k = outputscale * exp(-r2 / 2); analytic samples.

    Options and costs as in ``Stationary``. Source: Burt thesis, sections 1.2.1 and 1.2.2.
    """

    falls = True
    radial_profile = "rbf"

    class in_place:
        """The profile, in place."""

        factor = -0.5
        bounds = (EXPONENT_FLOOR, 0.0)
        slope_per_value = -0.5

        @staticmethod
        def evaluate_(scaled: Tensor, work: Tensor, with_slope: bool) -> None:
            """exp(-r2 / 2)."""
            scaled.exp_()

    def of_squared_distance(self, r2: Any) -> Any:
        """exp(-r2 / 2)."""
        return exponential(r2 * -0.5)

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(-r2 / 2), minus a half of it and a quarter of it."""
        value = self.of_squared_distance(r2)
        return value, -0.5 * value, 0.25 * value

    denominator_normals = 0

    def active_frequencies(self, normals: Tensor) -> Tensor:
        """w ~ N(0, diag(1 / lengthscale^2)); as in ``Stationary``."""
        return normals / self.lengthscale

    def log_active_density(self, omega: Tensor) -> Tensor:
        """log of (2 pi)^(d/2) prod(lengthscale) exp(-2 pi^2 |lengthscale omega|^2) outputscale."""
        d = omega.shape[-1]
        square = (omega * self.lengthscale).square().sum(-1)
        log_volume = self.lengthscale.expand(d).log().sum()
        constant = 0.5 * d * LOG_TWO_PI
        return self.outputscale.log() + log_volume + constant - 2.0 * math.pi**2 * square
