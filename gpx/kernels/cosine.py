"""The cosine kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.parameters import dimensions, per_dimension


class Cosine(Kernel):
    """k = outputscale * cos(2 pi sum_d (x_d - x'_d) / period_d): one plane wave of unknown phase.

    Defined through the sum, not through the norm of the difference, so that it is positive
    semi-definite in every dimension (rank two). In one dimension GPyTorch's ``period_length`` is
    half of this period.

    Args:
        ard_num_dims: number of periods, one per (active) input; None for a single one.
        period: initial period(s), in the unit of x.
        outputscale: initial signal variance, in squared units of y.
        active_dims: columns of x that the kernel uses; None for all.
    """

    period: Tensor
    outputscale: Tensor

    def __init__(
        self,
        ard_num_dims: int | None = None,
        period: float | Sequence[float] = 1.0,
        outputscale: float = 1.0,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.ard_num_dims = ard_num_dims = dimensions(ard_num_dims, period)
        positive_parameter(self, "period", per_dimension(period, ard_num_dims))
        positive_parameter(self, "outputscale", float(outputscale))

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Cosines of phase differences, as a product of rank two (no n1 x n2 trigonometry)."""
        waves1 = self._waves(x1)
        waves2 = waves1 if x1 is x2 else self._waves(x2)
        return (self.outputscale * waves1) @ waves2.mT

    def variance(self, x: Tensor) -> Tensor:
        """The outputscale at every row."""
        return self.outputscale.expand(x.shape[0])

    def _waves(self, x: Tensor) -> Tensor:
        self._check_columns(x, "periods")
        phase = x @ (2.0 * math.pi / self.period).expand(x.shape[1]).to(x.dtype)
        return torch.stack([phase.cos(), phase.sin()], dim=1)

    def num_spectral_normals(self, num_inputs: int) -> int:
        """0: there is one frequency and nothing random."""
        return 0

    def spectral_frequencies(self, normals: Tensor) -> Tensor:
        """w = 2 pi / period for every row of the (empty) normals; needs ``ard_num_dims``."""
        if self.active_dims is not None or self.ard_num_dims is None:
            raise ConfigError(
                "spectral frequencies of Cosine need ard_num_dims set and active_dims=None"
            )
        return (2.0 * math.pi / self.period).expand(normals.shape[0], self.ard_num_dims)
