"""Negative binomial likelihood: over-dispersed counts with a log-linear mean."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Curvature, Likelihood
from gpx.likelihoods.quadrature import GaussHermite, GaussLogistic
from gpx.likelihoods.smooth_mixture import LatentMixture, mixture_of_means
from gpx.likelihoods.tilted import LogConcave

MIN_DISPERSION = 1e-12
"""Stands for zero: of counts below a million the law is then that of Poisson to 1e-6."""


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
        num_nodes: quadrature nodes of the expectation, and of the predictive mixture if they are
            dense enough.

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
        # near Poisson's law the terms are far larger than their sum
        count, r = y.double(), self._shape.double()
        logit = f.double() - r.log()
        found = _log_coefficient(count, r) - count * softplus(-logit) - r * softplus(logit)
        return found.to(torch.promote_types(y.dtype, f.dtype))

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """``log_prob`` with both softplus of f averaged; (..., n)."""
        # in float64, as log_prob
        count, r, wide = y.double(), self._shape.double(), variance.double()
        logit = mean.double() - r.log()
        # not softplus(l) - l for softplus(-l): the difference is inexact for large counts
        below = self.quadrature.softplus(-logit, wide)
        above = self.quadrature.softplus(logit, wide)
        found = _log_coefficient(count, r) - count * below - r * above
        return found.to(torch.promote_types(y.dtype, mean.dtype))

    def predictive(self, mean: Tensor, variance: Tensor) -> LatentMixture:
        """Mixture of negative binomials, in float64; see ``count_law``."""
        # float64, since the density is a difference of large lgamma
        r = self._shape.double()

        def law(f: Tensor) -> GammaPoisson:
            logits = f.double() - r.log()
            return GammaPoisson(r.expand_as(logits), logits=logits)

        return count_law(self, law, self.quadrature.narrow, mean, variance, 1.0 / r)

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


class GammaPoisson(torch.distributions.NegativeBinomial):
    """A negative binomial distribution, float64, whose log-probability keeps its digits for any
    ``total_count``."""

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``torch.distributions``."""
        y, r = value.double(), self.total_count
        # Stirling's series of lgamma, without the terms that cancel
        more = [(1.0 / 12.0 - 1.0 / (360.0 * each.square())) / each for each in (y + r, r)]
        large = y * r.log() + (y + r - 0.5) * torch.log1p(y / r) - y + more[0] - more[1]
        ratio = torch.where(r > 1e3, large, (y + r).lgamma() - r.lgamma())
        odds = r * logsigmoid(-self.logits) + y * logsigmoid(self.logits)
        return ratio - (y + 1.0).lgamma() + odds


def count_law(
    likelihood: LogConcave,
    law: Callable[[Tensor], torch.distributions.Distribution],
    rule: GaussHermite,
    mean: Tensor,
    variance: Tensor,
    dispersion: Tensor,
) -> LatentMixture:
    """The law of counts of mean exp(f), f ~ N(mean, variance), as a mixture of smooth density.

    In float64, whatever the dtype of mean and variance.

    A ``mixture_of_means``. Where components must be wider, the gamma variable of the same first two
    moments takes the place of an exponential of a normal one: they are negative binomials with that
    much more dispersion, and mean and variance of the mixture stay as they are. ``log_prob`` and
    moments are exact.

    Args:
        likelihood: p(y | f).
        law: of counts given f, with squared coefficient of variation exp(-f) + ``dispersion``.
        rule: nodes of the plain mixture.
        mean, variance (..., n): of f.
        dispersion (): not negative, float64.

    Cost: of ``mixture_of_means``.
    """

    def widened(f: Tensor, added: Tensor) -> GammaPoisson:
        total = (dispersion + (1.0 + dispersion) * added.expm1()).clamp_min(MIN_DISPERSION)
        logits = f + total.log()
        return GammaPoisson((1.0 / total).expand_as(logits), logits=logits)

    def log_variance(f: Tensor) -> Tensor:
        return dispersion + (-f).exp()

    spread = 1.0, dispersion
    return mixture_of_means(likelihood, law, widened, log_variance, rule, mean, variance, spread)


def _log_coefficient(y: Tensor, r: Tensor) -> Tensor:
    """log Gamma(y + r) - log Gamma(r) - log y!, float64: for large r the first two cancel."""
    return (y + r).lgamma() - r.lgamma() - (y + 1.0).lgamma()
