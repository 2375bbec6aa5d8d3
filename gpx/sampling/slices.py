"""Slice sampling: along an ellipse for Gaussian priors, along a line for other densities."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
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


class LineSlices:
    """Slice updates of C chains, each along a line of its own, stepping out and shrinking.

    The chains move in lockstep: every round asks for the log density of each chain that still
    moves, at one point of its line, and waits once for all of them.

        while slices.moving:
            accepted = slices.tell(log densities at slices.offsets)

    Args:
        values (C,): log densities of the present states.
        max_steps_out: largest number of widths that a bracket grows by.

    Attributes:
        offsets: the point of each chain's line that is asked for, as a multiple of its direction,
            whose length is the initial width of the bracket; the last one if it moves no more.
        moving: numbers of the chains whose updates have not ended.
        count: number of log densities so far, over all chains.

    Source: Neal 2003, section 4, figures 3 and 5.
    """

    def __init__(
        self, values: Tensor, *, generator: torch.Generator, max_steps_out: int = 8
    ) -> None:
        self.generator = generator
        self.count = 0
        self.moving = list(range(len(values)))
        # the only transfers from the device are this one and one a round
        states = torch.cat([values.double()[None], self._uniform(4, len(values))]).T.tolist()
        self._lines = [
            _asked_along_a_line(value, edge, split, depth, share, max_steps_out)
            for value, edge, split, depth, share in states
        ]
        self.offsets = [next(line) for line in self._lines]

    def tell(self, values: Tensor) -> list[int]:
        """Take the log densities (C,) at ``offsets``, of which those of ``moving`` are read.

        Returns:
            the chains that accept their point, which move no more.
        """
        told = torch.stack([values.double(), self._uniform(len(values))]).T.tolist()
        self.count += len(self.moving)
        accepted, still = [], []
        for chain in self.moving:
            try:
                self.offsets[chain] = self._lines[chain].send(told[chain])
                still.append(chain)
            except StopIteration as ended:
                accepted += [chain] if ended.value else []
        self.moving = still
        return accepted

    def _uniform(self, *shape: int) -> Tensor:
        device = self.generator.device
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64, device=device)


def _asked_along_a_line(
    value: float, edge: float, split: float, depth: float, share: float, max_steps_out: int
) -> Generator[float, list[float], bool]:
    """One slice update: yields offsets, is sent log densities there, each with a uniform number.

    Args:
        value: log density of the present state, at offset 0.
        edge, split, depth, share: uniform numbers.

    Returns:
        whether the last offset is accepted; otherwise the state stays.
    """
    level = value + math.log(depth) if depth > 0.0 else -math.inf
    low, high = -edge, 1.0 - edge
    left = int(max_steps_out * split)
    for steps, sign in ((left, -1.0), (max_steps_out - 1 - left, 1.0)):
        for _ in range(steps):
            found, share = yield low if sign < 0.0 else high
            if found <= level:
                break
            if sign < 0.0:
                low -= 1.0
            else:
                high += 1.0
    for _ in range(MAX_SHRINKAGES):
        at = low + share * (high - low)
        found, share = yield at
        if found > level:
            return True
        low, high = (at, high) if at < 0.0 else (low, at)
    return False


def line_slice(
    position: Tensor,
    direction: Tensor,
    value: float,
    log_density: Callable[[Tensor], float],
    *,
    generator: torch.Generator,
    max_steps_out: int = 8,
) -> tuple[Tensor, float, int]:
    """One slice update of ``position`` (k,) along ``direction`` (k,): ``LineSlices`` of one chain.

    Args:
        position: current state, with log density ``value``.
        direction: its length is the initial width of the bracket; independent of position.
        log_density: up to a constant; -inf at impossible positions.
        max_steps_out: largest number of widths that the bracket grows by.

    Returns:
        the new position, its log density, and the number of evaluations.
    """

    def told(number: float) -> Tensor:
        return torch.tensor([number], dtype=torch.float64, device=generator.device)

    slices = LineSlices(told(value), generator=generator, max_steps_out=max_steps_out)
    while slices.moving:
        proposal = position + slices.offsets[0] * direction
        found = log_density(proposal)
        if slices.tell(told(found)):
            return proposal, found, slices.count
    return position, value, slices.count
