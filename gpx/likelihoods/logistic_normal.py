"""The logistic function averaged over a normal variable, with two derivatives, to rounding."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import ndtr

STEP_OF_LATENT = 0.25
"""Between points, in standard deviations of f: the pole of the logistic function, pi above the real
line, then costs exp(-2 pi^2 / (0.25 s)), 7e-18 at the widest s = ``WIDE``."""

STEP_OF_LOGISTIC = 0.5
"""Between points of the logistic variable: its density has the same pole, 7e-18 again."""

WIDE = 2.0
"""Standard deviation s above which the logistic variable carries the points."""


class LogisticNormal(NamedTuple):
    """Z(m) = E sigmoid(f) for f ~ N(m, v), and its first two derivatives in m, elementwise."""

    value: Tensor
    slope: Tensor
    bend: Tensor


@torch.no_grad()
def logistic_normal(mean: Tensor, variance: Tensor) -> LogisticNormal:
    """Z and its derivatives, each to a relative error of some 1e-12 for m above -60.

    Both integrals, over f and over the logistic variable e of which the function is the
    distribution, Z = E Phi((m - e) / s), are smooth, and the trapezoid rule converges
    exponentially: over f where s is small, over e where it is large.

    Args:
        mean, variance (n,): float64.

    Cost: about 390 evaluations per element.
    Source: Trefethen and Weideman 2014, section 5, on the trapezoid rule.
    """
    deviation = variance.clamp_min(0.0).sqrt()
    narrow = _over_latent(mean, deviation.clamp_max(WIDE))
    wide = _over_logistic(mean, deviation.clamp_min(WIDE))
    found = [torch.where(deviation > WIDE, w, n) for w, n in zip(wide, narrow, strict=True)]
    return LogisticNormal(*found)


@torch.no_grad()
def log_logistic_normal(mean: Tensor, variance: Tensor) -> LogisticNormal:
    """log Z and its first two derivatives in m; arguments, accuracy and cost as above.

    Where all that counts of f lies below -18, the logistic function is exp(f) to rounding, and
    log Z = m + v / 2.
    """
    z, slope, bend = logistic_normal(mean, variance)
    z = z.clamp_min(torch.finfo(z.dtype).tiny)
    ratio = slope / z
    # the law of f given the label has a variance, v + v^2 bend, above zero
    least = -(1.0 - 1e-9) / variance.clamp_min(torch.finfo(z.dtype).tiny)
    bend = torch.maximum(bend / z - ratio.square(), least).clamp_max(0.0)
    exponential = mean + 1.5 * variance < -36.0
    return LogisticNormal(
        torch.where(exponential, mean + 0.5 * variance, z.log()),
        torch.where(exponential, 1.0, ratio),
        torch.where(exponential, 0.0, bend),
    )


def _over_latent(mean: Tensor, deviation: Tensor) -> LogisticNormal:
    # the integrand may lean by s <= 2 deviations, where 11 leave nothing out
    z = torch.arange(-11.0, 11.0, STEP_OF_LATENT, dtype=mean.dtype, device=mean.device)
    weights = torch.exp(-0.5 * z.square())
    weights = weights / weights.sum()
    f = mean.unsqueeze(-1) + deviation.unsqueeze(-1) * z
    rising, falling = torch.sigmoid(f), torch.sigmoid(-f)
    slope = rising * falling
    return LogisticNormal(rising @ weights, slope @ weights, (slope * (falling - rising)) @ weights)


def _over_logistic(mean: Tensor, deviation: Tensor) -> LogisticNormal:
    # to the left as far as a very negative mean needs, to the right until the density is 1e-16
    e = torch.arange(-110.0, 38.0, STEP_OF_LOGISTIC, dtype=mean.dtype, device=mean.device)
    weights = STEP_OF_LOGISTIC * torch.sigmoid(e) * torch.sigmoid(-e)
    s = deviation.unsqueeze(-1)
    u = (mean.unsqueeze(-1) - e) / s
    density = torch.exp(-0.5 * u.square()) / (math.sqrt(2.0 * math.pi) * s)
    return LogisticNormal(ndtr(u) @ weights, density @ weights, (-u * density / s) @ weights)
