"""Regression from sums over the data, with a known or a discrete noise variance."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.kept_sums import SummedModel
from gpx.methods.direct.grids import NoiseGrid, require_grid
from gpx.methods.direct.mean_field import (
    NoiseTerms,
    best_noise_logits,
    discrete_noise_terms,
    known_noise_terms,
)


class SummedRegression(SummedModel):
    """Discrete weights under Gaussian noise, from sums over the data.

    Attributes:
        noise: possible noise variances and their prior; None: the noise variance stays as
            initialised.
        noise_logits (k_s,): of q(noise variance); empty if it is known.
    """

    in_double: ClassVar[tuple[str, ...]] = (*SummedModel.in_double, "noise_logits")

    likelihood: Gaussian

    def register_sums(self, noise: NoiseGrid | None) -> None:
        """Register buffers and noise logits; ConfigError if ``noise`` is not a NoiseGrid."""
        require_grid(noise, NoiseGrid, "noise")
        self.noise = noise
        empty = torch.zeros(0, dtype=torch.float64)
        self.noise_logits = nn.Parameter(empty if noise is None else noise.log_prior.clone())
        self.register_buffer("gram", empty.new_zeros(0, 0))
        for name, size in (("projected", 0), ("totals", 2)):
            self.register_buffer(name, empty.new_zeros(size))

    def with_noise_logits(self, *parameters: nn.Parameter) -> list[nn.Parameter]:
        """``parameters``, and the logits of the noise variance unless it is known."""
        return [*parameters, *([] if self.noise is None else [self.noise_logits])]

    def noise_terms(self) -> NoiseTerms:
        """Terms of the bound that depend on the noise; differentiable by its logits."""
        count = self.totals[1]  # stays on its device, so that the host does not wait for it
        if self.noise is None:
            return known_noise_terms(self.likelihood.noise_variance.detach().double(), count)
        return discrete_noise_terms(self.noise_logits.log_softmax(0), *self.noise_grid(), count)

    def noise_grid(self) -> tuple[Tensor, Tensor]:
        """Possible noise variances (k_s,) and their log prior (k_s,)."""
        assert self.noise is not None
        device = self.gram.device
        return self.noise.values.to(device), self.noise.log_prior.to(device)

    def best_noise_logits(self, fit: Tensor) -> Tensor:
        """Logits (k_s,) of the optimal q(noise variance).

        Args:
            fit (): -E |r - Phi w|^2 E 1/s / 2 at the present logits.
        """
        error = -2.0 * fit.detach() / self.noise_terms().precision.detach()
        return best_noise_logits(error, self.totals[1], *self.noise_grid())
