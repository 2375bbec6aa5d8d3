"""Checkpoints and progress of a model's start, the steps before training (pretraining)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gpx.errors import DidNotConverge
from gpx.linalg.processes import sharing
from gpx.training.interrupt import Interrupted
from gpx.training.session import Session

START_SHARE = 0.5
"""A start that can end early does so after this share of ``trainer.budget``."""
PROGRESS_LINES = 10
"""Number of lines of progress that a start prints."""


class WatchedStart:
    """The ``StartWatch`` (``gpx.methods.base.start``) of a session.

    Until the first step of training a checkpoint holds only the state of the start. It is written
    every ``trainer.checkpoint_seconds``, and when the run is asked to stop.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = self._saved = time.perf_counter()
        self._printed: tuple[int, float] | None = None

    def earlier(self) -> Mapping[str, Any] | None:
        """As in ``StartWatch``."""
        return self._session.start_state

    def step(
        self, step: int, total: int, loss: Tensor, state: Callable[[], dict[str, Any]]
    ) -> None:
        """As in ``StartWatch``."""
        session, now = self._session, time.perf_counter()
        late = now - self._saved > session.config.checkpoint_seconds
        # all processes must take the same decision
        agreed = sharing().all_max(float(late), float(session.guard.received or 0))
        due, stopped = bool(agreed[0]), int(agreed[1]) or None
        first, every = self._printed is None, max(1, total // PROGRESS_LINES)
        report = first or step % every == 0 or step == total
        if report or due or stopped is not None:
            self._require_finite(step, float(loss))
        if report:
            self._print(step, total, float(loss), now)
        if due or stopped is not None:
            session.save_start(state(), session.seconds + now - self._began)
            self._saved = now
        if stopped is not None:
            raise Interrupted(stopped)

    def spent(self) -> bool:
        """As in ``StartWatch``: after ``START_SHARE`` of ``trainer.budget``."""
        session = self._session
        if session.budget is None:
            return False
        (seconds,) = sharing().all_max(session.seconds + time.perf_counter() - self._began)
        return seconds >= START_SHARE * session.budget

    def cut_short(self, what: str) -> None:
        """As in ``StartWatch``: told to the user and recorded for metrics.json."""
        session = self._session
        session.cut_short.append(what)
        session.say(
            f"{what} ends early: {START_SHARE:.0%} of trainer.budget={session.budget:g} seconds "
            "are spent before the first step of training"
        )

    def _print(self, step: int, total: int, loss: float, now: float) -> None:
        before, then = self._printed or (step - 1, self._began)
        pace = 1e3 * (now - then) / max(1, step - before)
        self._session.say(
            f"pretraining, step {step}/{total}  loss/point {loss:+.4f}  {pace:.0f} ms/step"
        )
        self._printed = step, now

    def _require_finite(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise DidNotConverge(
                f"the loss is {loss} at step {step} of pretraining; use trainer.dtype=float64, or "
                "look for very large inputs or targets"
            )
