"""What watches a model's start where that takes steps of its own, such as pretraining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor


class StartWatch(Protocol):
    """Told of every step of a start; keeps its state, so that a stopped run goes on there."""

    def earlier(self) -> Mapping[str, Any] | None:
        """State that ``step`` was given in the run that is gone on from; None where there is none.

        All that the start did before its first step is done again, from the same random numbers.
        """

    def step(
        self, step: int, total: int, loss: Tensor, state: Callable[[], dict[str, Any]]
    ) -> None:
        """After each step.

        Args:
            step: steps done, from 1 to ``total``.
            total: of the start.
            loss (): in nats per data point.
            state: what it takes to go on from here: tensors, numbers, dicts and lists of them.

        Raises:
            DidNotConverge: the loss is not finite.
            Interrupted: the run was asked to stop; the state is in its checkpoint.
        """

    def spent(self) -> bool:
        """Whether the seconds that the run gives its start are spent; see ``cut_short``.

        Never where the run has no budget, so that a start is then a function of the seed alone.
        """

    def cut_short(self, what: str) -> None:
        """Told of a part of the start that ended for that, such as "the search of lengthscales"."""


class Unwatched:
    """A start that nobody watches and that begins anew."""

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
    """Asks a watch for the time, and remembers whether it was ever over.

    Attributes:
        passed: whether it was, so that whoever asked has ended early.
    """

    def __init__(self, watch: StartWatch) -> None:
        self._watch, self.passed = watch, False

    def __call__(self) -> bool:
        """Whether what asks is to end where it is."""
        self.passed = self.passed or self._watch.spent()
        return self.passed
