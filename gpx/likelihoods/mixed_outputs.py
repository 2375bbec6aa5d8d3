"""Outputs that share latent functions: the linear model of coregionalisation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import LowRankMultivariateNormal

from gpx.constraints import FLOOR, is_trained
from gpx.errors import ConfigError
from gpx.likelihoods.gaussian import NoisyOutputs, observed
from gpx.likelihoods.row_noise import RowNoise


class MixedOutputs(NoisyOutputs):
    """y_j = sum_l W_jl f_l + e_j, e_j ~ N(0, noise_variance_j), for p outputs and q latents.

    The latent functions share a kernel k and are independent a priori, so that the outputs have the
    covariance (W W^T)_ij k(x, x'): a coregionalisation matrix of rank q, learned through W. With
    fewer latents than outputs, noisy outputs borrow strength from the others.

    Args:
        num_outputs: p, at least two.
        num_latents: q, from two to p; None: p.
        noise_variance, noise_floor: of ``NoisyOutputs``.

    Attributes:
        mixing (p, q): W. Initially orthogonal columns such that outputs have k's variance on
            average; with fewer latents than outputs the principal axes of the targets (``start``).

    Raises:
        ConfigError: fewer than two outputs, or latents below two or above p.

    All expectations are closed forms. Cost: O(n p q).
    Source: Alvarez, Rosasco and Lawrence 2012, section 4.2.
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int | None = None,
        noise_variance: float = 0.1,
        noise_floor: float = FLOOR,
    ) -> None:
        count = num_outputs if num_latents is None else num_latents
        super().__init__(num_outputs, count, noise_variance, noise_floor)
        if not 2 <= count <= num_outputs:
            allowed = "2" if num_outputs == 2 else f"2 to {num_outputs}"
            raise ConfigError(
                f"num_latents={count} of {num_outputs} mixed outputs: expected {allowed}"
            )
        places = torch.arange(num_outputs, dtype=torch.float64)[:, None] + 0.5
        waves = (math.pi / num_outputs * places * torch.arange(count)).cos()
        columns = waves / torch.linalg.vector_norm(waves, dim=0)
        start = columns * math.sqrt(num_outputs / count)
        self.mixing = nn.Parameter(start.to(torch.get_default_dtype()))

    @torch.no_grad()
    def start(self, residual: Tensor) -> None:
        """If q < p, set W to the q leading principal axes and raise the noise to their residuals.

        A W that is not trained stays as it is.

        The part of the targets outside the span of W is noise; noise variances fitted to each
        output separately do not include it, so each is raised at least to its variance.

        Cost: O(n p^2 + p^3).
        """
        size, count = self.mixing.shape
        if count == size:
            return
        known, y = observed(residual.double())
        pairs = (known.mT.double() @ known.double()).clamp_min(1.0)
        covariance = y.mT @ y / pairs
        if self.mixing.requires_grad:
            values, vectors = torch.linalg.eigh(covariance)
            values, axes = values[-count:].clamp_min(0.0), vectors[:, -count:]
            # as in the constructor, outputs have k's variance on average
            scale = size / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
            self.mixing.copy_(axes * (values * scale).sqrt())
        else:
            axes = torch.linalg.qr(self.mixing.double()).Q
        rest = torch.eye(size).to(axes) - axes @ axes.mT
        outside = (rest @ covariance @ rest).diagonal().clamp_min(0.0)
        if is_trained(self, "noise_variance"):
            noise = self.noise_variance
            self.noise_variance = torch.maximum(noise, outside.to(noise))

    def outputs(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """W m, and W^2 v with the squares of entries, (..., n, p)."""
        return mean @ self.mixing.mT, variance @ self.mixing.square().mT

    def predictive_of_rows(
        self, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> LowRankMultivariateNormal:
        """N(W m, W diag(v) W^T + noise), correlated over the outputs."""
        factor = self.mixing * variance.clamp_min(0).sqrt().unsqueeze(-2)
        centre = mean @ self.mixing.mT
        own = self.noise_of_rows(noise).expand_as(centre)
        return LowRankMultivariateNormal(centre, factor, own, validate_args=False)
