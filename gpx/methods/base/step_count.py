"""A step counter for periodic work, which a resumed run does at the same steps."""

from __future__ import annotations

from torch import nn


class StepCount(nn.Module):
    """A module that counts steps; the count is part of its state.

    Attributes:
        steps: steps so far.
    """

    steps: int = 0

    def count_step(self, interval: int) -> bool:
        """Count a step; True at every ``interval``-th one, never for ``interval=0``."""
        self.steps += 1
        return interval > 0 and self.steps % interval == 0

    def get_extra_state(self) -> dict[str, int]:
        """The count, so that a resumed run acts at the same steps."""
        return {"steps": self.steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore ``get_extra_state``."""
        self.steps = int(state["steps"])
