"""Bounds on the exact posterior moments of f, also from KL(q || posterior), and on intervals."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.tensor_checks import check_share

NEWTON_STEPS = 60
"""Steps of Newton's method, enough for machine precision for divergences from 1e-16 to 1e6."""


class MomentBounds(NamedTuple):
    """Bounds on the exact posterior moments of f at each point.

    Attributes:
        mean_lower, mean_upper (t,): bounds on the mean.
        variance_lower, variance_upper (t,): bounds on the variance of f, never negative.
    """

    mean_lower: Tensor
    mean_upper: Tensor
    variance_lower: Tensor
    variance_upper: Tensor

    def intersect(self, other: MomentBounds) -> MomentBounds:
        """The intersection with other bounds; bounds crossed by rounding are swapped back."""
        mean = _intersect(self.mean_lower, self.mean_upper, other.mean_lower, other.mean_upper)
        variance = _intersect(
            self.variance_lower, self.variance_upper, other.variance_lower, other.variance_upper
        )
        return MomentBounds(*mean, *variance)

    def widen(self, mean: Tensor, variance: Tensor) -> MomentBounds:
        """Move both bounds outwards by these amounts (t,)."""
        return MomentBounds(
            self.mean_lower - mean,
            self.mean_upper + mean,
            (self.variance_lower - variance).clamp(min=0.0),
            self.variance_upper + variance,
        )


def _intersect(a_low: Tensor, a_up: Tensor, b_low: Tensor, b_up: Tensor) -> tuple[Tensor, Tensor]:
    low, up = torch.maximum(a_low, b_low), torch.minimum(a_up, b_up)
    return torch.minimum(low, up), torch.maximum(low, up)


def variance_ratio_interval(kl: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on var_q / var_posterior at every point, given KL(q || posterior) <= kl.

    They are the two roots of a - log a = 1 + 2 kl, -W_0 and -W_{-1} of -exp(-1 - 2 kl). Newton's
    method solves expm1(b) - b = 2 kl for b = log a, which neither under- nor overflows.

    Args:
        kl: divergences in nats, any shape.

    Returns:
        lower in (0, 1] and upper in [1, inf); both are one at kl = 0.

    Source: Burt thesis, section 2.4.1, with the sign of the Lambert function's argument corrected.
    """
    kl = kl.double()
    step = 2.0 * kl.sqrt()
    up = (step + step.square() / 3.0).log1p()
    low = torch.where(step < 1.0, -step, -1.0 - 2.0 * kl)
    for _ in range(NEWTON_STEPS):
        up, low = _newton(up, kl), _newton(low, kl)
    return low.exp(), up.exp()


def _newton(b: Tensor, kl: Tensor) -> Tensor:
    slope = torch.expm1(b)
    updated = b - (slope - b - 2.0 * kl) / slope
    return torch.where(slope == 0.0, b, updated)


def moment_bounds_from_kl(
    kl: Tensor, mean: Tensor, variance: Tensor, variance_upper: Tensor | None = None
) -> MomentBounds:
    """Bounds on the exact moments from those of q, given KL(q || posterior) <= kl.

    |mean_q - mean| <= sigma sqrt(2 kl), and <= sigma_q sqrt(exp(2 kl) - 1), which is sharp for
    every kl. Variances are bounded by ``variance_ratio_interval``.

    Args:
        kl (): nats; the bounds are useful well below one.
        mean, variance (t,): of f under q.
        variance_upper (t,): any upper bound on the exact variance.

    Source: Burt thesis, section 2.4.1; the constant of the mean is corrected.
    """
    low, up = variance_ratio_interval(kl)
    # a ratio that underflows to zero gives no upper bound, even for a variance of zero
    highest = torch.where(low > 0.0, variance / low, torch.inf)
    if variance_upper is not None:
        highest = torch.minimum(highest, variance_upper)
    reach = torch.minimum(2.0 * kl * highest, variance * torch.expm1(2.0 * kl)).sqrt()
    # avoids zero times infinity: if the variance under q is zero, the mean is exact
    reach = torch.where(variance > 0.0, reach, torch.zeros_like(reach))
    return MomentBounds(mean - reach, mean + reach, variance / up, highest)


class CredibleIntervals(NamedTuple):
    """Certified outer and inner intervals of the exact central credible interval, per point.

    Attributes:
        inflated_lower, inflated_upper (t,): an interval that contains the exact one.
        deflated_lower, deflated_upper (t,): an interval inside the exact one; NaN if there is none
            (``empty``).
    """

    inflated_lower: Tensor
    inflated_upper: Tensor
    deflated_lower: Tensor
    deflated_upper: Tensor

    @property
    def empty(self) -> Tensor:
        """Points (t,) without a certified inner interval."""
        return torch.isnan(self.deflated_lower)


def credible_intervals(
    moments: MomentBounds, noise: Tensor | float, *, level: float = 0.95
) -> CredibleIntervals:
    """Intervals mean +- z sqrt(variance + noise) over all moments inside ``moments``.

    Args:
        moments: bounds on the moments of f, including the prior mean.
        noise: observation noise variance; 0 for intervals of f.
        level: probability of the interval, between 0 and 1.

    Raises:
        ConfigError: a level outside (0, 1).

    Source: Burt thesis, section 2.4.3, with the noise inside the root.
    """
    check_share(level=level)
    z = float(torch.special.ndtri(torch.tensor(0.5 + 0.5 * level, dtype=torch.float64)))
    wide, narrow = (
        z * (v + noise).sqrt() for v in (moments.variance_upper, moments.variance_lower)
    )
    left, right = moments.mean_upper - narrow, moments.mean_lower + narrow
    exists = left <= right
    nan = torch.full_like(left, torch.nan)
    return CredibleIntervals(
        moments.mean_lower - wide,
        moments.mean_upper + wide,
        torch.where(exists, left, nan),
        torch.where(exists, right, nan),
    )
