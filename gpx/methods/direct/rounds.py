"""Rounds of a gradient search with sweeps of coordinate ascent between them."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gpx.methods.base.model import Model

MOST_SWEEPS = 20
"""Of coordinate ascent between two searches."""

WORTHWHILE = 0.01
"""Nats that a sweep, or all of them, must gain to go on."""


class SweptRounds(Model):
    """A model whose search by gradient begins anew where sweeps of coordinate ascent lead.

    Where q is certain of a value the gradient by its logits vanishes, whether or not the value is
    the best one. A sweep never lowers the bound, and replaces such a value by a better one. A
    subclass sets ``restarts``.
    """

    rounds_argument = "restarts"
    restarts: int

    @abstractmethod
    def sweep(self) -> None:
        """Give the noise, and every weight in turn, the best distribution given the others."""

    @abstractmethod
    def bound_value(self) -> float:
        """The evidence lower bound at the present q, in nats."""

    @property
    def num_rounds(self) -> int:
        """As in ``Model``: the search and its restarts."""
        return 1 + self.restarts

    @torch.no_grad()
    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """Sweeps of coordinate ascent, which never lower the bound; nothing is drawn.

        Returns:
            whether they gained enough for a search from where they end.
        """
        if not self.restarts:
            return False
        start = before = self.bound_value()
        for _ in range(MOST_SWEEPS):
            self.sweep()
            here = self.bound_value()
            if here - before < WORTHWHILE:
                break
            before = here
        self.note = f"sweeps of coordinate ascent gained {here - start:.3g} nats"
        return here - start >= WORTHWHILE
