"""Rules for the end of stochastic training: the evidence has settled, or time runs out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

NUM_STRETCHES = 10
"""A run is divided into this many stretches of steps."""
MIN_STRETCH = 50
"""Fewest steps of a stretch; runs of fewer than two stretches are never ended early."""
LAST_SHARE = 0.2
"""In this last share of the time budget the learning rates run through the rest of their
schedule."""


class Settling:
    """Compares the mean loss over one stretch of steps with that over the stretch before.

    The evidence has settled once the decrease of the mean plus one standard error is below
    ``tolerance``: where losses scatter too much to tell, training goes on. A rising loss counts as
    settled.

    Args:
        tolerance: nats per data point that a stretch must gain; None: only ``run_out`` ends the
            run.
        max_steps: of the run; a stretch is a tenth of them, but at least 50.
        start: steps before the first stretch, in which some parameters are frozen.
    """

    def __init__(self, tolerance: float | None, max_steps: int, start: int = 0) -> None:
        self.tolerance, self.start = tolerance, start
        self.length = max(MIN_STRETCH, max_steps // NUM_STRETCHES)
        self.sums: Tensor | None = None
        self._powers: Tensor | None = None  # (1, 2) on the device of the losses
        self.before: tuple[float, float] | None = None
        self.at: int | None = None
        self.rest = self.length
        self.ran_out = False
        self.budget: float | None = None  # in which time ran out, in seconds

    def add(self, loss: Tensor, step: int) -> bool:
        """Add the loss of a step; returns whether the evidence has just settled.

        Args:
            loss (): nats per data point; it is read from its device only at the end of a stretch.
            step: number of steps done.
        """
        if self.tolerance is None or self.at is not None or step <= self.start:
            return False
        if self.sums is None and (step - self.start) % self.length != 1:
            return False  # earlier losses of this stretch are missing
        if self._powers is None:
            self._powers = torch.arange(1.0, 3.0, dtype=torch.float64, device=loss.device)
        pair = loss.detach() ** self._powers
        self.sums = pair if self.sums is None else self.sums + pair
        if (step - self.start) % self.length:
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
        """Whether the last share of the time budget, in which the run is to end, has just begun.

        Args:
            step: number of steps done.
            seconds: training time so far.
            of_start: part of ``seconds`` before the first step.
            budget: seconds that training may take.
        """
        if self.at is not None or seconds < (1.0 - LAST_SHARE) * budget:
            return False
        self.at, self.ran_out, self.budget = step, True, budget
        self.rest = max(1, int(step * (budget - seconds) / max(seconds - of_start, 1e-9)))
        return True

    def given_more_time(
        self, step: int, seconds: float, of_start: float, budget: float | None
    ) -> None:
        """In a resumed run, forget that time ran out if the budget is larger now.

        Losses since then are missing, so the next whole stretch is the first one compared.

        Args:
            step, seconds, of_start, budget: as for ``run_out``; a budget of None is unlimited.
        """
        if not self.ran_out or self.at is None:
            return
        if budget is None or seconds < (1.0 - LAST_SHARE) * budget:
            self.at, self.rest, self.ran_out = None, self.length, False
            self.before = self.sums = None
        elif self.budget is not None and budget > self.budget and step >= self.at + self.rest:
            # it ended, and has a little more
            self.at, self.ran_out = None, False
            self.run_out(step, seconds, of_start, budget)

    def end(self, limit: int) -> int:
        """Last step of the run, at most ``limit``: one more stretch after the evidence settled."""
        return limit if self.at is None else min(limit, self.at + self.rest)

    def state_dict(self) -> dict[str, Any]:
        """State that a resumed run needs."""
        names = ("sums", "before", "at", "rest", "ran_out", "budget", "length", "start")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``.

        If the rule is off now, the run has not settled. If stretches begin at other steps now, the
        next whole one is the first one compared.
        """
        self.ran_out, self.budget = state.get("ran_out", False), state.get("budget")
        if self.tolerance is not None or self.ran_out:
            self.at, self.rest = state["at"], state.get("rest", self.length)
        alike = all(state.get(n, getattr(self, n)) == getattr(self, n) for n in ("length", "start"))
        if self.tolerance is not None and alike:
            self.before = None if state["before"] is None else tuple(state["before"])
            self.sums = None if state.get("broken") else state["sums"]  # older states may lack some
