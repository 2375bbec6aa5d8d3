"""Certified intervals for the posterior probability of an event: is y at x above a threshold?"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.diagnostics.moment_bounds import MomentBounds
from gpx.inference.kl_bounds import ROUNDING

BISECTIONS = 60


def exceedance_probability(
    mean: Tensor, variance: Tensor, noise: Tensor, threshold: Tensor
) -> Tensor:
    """P(f + noise >= threshold) (t,) for f of this mean and variance (t,)."""
    return _normal_cdf((mean - threshold) / (variance + noise).sqrt())


def _normal_cdf(x: Tensor) -> Tensor:
    """With all digits in the lower tail, where torch.special.ndtr has none."""
    return 0.5 * torch.erfc(-x * 2.0**-0.5)


def probability_interval(
    probability: Tensor, kl: Tensor, *, pinsker: bool = False
) -> tuple[Tensor, Tensor]:
    """Where an event's posterior probability lies, given that under q and KL(q || posterior) <= kl.

    All p with q log(q / p) + (1 - q) log((1 - q) / (1 - p)) <= kl, found by bisection; it lies
    inside q +- sqrt(kl / 2). Holds for any event about the process or noisy observations of it.

    Args:
        probability: q, any shape, in [0, 1].
        kl (): nats.
        pinsker: q +- sqrt(kl / 2) cut to [0, 1] instead, non-vacuous below two nats.

    Returns:
        Lower and upper ends.

    Source: Burt thesis, section 2.4.3; data processing inequality for the tighter one.
    """
    q, kl = probability.double(), kl.double()
    half = (0.5 * kl).sqrt()
    lower, upper = (q - half).clamp(min=0.0), (q + half).clamp(max=1.0)
    if pinsker:
        return lower, upper
    room = kl + ROUNDING  # of the divergences that kl is compared with
    return _furthest(q, lower, room), _furthest(q, upper, room)


def _furthest(q: Tensor, end: Tensor, kl: Tensor) -> Tensor:
    """The point between q and ``end`` at which the divergence reaches kl, from outside."""
    inner, outer = q, end
    for _ in range(BISECTIONS):
        middle = 0.5 * (inner + outer)
        within = _bernoulli_divergence(q, middle) <= kl
        inner, outer = torch.where(within, middle, inner), torch.where(within, outer, middle)
    # within up to the end: the end itself, which Pinsker's inequality allows
    return outer


def _bernoulli_divergence(q: Tensor, p: Tensor) -> Tensor:
    return torch.xlogy(q, q / p) + torch.xlogy(1.0 - q, (1.0 - q) / (1.0 - p))


def exceedance_interval(
    moments: MomentBounds, noise: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor]:
    """P(f + noise >= threshold) (t,) over all means and variances inside ``moments``.

    Returns:
        Lower and upper ends, attained at corners of the rectangle of moments.
    """
    low, up = moments.mean_lower - threshold, moments.mean_upper - threshold
    least = (moments.variance_lower + noise).sqrt()
    most = (moments.variance_upper + noise).sqrt()
    lower = _normal_cdf(low / torch.where(low > 0.0, most, least))
    upper = _normal_cdf(up / torch.where(up > 0.0, least, most))
    return lower, upper


def decide(lower: Tensor, upper: Tensor, least: float) -> Tensor:
    """Is the probability, known to lie in [lower, upper] (t,), at least this? (t,) int8.

    Returns:
        1 where it certainly is, -1 where it certainly is not, 0 where that stays open.

    Source: Burt thesis, section 2.4.3.
    """
    yes, no = lower >= least, upper < least
    return yes.to(torch.int8) - no.to(torch.int8)
