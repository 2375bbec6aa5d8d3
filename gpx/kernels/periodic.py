"""The periodic kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.kernels.exponential import exponential
from gpx.kernels.parameters import dimensions, per_dimension
from gpx.kernels.rbf import RBF
from gpx.kernels.stationary import Stationary


class Periodic(Stationary):
    """k = outputscale * exp(-2 sum_d sin^2(pi (x_d - x'_d) / period_d) / lengthscale_d^2).

    It is the RBF kernel of the points (cos, sin)(2 pi x_d / period_d) on circles, because
    |difference|^2 there is 4 sin^2; RBF's profile runs on those coordinates. Its spectrum is a
    sequence of spikes, which has no density.

    Args:
        period: initial period(s), in the unit of x; one, or one per input with ``ard_num_dims``.
        ard_num_dims, lengthscale, outputscale, active_dims: as in ``Stationary``; the lengthscale
            has no unit here (GPyTorch's is the square of this one).

    Source: MacKay 1998, "Introduction to Gaussian processes", eq. 47.
    """

    lengthscale_in_unit_of_x = False
    falls = True  # with the distance of the coordinates
    radial_profile = "rbf"
    in_place: ClassVar[Any] = RBF.in_place

    period: Tensor

    def __init__(
        self,
        ard_num_dims: int | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float | None = 1.0,
        active_dims: Sequence[int] | None = None,
        *,
        period: float | Sequence[float] = 1.0,
    ) -> None:
        ard_num_dims = dimensions(ard_num_dims, lengthscale, period)
        super().__init__(ard_num_dims, lengthscale, outputscale, active_dims)
        positive_parameter(self, "period", per_dimension(period, ard_num_dims))

    def of_squared_distance(self, r2: Any) -> Any:
        """exp(-r2 / 2), as ``RBF``."""
        return exponential(r2 * -0.5)

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(-r2 / 2), minus a half of it and a quarter of it."""
        value = self.of_squared_distance(r2)
        return value, -0.5 * value, 0.25 * value

    @property
    def local(self) -> bool:
        """False: rows a period apart are fully correlated."""
        return False

    def coordinates(self, x: Tensor) -> Tensor:
        """Points on circles of radius 1 / lengthscale: (n, d) -> (n, 2 d)."""
        self._check_columns(x)
        angle = x * (2.0 * math.pi / self.period)
        return torch.cat([angle.cos() / self.lengthscale, angle.sin() / self.lengthscale], dim=1)
