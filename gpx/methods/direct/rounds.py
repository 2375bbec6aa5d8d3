"""Restarts of a gradient search, with sweeps of coordinate ascent between them."""

from __future__ import annotations

import copy
from abc import abstractmethod

import torch
from torch import Tensor

from gpx.methods.base.model import Model

MAX_SWEEPS = 20
"""Most sweeps of coordinate ascent between two gradient searches."""

MIN_GAIN = 0.01
"""Sweeps end when one gains less than this many nats, and so do restarts if all of them do."""


class SweptRounds(Model):
    """A model whose gradient search restarts from where sweeps of coordinate ascent lead.

    Where q puts all probability on one value, the gradient by the logits vanishes even if another
    value would be better. A sweep finds the better value, and never lowers the bound. A subclass
    sets ``restarts``.
    """

    rounds_argument = "restarts"
    restarts: int

    @abstractmethod
    def sweep(self) -> None:
        """Set q of the noise variance, and of every weight in turn, to its optimum."""

    @abstractmethod
    def bound_value(self) -> float:
        """The evidence lower bound at the present q, in nats."""

    @property
    def num_rounds(self) -> int:
        """As in ``Model``: the first search and the restarts."""
        return 1 + self.restarts

    @torch.no_grad()
    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """Run sweeps of coordinate ascent; nothing is drawn.

        They are many small updates in sequence, which a device would wait for one by one: a copy of
        the model makes them on the CPU.

        Returns:
            whether they gained enough for another search from there.
        """
        if not self.restarts:
            return False
        first = next(self.parameters(), None)
        swept = self if first is None or first.is_cpu else copy.deepcopy(self).cpu()
        start = before = swept.bound_value()
        for _ in range(MAX_SWEEPS):
            swept.sweep()
            after = swept.bound_value()
            if after - before < MIN_GAIN:
                break
            before = after
        if swept is not self:
            own, found = (m.parameter_groups()["variational"] for m in (self, swept))
            for parameter, value in zip(own, found, strict=True):
                parameter.copy_(value)
        self.note = f"sweeps of coordinate ascent gained {after - start:.3g} nats"
        return after - start >= MIN_GAIN
