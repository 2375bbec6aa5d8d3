"""Beta likelihood of proportions, with a logit or probit link of the mean."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.special import log_ndtr

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.bernoulli import Link
from gpx.likelihoods.quadrature import GaussHermite
from gpx.tensor_checks import check_one_of

NUM_COMPONENTS = 60
"""Components of the predictive mixture: enough for their densities to overlap, see ``predictive``.
"""


class Beta(Likelihood):
    """y ~ Beta(precision m, precision (1 - m)) with m = link(f), for 0 < y < 1.

    The mean is m and the variance m (1 - m) / (1 + precision). Targets must not be standardised.
    The density is not log-concave in f.

    Args:
        precision: its initial value, no unit; learned.
        link: ``logit`` (logistic sigmoid) or ``probit`` (standard normal distribution function).
        num_nodes: quadrature nodes of the expectation.

    Source: Ferrari and Cribari-Neto 2004.
    """

    log_concave = False
    task = "proportion"
    precision: Tensor

    def __init__(self, precision: float = 10.0, link: Link = "logit", num_nodes: int = 20) -> None:
        super().__init__()
        check_one_of(get_args(Link), link=link)
        positive_parameter(self, "precision", precision)
        self.link = link
        self.quadrature = GaussHermite(num_nodes)
        self.laws = GaussHermite(NUM_COMPONENTS)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Log-density of the share y under mean link(f), per unit of y; (..., n)."""
        # in float64: a difference of large lgamma; y may have been rounded to 0 or 1 in float32
        found = f.dtype
        limits = torch.finfo(found)
        y = y.double().clamp(limits.tiny, 1.0 - 0.5 * limits.eps)
        precision = self.precision.double()
        log_a, log_b = self._log_parameters(f)
        a, b = log_a.exp(), log_b.exp()
        # 1 / Gamma(a) = a / Gamma(1 + a), which is finite where the mean is 0 to rounding
        constant = precision.lgamma() + log_a - (1.0 + a).lgamma() + log_b - (1.0 + b).lgamma()
        return (constant + (a - 1.0) * y.log() + (b - 1.0) * torch.log1p(-y)).to(found)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Gauss-Hermite sum of ``log_prob``; (..., n)."""
        return self.quadrature.expectation(lambda f: self.log_prob(y, f), mean, variance)

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.MixtureSameFamily:
        """Mixture of ``NUM_COMPONENTS`` beta distributions at nodes of f, in float64.

        Its density has separate peaks if the components are narrower than their distance: if the
        precision is above about 30 over the variance of f (10 with the probit link).
        """

        def law(f: Tensor) -> torch.distributions.Beta:
            log_a, log_b = self._log_parameters(f)
            # parameters of zero are not allowed
            tiny = torch.finfo(log_a.dtype).tiny
            a, b = (part.exp().clamp_min(tiny) for part in (log_a, log_b))
            return torch.distributions.Beta(a, b, validate_args=False)

        return self.laws.mixture(law, mean, variance)

    def _log_parameters(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """log(precision m) and log(precision (1 - m)), float64, shaped as f."""
        link = logsigmoid if self.link == "logit" else log_ndtr
        scale = self.precision.double().log()
        return scale + link(f.double()), scale + link(-f.double())
