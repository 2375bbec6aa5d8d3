"""Progress, checkpoints and time limit of a start that takes steps itself, such as pretraining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor


class StartWatch(Protocol):
    """Is called after every step of a start; keeps its state, so that a stopped run can resume."""

    def earlier(self) -> Mapping[str, Any] | None:
        """State last given to ``step`` in the run that is resumed; None where there is none.

        A resumed start repeats all that precedes its first step, with the same random numbers.
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
        """Report a part of the start that ended early, such as "the search of lengthscales"."""


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
    """Callable that tells a search whether to end because the time of the start is spent.

    Attributes:
        passed: whether it has ever said so, so that the search ended early.
    """

    def __init__(self, watch: StartWatch) -> None:
        self._watch, self.passed = watch, False

    def __call__(self) -> bool:
        """Whether the search is to end now."""
        self.passed = self.passed or self._watch.spent()
        return self.passed
