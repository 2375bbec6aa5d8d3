"""Progress, checkpoints and time limit of an initialisation that takes steps (pretraining)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor


class StartWatch(Protocol):
    """Called after every step of an initialisation; keeps its state, so that the run can resume."""

    def earlier(self) -> Mapping[str, Any] | None:
        """The state last passed to ``step`` in the run that is resumed; None: there is none.

        A resumed initialisation repeats everything before its first step, with the same random
        numbers.
        """

    def step(
        self, step: int, total: int, loss: Tensor, state: Callable[[], dict[str, Any]]
    ) -> None:
        """Report a step.

        Args:
            step: steps done, from 1 to ``total``.
            total: steps of the initialisation.
            loss (): in nats per data point.
            state: returns what the next step needs: tensors, numbers, dicts and lists of them.

        Raises:
            DidNotConverge: the loss is not finite.
            Interrupted: the run was asked to stop; the state is in its checkpoint.
        """

    def spent(self) -> bool:
        """Whether the time the run allows for initialisation is used up; see ``cut_short``.

        Always false in a run without a time budget, whose initialisation depends on the seed alone.
        """

    def cut_short(self, what: str) -> None:
        """Report which part of the initialisation ended early: "the search of lengthscales"."""


class Unwatched:
    """A watch that does nothing: no progress, nothing to resume, no time limit."""

    def earlier(self) -> None:
        """Nothing."""

    def step(
        self, step: int, total: int, loss: Tensor, state: Callable[[], dict[str, Any]]
    ) -> None:
        """Nothing."""

    def spent(self) -> bool:
        """Never."""
        return False

    def cut_short(self, what: str) -> None:
        """Nothing."""


class Deadline:
    """Callable that returns True when a search is to end because the time is used up.

    Attributes:
        passed: whether it has returned True, that is, the search ended early.
    """

    def __init__(self, watch: StartWatch) -> None:
        self._watch, self.passed = watch, False

    def __call__(self) -> bool:
        """Whether to end the search now."""
        self.passed = self.passed or self._watch.spent()
        return self.passed
