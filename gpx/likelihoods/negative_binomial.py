"""Negative binomial likelihood: over-dispersed counts with a log-linear mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Curvature, Likelihood
from gpx.likelihoods.quadrature import GaussLogistic


class NegativeBinomial(Likelihood):
    """Counts y of mean exp(f) and variance exp(f) + dispersion exp(2 f).

    A Poisson distribution whose rate is gamma-distributed with mean exp(f) and squared coefficient
    of variation ``dispersion``; it tends to the ``Poisson`` likelihood as this goes to zero.
    Targets must not be standardised.

    With r = 1 / dispersion and l = f - log r, log p = c(y, r) - y softplus(-l) - r softplus(l), so
    that ``expected_log_prob`` only needs the quadrature of ``GaussLogistic``: with 20 nodes within
    1.2e-5 (y + r) for any latent mean and variance, and 1e-10 (y + r) for variances up to one.

    Args:
        dispersion: its initial value, no unit; learned.
        num_nodes: quadrature nodes of the expectation and of the predictive mixture.

    Source: Hilbe 2011, section 8.2 (NB2).
    """

    log_concave = True
    task = "count"
    dispersion: Tensor

    def __init__(self, dispersion: float = 0.5, num_nodes: int = 20) -> None:
        super().__init__()
        positive_parameter(self, "dispersion", dispersion)
        self.quadrature = GaussLogistic(num_nodes)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Log-probability of the count y under mean exp(f); (..., n)."""
        r = self._shape
        logit = f - r.log()
        return _log_coefficient(y, r) - y * softplus(-logit) - r * softplus(logit)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """``log_prob`` with both softplus of f averaged; (..., n)."""
        r = self._shape
        logit = mean - r.log()
        # not softplus(l) - l for softplus(-l): the difference is inexact for large counts
        below = self.quadrature.softplus(-logit, variance)
        above = self.quadrature.softplus(logit, variance)
        return _log_coefficient(y, r) - y * below - r * above

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.MixtureSameFamily:
        """Mixture of negative binomials at the quadrature nodes, in float64."""
        # float64, since the density is a difference of large lgamma
        r = self._shape.double()

        def law(f: Tensor) -> torch.distributions.NegativeBinomial:
            logits = f.double() - r.log()
            return torch.distributions.NegativeBinomial(r.expand_as(logits), logits=logits)

        return self.quadrature.narrow.mixture(law, mean, variance)

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """y - (y + r) s and (y + r) s (1 - s), s the logistic function of f - log r."""
        r = self._shape
        logit = f - r.log()
        share = torch.sigmoid(logit)
        return Curvature(y - (y + r) * share, (y + r) * share * torch.sigmoid(-logit))

    @property
    def _shape(self) -> Tensor:
        """r (), the shape of the rate's gamma distribution."""
        return 1.0 / self.dispersion


def _log_coefficient(y: Tensor, r: Tensor) -> Tensor:
    """log Gamma(y + r) - log Gamma(r) - log y!, in float64: for large r the first two cancel."""
    whole, shape = y.double(), r.double()
    return ((whole + shape).lgamma() - shape.lgamma() - (whole + 1.0).lgamma()).to(r.dtype)
