"""Counts with a log-linear rate."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.likelihoods.base import Curvature, Likelihood
from gpx.likelihoods.negative_binomial import count_law
from gpx.likelihoods.quadrature import GaussHermite
from gpx.likelihoods.smooth_mixture import LatentMixture


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
        wide = f.double()
        return _log_probability(y, wide, wide).to(torch.promote_types(y.dtype, f.dtype))

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """y mean - exp(mean + variance / 2) - log y!; (n,)."""
        wide = mean.double()
        found = _log_probability(y, wide, torch.add(wide, variance.double(), alpha=0.5))
        return found.to(torch.promote_types(y.dtype, mean.dtype))

    def predictive(self, mean: Tensor, variance: Tensor) -> LatentMixture:
        """Mixture of Poisson distributions at the quadrature nodes (overdispersed), in float64.

        Where these are too few for a smooth density, of negative binomials; see ``count_law``.
        """
        none = mean.new_zeros((), dtype=torch.float64)
        return count_law(self, lambda f: _Poisson(f.exp()), self.quadrature, mean, variance, none)

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """y - exp(f) and exp(f)."""
        rate = f.exp()
        return Curvature(y - rate, rate)


class _Poisson(torch.distributions.Poisson):
    """A Poisson distribution, float64, that takes large counts of any dtype without loss."""

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``torch.distributions``."""
        found: Tensor = super().log_prob(value.double())
        return found


def _log_probability(y: Tensor, f: Tensor, log_rate: Tensor) -> Tensor:
    """y f - exp(log_rate) - log y!; (..., n), float64 as f and log_rate."""
    # of a count of a million the terms are 1e7 nats, and a few remain
    count = y.double()
    return count * f - log_rate.exp() - (count + 1.0).lgamma()
