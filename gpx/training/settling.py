"""When the evidence has settled, or time runs out: rules for the end of stochastic training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

STRETCHES = 10
"""Stretches that all the steps of a run make."""
SHORTEST = 50
"""Steps of a stretch at least: runs of fewer than two of them are never cut."""
LAST_SHARE = 0.2
"""Of the seconds that training may take: in these the rates go through the rest of their
schedule."""


class Settling:
    """Compares the mean loss over one stretch of steps with that over the stretch before.

    The evidence has settled where the mean has fallen by less than ``tolerance``, with one standard
    error of the difference added to the fall: where single losses scatter too much to tell, it
    has not. A loss that rises has settled, too.

    Args:
        tolerance: nats per data point that a stretch must gain; None: any gain will do, and only
            ``run_out`` ends the run.
        max_steps: of the run; a stretch is a tenth of them, and at least 50.
        start: steps before the first stretch, in which some parameters are frozen.
    """

    def __init__(self, tolerance: float | None, max_steps: int, start: int = 0) -> None:
        self.tolerance, self.start = tolerance, start
        self.length = max(SHORTEST, max_steps // STRETCHES)
        self.sums: Tensor | None = None
        self._powers: Tensor | None = None  # 1 and 2, where the losses are
        self.before: tuple[float, float] | None = None
        self.at: int | None = None
        self.rest = self.length
        self.ran_out = False
        self.broken = False  # whether losses of the stretch in progress are missing

    def add(self, loss: Tensor, step: int) -> bool:
        """Take the loss of a step; whether the evidence has just settled.

        Args:
            loss (): nats per data point; stays on its device but for the last of a stretch.
            step: number of steps done.
        """
        if self.tolerance is None or self.at is not None or step <= self.start:
            return False
        if self._powers is None:
            self._powers = torch.arange(1.0, 3.0, dtype=torch.float64, device=loss.device)
        pair = loss.detach() ** self._powers
        self.sums = pair if self.sums is None else self.sums + pair
        if (step - self.start) % self.length:
            return False
        if self.broken:  # its mean would be of other steps than a stretch has
            self.sums, self.broken = None, False
            return False
        total, squares = (float(part) / self.length for part in self.sums)
        mean, error = total, max(squares - total**2, 0.0) / self.length
        self.sums, before, self.before = None, self.before, (mean, error)
        if before is None:
            return False
        gain = before[0] - mean + math.sqrt(before[1] + error)
        if gain < self.tolerance:
            self.at = step
        return self.at is not None

    def run_out(self, step: int, seconds: float, of_start: float, budget: float) -> bool:
        """Whether the last share of the budget has just begun, in which the run is to end.

        Args:
            step: number of steps done.
            seconds: that training has taken; ``of_start``: before the first step.
            budget: seconds that it may take.
        """
        if self.at is not None or seconds < (1.0 - LAST_SHARE) * budget:
            return False
        self.at, self.ran_out = step, True
        self.rest = max(1, int(step * (budget - seconds) / max(seconds - of_start, 1e-9)))
        return True

    def given_more_time(self, seconds: float, budget: float | None) -> None:
        """Of a run that goes on: forget that time ran out where the budget has grown since.

        Losses were not taken since then: stretches are compared from the next whole one on.

        Args:
            seconds, budget: as for ``run_out``; None: any.
        """
        if self.ran_out and (budget is None or seconds < (1.0 - LAST_SHARE) * budget):
            self.at, self.rest, self.ran_out = None, self.length, False
            self.before, self.broken = None, True

    def end(self, limit: int) -> int:
        """The last step of the run: one more stretch after it has settled, ``limit`` at most."""
        return limit if self.at is None else min(limit, self.at + self.rest)

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs."""
        names = ("sums", "before", "at", "rest", "ran_out", "broken", "length")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``; after stretches of another length, from the next whole one on."""
        self.sums, self.at = state["sums"], state["at"]
        self.rest, self.ran_out = state.get("rest", self.length), state.get("ran_out", False)
        self.broken = state.get("broken", False)
        self.before = None if state["before"] is None else tuple(state["before"])
        if state.get("length", self.length) != self.length:
            self.before, self.broken = None, True
