"""Certified bounds on the posterior probability of an event, such as y above a threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.diagnostics.moment_bounds import MomentBounds
from gpx.inference.kl_bounds import ROUNDING

BISECTIONS = 60
"""Steps of bisection, enough for float64."""


def exceedance_probability(
    mean: Tensor, variance: Tensor, noise: Tensor, threshold: Tensor
) -> Tensor:
    """P(f + noise >= threshold) (t,) for normal f with this mean and variance (t,)."""
    return _normal_cdf((mean - threshold) / (variance + noise).sqrt())


def _normal_cdf(x: Tensor) -> Tensor:
    """The normal distribution function, accurate in the lower tail, unlike torch.special.ndtr."""
    return 0.5 * torch.erfc(-x * 2.0**-0.5)


def probability_interval(
    probability: Tensor, kl: Tensor, *, pinsker: bool = False
) -> tuple[Tensor, Tensor]:
    """Bounds on an event's posterior probability from that under q, if KL(q || posterior) <= kl.

    The interval of all p with q log(q / p) + (1 - q) log((1 - q) / (1 - p)) <= kl, by bisection; it
    lies inside q +- sqrt(kl / 2). Holds for any event of the process or of noisy observations.

    Args:
        probability: q, any shape, in [0, 1].
        kl (): nats.
        pinsker: use q +- sqrt(kl / 2) clamped to [0, 1] instead.

    Returns:
        lower and upper bounds.

    Source: Burt thesis, section 2.4.3; the data processing inequality gives the tighter interval.
    """
    q, kl = probability.double(), kl.double()
    half = (0.5 * kl).sqrt()
    lower, upper = (q - half).clamp(min=0.0), (q + half).clamp(max=1.0)
    if pinsker:
        return lower, upper
    limit = kl + ROUNDING  # allows for rounding of the divergences
    return _bisect_divergence(q, lower, limit), _bisect_divergence(q, upper, limit)


def _bisect_divergence(q: Tensor, end: Tensor, kl: Tensor) -> Tensor:
    """The point between q and ``end`` where the divergence from q reaches kl, rounded outwards."""
    inner, outer = q, end
    for _ in range(BISECTIONS):
        middle = 0.5 * (inner + outer)
        within = _bernoulli_divergence(q, middle) <= kl
        inner, outer = torch.where(within, middle, inner), torch.where(within, outer, middle)
    return outer  # ``end`` if the divergence stays below kl


def _bernoulli_divergence(q: Tensor, p: Tensor) -> Tensor:
    return torch.xlogy(q, q / p) + torch.xlogy(1.0 - q, (1.0 - q) / (1.0 - p))


def exceedance_interval(
    moments: MomentBounds, noise: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor]:
    """Range of P(f + noise >= threshold) over all means and variances inside ``moments``.

    Returns:
        lower and upper bounds (t,), attained at corners of the rectangle of moments.
    """
    low, up = moments.mean_lower - threshold, moments.mean_upper - threshold
    narrow = (moments.variance_lower + noise).sqrt()
    wide = (moments.variance_upper + noise).sqrt()
    lower = _normal_cdf(low / torch.where(low > 0.0, wide, narrow))
    upper = _normal_cdf(up / torch.where(up > 0.0, narrow, wide))
    return lower, upper


def decide(lower: Tensor, upper: Tensor, least: float) -> Tensor:
    """Decide whether probabilities in [lower, upper] (t,) are at least ``least``: (t,) int8.

    Returns:
        1 if certainly yes, -1 if certainly no, 0 if undecided.

    Source: Burt thesis, section 2.4.3.
    """
    yes, no = lower >= least, upper < least
    return yes.to(torch.int8) - no.to(torch.int8)
