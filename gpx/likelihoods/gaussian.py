"""Gaussian noise of one learned variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.constraints import FLOOR, positive_parameter
from gpx.likelihoods.base import Likelihood

LOG_TWO_PI = math.log(2.0 * math.pi)


class Gaussian(Likelihood):
    """y = f + e, e ~ N(0, noise_variance).

    Args:
        noise_variance: initial variance of the noise, in squared target units; learned.
        noise_floor: infimum of the noise variance, same unit.

    All expectations are closed forms. Cost: O(n).
    """

    log_concave = True
    task = "regression"
    noise_variance: Tensor

    def __init__(self, noise_variance: float = 0.1, noise_floor: float = FLOOR) -> None:
        super().__init__()
        positive_parameter(self, "noise_variance", noise_variance, floor=noise_floor)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Normal log-density at y with mean f; (..., n)."""
        noise = self.noise_variance
        return -0.5 * (LOG_TWO_PI + noise.log() + (y - f).square() / noise)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log_prob at the mean, minus half the variance over the noise variance; (n,)."""
        noise = self.noise_variance
        return -0.5 * (LOG_TWO_PI + noise.log() + ((y - mean).square() + variance) / noise)

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.Normal:
        """Normal with the latent variance plus the noise variance."""
        return torch.distributions.Normal(
            mean, (variance.clamp_min(0) + self.noise_variance).sqrt()
        )
