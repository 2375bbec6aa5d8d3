"""Normal variables given their sign."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtr, ndtri

from gpx.constants import LOG_TWO_PI

FAR = -5.0
"""Mean of a positive variable below which its tail is inverted in logarithms."""

REFINEMENTS = 4
"""Newton steps there; from the start that is used the fourth moves nothing beyond rounding."""


def signed_normals(mean: Tensor, sign: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draws of N(mean, 1) given that they have the sign of ``sign``.

    By inversion, one uniform number each: with a = sign mean the draw is sign (a + t), where t
    exceeds -a and P(T > t) = v P(T > -a) for v uniform on (0, 1). Where a is far below zero the
    probabilities are logarithms, and the equation is solved by Newton's method from the tail's
    t^2 = a^2 - 2 log v.

    Args:
        mean (n,): float64.
        sign (n,): positive or negative numbers.
        generator: on the device of ``mean``.

    Returns:
        (n,): float64, of the sign asked for (zero where rounding leaves no more).

    Cost: O(n). Source: inversion; Albert and Chib 1993 for its use.
    """
    towards = torch.where(sign > 0.0, 1.0, -1.0).to(mean.dtype)
    a = towards * mean
    v = torch.rand(a.shape, generator=generator, dtype=a.dtype, device=a.device)
    v = v.clamp_min(torch.finfo(a.dtype).tiny)
    near = -ndtri(v * ndtr(a.clamp_min(FAR)))
    below = a.clamp_max(FAR)
    wanted = v.log() + log_ndtr(below)
    t = (below.square() - 2.0 * v.log()).sqrt()
    for _ in range(REFINEMENTS):
        tail = log_ndtr(-t)
        density = (-0.5 * t.square() - 0.5 * LOG_TWO_PI - tail).exp()
        t = torch.maximum(t + (tail - wanted) / density, -below)
    excess = torch.where(a < FAR, t, near)
    return towards * (a + excess).clamp_min(0.0)
