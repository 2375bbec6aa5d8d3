"""Beta likelihood of proportions, with a logit or probit link of the mean."""

from __future__ import annotations

import math
from typing import get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad
from torch.special import digamma, log_ndtr, ndtri, polygamma

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.bernoulli import Link
from gpx.likelihoods.latent_integral import log_expectation
from gpx.likelihoods.quadrature import GaussHermite
from gpx.likelihoods.smooth_mixture import ExactMixture, even_grid
from gpx.likelihoods.wide_latent import expectation
from gpx.tensor_checks import check_one_of

NUM_COMPONENTS = 60
"""Components of the predictive mixture at Gauss-Hermite nodes."""

MAX_SHARE = 0.9
"""Largest 1 / (1 + precision) of components that were made wider."""
MAX_LOG_VARIANCE = 300.0
"""Largest logarithm of the variance of f that a component stands for, where links are flat."""
MAX_GAP = 2.0
"""Largest distance of components at Gauss-Hermite nodes, in standard deviations of the f that a
component stands for; further apart their density would have separate peaks."""
GRID_NODES, GRID_END, GRID_GAP = 161, 8.0, 1.5
"""Number and outermost nodes of the even grid that takes their place, in standard deviations of f,
and the largest distance of its components, as ``MAX_GAP``."""
EXPECTATION_LIMITS = {"logit": 1.0, "probit": 0.7}
"""Standard deviation of f up to which Gauss-Hermite nodes give expectations, of each link."""
EXPECTATION_WIDTHS = {"logit": 3.0, "probit": 2.0}
"""Widths of the bend of log p if its peak is at 0."""
MAX_LOGIT, BISECTIONS, NEWTON_STEPS = 750.0, 12, 5
"""Of the search for the mean under which a share is likeliest: the largest logit of a number of
float64, and steps of two kinds."""
TINY_SHARE = torch.finfo(torch.float64).tiny


class Beta(Likelihood):
    """y ~ Beta(precision m, precision (1 - m)) with m = link(f), for 0 < y < 1.

    The mean is m and the variance m (1 - m) / (1 + precision). Targets must not be standardised.
    The density is not log-concave in f.

    Args:
        precision: its initial value, no unit; learned.
        link: ``logit`` (logistic sigmoid) or ``probit`` (standard normal distribution function).
        num_nodes: quadrature nodes of the expectation for latent deviations up to one.

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
        y = _inside(y, found)
        precision = self.precision.double()
        log_a, log_b = self._log_parameters(f)
        a, b = log_a.exp(), log_b.exp()
        # 1 / Gamma(a) = a / Gamma(1 + a), which is finite where the mean is 0 to rounding
        constant = precision.lgamma() + log_a - (1.0 + a).lgamma() + log_b - (1.0 + b).lgamma()
        return (constant + (a - 1.0) * y.log() + (b - 1.0) * torch.log1p(-y)).to(found)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E ``log_prob``: a Gauss-Hermite sum, or a finer rule where f is wide; (..., n)."""
        return expectation(
            *(self.quadrature, lambda f: self.log_prob(y, f), mean, variance),
            *(EXPECTATION_LIMITS[self.link], lambda: self._place(y, mean)),
        )

    def _place(self, y: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Where log p bends: at its peak and where the link does, near 0; (n,)."""
        peak = self.likeliest(y).to(like.dtype)
        return 0.5 * peak, EXPECTATION_WIDTHS[self.link] + 0.5 * peak.abs()

    def predictive(self, mean: Tensor, variance: Tensor) -> BetaMixture:
        """Mixture of beta distributions at nodes of f, in float64, with the exact density.

        A row of them would have separate peaks if the components were narrower than their distance:
        if the precision is above about 200 over the variance of f, for means near 1/2. There f is
        split into two independent normal variables. One goes through an even grid of nodes. The
        other, as wide as the grid needs, lowers the precision of the components, so that they have
        its variance too.
        """
        mean, variance = mean.double(), variance.double()
        f, v = (part.unsqueeze(-1) for part in (mean, variance))
        v = v.clamp_min(torch.finfo(torch.float64).eps)  # keeps gradients of square roots finite
        # of the narrowest component that matters: nearest to a mean of 1/2
        reach = 2.0 * v.sqrt()
        own = self._latent_variance(torch.minimum(torch.maximum(0.0 * f, f - reach), f + reach))
        plain = self.laws.gap**2 * v <= MAX_GAP**2 * own
        nodes, shares = self.laws.nodes.to(f.device), self.laws.weights.to(f.device)
        added = torch.zeros_like(v)
        if torch.compiler.is_exporting() or not bool(plain.all()):  # a program has one branch
            grid, grid_shares, gap = even_grid(GRID_END, GRID_NODES, GRID_NODES, f)
            added = torch.where(plain, 0.0, ((gap / GRID_GAP) ** 2 * v - own).clamp_min(0.0))
            none = (0, GRID_NODES - len(nodes))
            nodes = torch.where(plain, pad(nodes, none), grid)
            shares = torch.where(plain, pad(shares, none), grid_shares)
        at = f + (v - added).sqrt() * nodes
        # the mean of m over the other variable, by MacKay's approximation for the logit
        log_a, log_b = self._log_parameters(at / (1.0 + self._shrinkage * added).sqrt())
        # 1 / (1 + precision) grows by the variance of m over m (1 - m)
        own_share = 1.0 / (1.0 + self.precision.double())
        wider = own_share * (1.0 + added / self._latent_variance(at))
        wider = torch.where(added > 0.0, wider.clamp_max(MAX_SHARE), wider)
        change = (1.0 / wider - 1.0).log() - self.precision.double().log()
        # parameters of zero are not allowed
        tiny = torch.finfo(torch.float64).tiny
        a, b = ((part + change).exp().clamp_min(tiny) for part in (log_a, log_b))
        parts = torch.distributions.Beta(a, b, validate_args=False)
        share = torch.distributions.Categorical(shares.expand(parts.batch_shape))
        mixture = torch.distributions.MixtureSameFamily(share, parts)
        return BetaMixture(mixture, self, mean, variance)

    def likeliest(self, y: Tensor) -> Tensor:
        """f (n,) under which the shares y (n,) are likeliest; without gradients, float64.

        The slope of log p in the mean m falls: it is precision (logit(y) - digamma(precision m) +
        digamma(precision (1 - m))).
        """
        y, precision = _inside(y, torch.float64), self.precision.double()
        target = y.log() - torch.log1p(-y)
        high = torch.full_like(target, MAX_LOGIT)
        low = -high
        with torch.no_grad():
            logit = torch.zeros_like(target)
            for step in range(BISECTIONS + NEWTON_STEPS):
                shares = logit.sigmoid(), (-logit).sigmoid()
                a, b = (precision * share.clamp_min(TINY_SHARE) for share in shares)
                rise = target - digamma(a) + digamma(b)
                low, high = (
                    torch.where(rise > 0.0, logit, low),
                    torch.where(rise > 0.0, high, logit),
                )
                middle = 0.5 * (low + high)
                bend = shares[0] * b * (polygamma(1, a) + polygamma(1, b))
                found = logit + rise / bend
                inside = (found >= low) & (found <= high) & (step >= BISECTIONS)
                logit = torch.where(inside, found, middle)
            if self.link == "logit":
                return logit
            # the smaller one has all digits
            size = ndtri((-logit.abs()).sigmoid().clamp_min(TINY_SHARE))
            return torch.where(logit < 0.0, size, -size)

    @property
    def _shrinkage(self) -> float:
        return 1.0 if self.link == "probit" else math.pi / 8.0

    def _latent_variance(self, f: Tensor) -> Tensor:
        """The variance of f that has the effect on y which y has given f: that of y, m (1 - m) /
        (1 + precision), over the square of the slope of the link; shaped as f."""
        scale = self.precision.double().log()
        log_mean, log_rest = (part - scale for part in self._log_parameters(f))
        slope = log_mean + log_rest
        if self.link == "probit":
            slope = -0.5 * (f.square() + math.log(2.0 * math.pi))
        logs = (log_mean + log_rest - 2.0 * slope).clamp_max(MAX_LOG_VARIANCE)
        return logs.exp() / (1.0 + self.precision.double())

    def _log_parameters(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """log(precision m) and log(precision (1 - m)), float64, shaped as f."""
        link = logsigmoid if self.link == "logit" else log_ndtr
        scale = self.precision.double().log()
        return scale + link(f.double()), scale + link(-f.double())


class BetaMixture(ExactMixture):
    """``ExactMixture`` of shares: the density is that of ``log_expectation``."""

    def log_average(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """As in ``ExactMixture``."""
        likelihood: Beta = self.likelihood
        peak = likelihood.likeliest(y)
        return log_expectation(lambda f: likelihood.log_prob(y, f), mean, variance, peak)


def _inside(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Shares in float64, within 0 and 1 by what ``dtype`` can tell from these."""
    limits = torch.finfo(dtype)
    return y.double().clamp(limits.tiny, 1.0 - 0.5 * limits.eps)
