"""Counts with a log-linear rate."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.likelihoods.base import Curvature, Likelihood
from gpx.likelihoods.negative_binomial import count_law
from gpx.likelihoods.quadrature import GaussHermite


class Poisson(Likelihood):
    """y ~ Poisson(exp(f)); targets are counts and must not be standardised.

    Args:
        num_nodes: quadrature nodes of the predictive mixture, if they are dense enough.

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
        """Mixture of Poisson distributions at the quadrature nodes (overdispersed).

        Where these are too few for a smooth density, of negative binomials; see ``count_law``.
        """
        none = mean.new_zeros((), dtype=torch.float64)
        poisson = torch.distributions.Poisson
        return count_law(lambda f: poisson(f.exp()), self.quadrature, mean, variance, none)

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """y - exp(f) and exp(f)."""
        rate = f.exp()
        return Curvature(y - rate, rate)
