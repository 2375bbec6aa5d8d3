"""Normal variables conditioned on their sign."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtr, ndtri

from gpx.constants import LOG_TWO_PI

MIN_DIRECT_MEAN = -5.0
"""Mean of a positive variable below which its tail is inverted in logarithms."""

NEWTON_STEPS = 4
"""Newton steps of that inversion, after which it has converged to rounding."""


def signed_normals(mean: Tensor, sign: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draws of N(mean, 1) conditioned on having the sign of ``sign``.

    By inversion, with one uniform number each: for a = sign mean the draw is sign (a + t), where
    t > -a and P(T > t) = v P(T > -a) for v uniform on (0, 1). If a is far below zero, the equation
    is solved in log probabilities by Newton's method from the tail approximation
    t^2 = a^2 - 2 log v.

    Args:
        mean (n,): float64.
        sign (n,): positive or negative numbers.
        generator: on the device of ``mean``.

    Returns:
        (n,): float64, with the given sign (zero if rounding leaves nothing).

    Cost: O(n). Source: inversion; Albert and Chib 1993 for its use.
    """
    unit_sign = torch.where(sign > 0.0, 1.0, -1.0).to(mean.dtype)
    a = unit_sign * mean
    v = torch.rand(a.shape, generator=generator, dtype=a.dtype, device=a.device)
    v = v.clamp_min(torch.finfo(a.dtype).tiny)
    direct = -ndtri(v * ndtr(a.clamp_min(MIN_DIRECT_MEAN)))
    below = a.clamp_max(MIN_DIRECT_MEAN)
    target = v.log() + log_ndtr(below)
    t = (below.square() - 2.0 * v.log()).sqrt()
    for _ in range(NEWTON_STEPS):
        tail = log_ndtr(-t)
        density = (-0.5 * t.square() - 0.5 * LOG_TWO_PI - tail).exp()
        t = torch.maximum(t + (tail - target) / density, -below)
    excess = torch.where(a < MIN_DIRECT_MEAN, t, direct)
    return unit_sign * (a + excess).clamp_min(0.0)
