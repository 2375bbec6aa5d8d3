"""Certified intervals that contain, or are contained in, the exact credible interval of y."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.diagnostics.moment_bounds import MomentBounds
from gpx.errors import ConfigError


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
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level is a probability between 0 and 1, got {level}")
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
