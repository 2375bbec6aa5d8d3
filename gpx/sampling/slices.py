"""Slice sampling: along an ellipse for Gaussian priors, along a line for other densities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MAX_SHRINKAGES = 200
"""Largest number of times that a bracket shrinks, which ends far below rounding."""


def elliptical_slice(
    states: tuple[Tensor, ...],
    draws: tuple[Tensor, ...],
    log_likelihood: Callable[[tuple[Tensor, ...]], Tensor],
    *,
    generator: torch.Generator,
) -> tuple[tuple[Tensor, ...], Tensor, int]:
    """One update of C chains at once, each leaving N(f; 0, S) L(f) invariant.

    With a draw g of the prior, the new state is f cos t + g sin t for an angle t at which L is
    above the slice's level; the bracket of angles shrinks towards f until one is found.

    Args:
        states (C, ...): f, and any linear maps of it that are to be updated with it, C chains each.
        draws: g, and the same maps of it.
        log_likelihood: of such states, (C,).

    Returns:
        the new states, their log likelihoods (C,), and the number of evaluations.

    Cost: a handful of evaluations of L, no tuning.
    Source: Murray, Adams and MacKay 2010, figure 2.
    """
    chains = len(states[0])
    like: dict[str, Any] = {"dtype": torch.float64, "device": states[0].device}
    uniform = torch.rand(2, chains, generator=generator, **like)
    level = log_likelihood(states) + uniform[0].log()
    angle = 2.0 * math.pi * uniform[1]
    low, high = angle - 2.0 * math.pi, angle.clone()
    count = 1
    for _ in range(MAX_SHRINKAGES):
        count += 1
        found = _on_ellipse(states, draws, angle)
        value = log_likelihood(found)
        outside = ~(value > level)  # NaN is outside
        if not bool(outside.any()):
            break
        low = torch.where(outside & (angle < 0.0), angle, low)
        high = torch.where(outside & (angle >= 0.0), angle, high)
        share = torch.rand(chains, generator=generator, **like)
        angle = torch.where(outside, low + share * (high - low), angle)
    else:  # no angle found within rounding of the current state: stay there
        angle = torch.where(outside, 0.0, angle)
        found = _on_ellipse(states, draws, angle)
        value = log_likelihood(found)
    return found, value, count


def _on_ellipse(
    states: tuple[Tensor, ...], draws: tuple[Tensor, ...], angle: Tensor
) -> tuple[Tensor, ...]:
    shape = (-1, *(1 for _ in states[0].shape[1:]))
    cos, sin = angle.cos().view(shape), angle.sin().view(shape)
    return tuple(f * cos + g * sin for f, g in zip(states, draws, strict=True))


def line_slice(
    position: Tensor,
    direction: Tensor,
    value: float,
    log_density: Callable[[Tensor], float],
    *,
    generator: torch.Generator,
    max_steps_out: int = 8,
) -> tuple[Tensor, float, int]:
    """One slice update of ``position`` (k,) along ``direction`` (k,), stepping out and shrinking.

    Args:
        position: current state, with log density ``value``.
        direction: its length is the initial width of the bracket; independent of position.
        log_density: up to a constant; -inf at impossible positions.
        max_steps_out: largest number of widths that the bracket grows by.

    Returns:
        the new position, its log density, and the number of evaluations.

    Source: Neal 2003, section 4, figures 3 and 5.
    """
    first = torch.rand(3, generator=generator, dtype=torch.float64, device=generator.device)
    edge, split, depth = first.tolist()
    level = value + math.log(depth) if depth > 0.0 else -math.inf
    low, high, count = -edge, 1.0 - edge, 0
    left = int(max_steps_out * split)
    for steps, sign in ((left, -1.0), (max_steps_out - 1 - left, 1.0)):
        for _ in range(steps):
            end = low if sign < 0.0 else high
            count += 1
            if log_density(position + end * direction) <= level:
                break
            if sign < 0.0:
                low -= 1.0
            else:
                high += 1.0
    for _ in range(MAX_SHRINKAGES):
        share = torch.rand((), generator=generator, dtype=torch.float64, device=generator.device)
        at = low + float(share) * (high - low)
        proposal = position + at * direction
        found = log_density(proposal)
        count += 1
        if found > level:
            return proposal, found, count
        low, high = (at, high) if at < 0.0 else (low, at)
    return position, value, count
