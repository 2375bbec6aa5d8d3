"""Central intervals of y that certainly hold, and are certainly held by, the exact one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.diagnostics.moment_bounds import MomentBounds
from gpx.errors import ConfigError


class CredibleIntervals(NamedTuple):
    """Certified neighbours of the exact posterior's central interval, per point.

    Attributes:
        inflated_lower, inflated_upper (t,): an interval that contains the exact one.
        deflated_lower, deflated_upper (t,): one that the exact one contains; NaN where none is
            certain (``empty``).
    """

    inflated_lower: Tensor
    inflated_upper: Tensor
    deflated_lower: Tensor
    deflated_upper: Tensor

    @property
    def empty(self) -> Tensor:
        """(t,): where nothing is certain to lie inside the exact interval."""
        return torch.isnan(self.deflated_lower)


def credible_intervals(
    moments: MomentBounds, noise: Tensor | float, *, level: float = 0.95
) -> CredibleIntervals:
    """Intervals mean +- z sqrt(variance + noise) over all moments inside ``moments``.

    Args:
        moments: of f, prior mean included.
        noise: observation noise variance; 0 for intervals of f.
        level: probability of the interval, between 0 and 1.

    Raises:
        ConfigError: a level outside (0, 1).

    Source: Burt thesis, section 2.4.3 (with the noise inside the root).
    """
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level is a probability between 0 and 1, got {level}")
    z = float(torch.special.ndtri(torch.tensor(0.5 + 0.5 * level, dtype=torch.float64)))
    wide, narrow = (
        z * (v + noise).sqrt() for v in (moments.variance_upper, moments.variance_lower)
    )
    left, right = moments.mean_upper - narrow, moments.mean_lower + narrow
    # an infinite end leaves no number: nothing is certain there
    inside = left <= right
    nothing = torch.full_like(left, torch.nan)
    return CredibleIntervals(
        moments.mean_lower - wide,
        moments.mean_upper + wide,
        torch.where(inside, left, nothing),
        torch.where(inside, right, nothing),
    )
