"""Lengthscales of which most are long: few of many inputs matter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.priors.base import Prior
from gpx.priors.densities import require_positive

NODES = 256
"""Nodes of each of the two rules that integrate over the shrinkage."""
NEGLIGIBLE = 40.0
"""Where the logarithm of the integrand is so far below its maximum it counts as zero."""


class SparseAxes(Prior):
    """Sparse axis-aligned subspaces (SAAS): one shrinkage for all lengthscales of a kernel.

    With rho_d = 1 / lengthscale_d^2 for inputs in the unit cube, rho_d ~ HalfCauchy(tau) and tau ~
    HalfCauchy(shrinkage): most inputs have next to no effect, and those that the rows speak for
    have any lengthscale. The common scale tau is integrated out, so that chains need not sample it:
    with s = log tau every density is a hyperbolic secant,

        p(lengthscales) = int ds sech(s - log shrinkage) / pi
                          prod_d 2 sech(s + 2 log lengthscale_d) / (pi lengthscale_d)

    gpx standardises inputs to unit variance, at which a uniform input has width sqrt(12): the
    lengthscales given are longer by this factor.

    It is made for chains, which sample logarithms. The density of d > 2 lengthscales themselves has
    no maximum: it grows as (1/l)^(d - 2) where all of them go to l = 0.

    Args:
        shrinkage: median of tau; the smaller, the fewer inputs matter.

    Accuracy: the integrand is log-concave in s; the trapezoidal rule, where it is above e^-40
    of its maximum, has a relative error below 1e-10 for up to 1,000 lengthscales.
    Cost: 512 secants per lengthscale.
    Source: Eriksson and Jankowiak, "High-dimensional Bayesian optimization with sparse axis-aligned
    subspaces", UAI 2021.
    """

    def __init__(self, shrinkage: float = 0.1) -> None:
        require_positive("sparse-axes", shrinkage=shrinkage)
        self.shrinkage = shrinkage

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of all lengthscales (..., d) jointly: (...)."""
        logs = value.double().log()
        logs = logs.unsqueeze(-1) if logs.ndim == 0 else logs
        # where each secant is largest: log rho_d in the unit cube, for inputs of unit variance
        peaks = math.log(12.0) - 2.0 * logs
        own = torch.full_like(peaks[..., :1], math.log(self.shrinkage))
        peaks = torch.cat([peaks, own], -1)
        constant = math.log(2.0 / math.pi) * logs.shape[-1] - math.log(math.pi)
        return _log_integral(peaks) - logs.sum(-1) + constant


def _log_integral(peaks: Tensor) -> Tensor:
    """log int ds prod_i sech(s - peaks_i) over the last axis, of length at least 2."""
    with torch.no_grad():
        # beyond the outermost peaks the logarithm falls by at least the number of peaks, soon
        margin = 3.0 + NEGLIGIBLE / (peaks.shape[-1] - 1)
        first, last = peaks.amin(-1) - margin, peaks.amax(-1) + margin
        coarse, step = _even(first, last)
        heights = _log_secants(coarse, peaks)
        held = heights > heights.amax(-1, keepdim=True) - NEGLIGIBLE
        first = coarse.masked_fill(~held, math.inf).amin(-1) - step
        last = coarse.masked_fill(~held, -math.inf).amax(-1) + step
        nodes, step = _even(first, last)
    return _log_secants(nodes, peaks).logsumexp(-1) + step.log()


def _even(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """``NODES`` even points (..., NODES) from first to last, both (...), and their distance."""
    step = (last - first) / (NODES - 1)
    places = torch.arange(NODES, dtype=step.dtype, device=step.device)
    return first.unsqueeze(-1) + step.unsqueeze(-1) * places, step


def _log_secants(s: Tensor, peaks: Tensor) -> Tensor:
    """sum_i log sech(s - peaks_i): (..., NODES) for s (..., NODES) and peaks (..., d)."""
    apart = s.unsqueeze(-1) - peaks.unsqueeze(-2)
    return (math.log(2.0) - torch.logaddexp(apart, -apart)).sum(-1)
