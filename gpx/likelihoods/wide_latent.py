"""Expectations of log p(y | f) under a normal f that is wider than the bends of this function."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpx.likelihoods.quadrature import FixedRule, GaussHermite

NUM_POINTS, REACH = 96, 8.5
"""Points of the trapezoid rule for wide f, and standard deviations of f to which they reach."""

LOG_LOWEST, LOG_HIGHEST = math.log(1e-8), 3.0
"""Range of log t in ``LogSquare``, of ``LOG_POINTS`` points: up to E z^2 of ``MAX_SQUARE`` the rest
below is a geometric series to 1e-6; exp(-exp(3)) is 2e-9."""
LOG_POINTS, MAX_SQUARE = 36, 1e5
FAR_LOG_LOWEST, FAR_LOG_POINTS, FAR_MAX_SQUARE = math.log(1e-23), 88, 1e19
"""The same for larger E z^2. Values above ``FAR_MAX_SQUARE`` are scaled down to it and the
logarithm of the scale is added, since 1 is then negligible beside z^2."""


def is_any(chosen: Tensor) -> bool:
    """Whether any entry is chosen; on a GPU always, which would wait for the answer."""
    return not chosen.is_cpu or bool(chosen.any())


def expectation(
    rule: GaussHermite,
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    variance: Tensor,
    limit: float,
    place: Callable[[], tuple[Tensor, Tensor]],
) -> Tensor:
    """E function(f) for f ~ N(mean, variance) of any width, elementwise.

    Up to a standard deviation of ``limit`` it is the sum of ``rule``; above it a trapezoid rule in
    t, f = centre + width sinh(t), whose points are dense where the function bends and, at larger
    distances, in proportion to these. The integrand is analytic, so that it converges
    exponentially.

    Args:
        rule: for narrow f.
        function: maps (Q, ..., n) to the same shape.
        mean, variance (..., n): of f.
        limit: standard deviation up to which ``rule`` is exact enough.
        place: gives the centre and the width of the bends of ``function``, broadcastable to
            (..., n), without gradients; called if any f is wide.

    Cost: the nodes of ``rule``, or ``NUM_POINTS``, or both where some entries are wide and some
    are not, and on a GPU.
    """
    wide = variance > limit**2
    if not is_any(wide):
        return rule.expectation(function, mean, variance)
    deviation = variance.clamp_min(limit**2).sqrt()
    with torch.no_grad():
        centre, width = place()
        ends = [torch.asinh((mean + side * deviation - centre) / width) for side in (-REACH, REACH)]
        share = torch.linspace(0.0, 1.0, NUM_POINTS, dtype=mean.dtype, device=mean.device)
        t = ends[0] + (ends[1] - ends[0]) * share.view(-1, *(1 for _ in mean.shape))
        steps = (centre + width * torch.sinh(t) - mean) / deviation
        weights = (torch.cosh(t).log() - 0.5 * steps.square()).softmax(0)
    # derivatives pass through the function, and keep their digits
    found = (weights * function(mean + deviation * steps)).sum(0)
    if variance.is_cpu and bool(wide.all()):
        return found
    narrow = variance.clamp_max(limit**2)
    return torch.where(wide, found, rule.expectation(function, mean, narrow))


class LogSquare(FixedRule):
    """E log(1 + z^2) of normal z that are wider than the bend at 0.

    log(1 + z^2) is the integral of exp(-t) (1 - exp(-t z^2)) / t over t > 0, and E exp(-t z^2) has
    a closed form. The trapezoid rule in log t converges exponentially, for any mean and variance.

    Args:
        far: for E z^2 up to ``FAR_MAX_SQUARE``, and beyond, in place of ``MAX_SQUARE``.
    """

    def __init__(self, far: bool = False) -> None:
        lowest, count = (FAR_LOG_LOWEST, FAR_LOG_POINTS) if far else (LOG_LOWEST, LOG_POINTS)
        log_t, step = np.linspace(lowest, LOG_HIGHEST, count, retstep=True)
        weights = step * np.exp(-np.exp(log_t))
        weights[0] *= 1.0 + 1.0 / math.expm1(step)  # the integrand is proportional to t below
        super().__init__(np.exp(log_t), weights)
        self.total = float(weights.sum())
        self.largest = FAR_MAX_SQUARE if far else MAX_SQUARE

    def of(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log(1 + z^2), elementwise, to 1e-6 up to the largest E z^2, of ``far`` to 1e-5.

        Cost: two exponentials or logarithms at every node.
        """
        square = mean.square()
        excess = ((square + variance) / self.largest).clamp_min(1.0).detach()
        t = self.beside(mean)
        twice = 2.0 * t * (variance / excess)
        exponent = -t * (square / excess) / (1.0 + twice) - 0.5 * torch.log1p(twice)
        return self.total * self.average(-torch.expm1(exponent)) + excess.log()
