"""Counts with a log-linear rate."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.likelihoods.base import Curvature, Likelihood
from gpx.likelihoods.quadrature import GaussHermite


class Poisson(Likelihood):
    """y ~ Poisson(exp(f)); targets are counts and must not be standardised.

    Args:
        num_nodes: quadrature nodes of the predictive mixture.

    ``expected_log_prob`` is a closed form.
    """

    log_concave = True
    task = "count"

    def __init__(self, num_nodes: int = 20) -> None:
        super().__init__()
        self.quadrature = GaussHermite(num_nodes)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """y f - exp(f) - log y!; (..., n)."""
        return y * f - f.exp() - (y + 1.0).lgamma()

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """y mean - exp(mean + variance / 2) - log y!; (n,)."""
        return y * mean - (mean + 0.5 * variance).exp() - (y + 1.0).lgamma()

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.MixtureSameFamily:
        """Mixture of Poisson distributions at the quadrature nodes (overdispersed)."""
        law = torch.distributions.Poisson
        return self.quadrature.mixture(lambda f: law(f.exp()), mean, variance)

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """y - exp(f) and exp(f)."""
        rate = f.exp()
        return Curvature(y - rate, rate)
