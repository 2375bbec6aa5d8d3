"""The steps of a model's start in the run's checkpoint, and told to the user."""

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

SHARE = 0.5
"""Of ``trainer.budget``: a start that can end early does so then, and the rest is for training."""
LINES = 10
"""A start says so often where it is."""


class WatchedStart:
    """Of a session; see ``gpx.methods.base.start.StartWatch``.

    A checkpoint holds the state of the start alone until the first step of training. It is written
    as often as those of training, and where the run is asked to stop.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = self._saved = time.perf_counter()
        self._told: tuple[int, float] | None = None

    def earlier(self) -> Mapping[str, Any] | None:
        """As in ``StartWatch``."""
        return self._session.start_state

    def step(
        self, step: int, total: int, loss: Tensor, state: Callable[[], dict[str, Any]]
    ) -> None:
        """As in ``StartWatch``."""
        session, now = self._session, time.perf_counter()
        late = now - self._saved > session.config.checkpoint_seconds
        # as at the end of a step of training: processes do the same next
        agreed = sharing().all_max(float(late), float(session.guard.received or 0))
        due, stopped = bool(agreed[0]), int(agreed[1]) or None
        first, every = self._told is None, max(1, total // LINES)
        telling = first or step % every == 0 or step == total
        if telling or due or stopped is not None:
            self._require_finite(step, float(loss))
        if telling:
            self._tell(step, total, float(loss), now)
        if due or stopped is not None:
            session.save_start(state(), session.seconds + now - self._began)
            self._saved = now
        if stopped is not None:
            raise Interrupted(stopped)

    def spent(self) -> bool:
        """As in ``StartWatch``: ``SHARE`` of ``trainer.budget``, in all processes alike."""
        session = self._session
        if session.budget is None:
            return False
        (seconds,) = sharing().all_max(session.seconds + time.perf_counter() - self._began)
        return seconds >= SHARE * session.budget

    def cut_short(self, what: str) -> None:
        """As in ``StartWatch``: said, and noted for metrics.json."""
        session = self._session
        session.cut_short.append(what)
        session.say(
            f"{what} ends early: the start has taken {SHARE:.0%} of trainer.budget="
            f"{session.budget:g} seconds"
        )

    def _tell(self, step: int, total: int, loss: float, now: float) -> None:
        before, then = self._told or (step - 1, self._began)
        pace = 1e3 * (now - then) / max(1, step - before)
        self._session.say(
            f"pretraining, step {step}/{total}  loss/point {loss:+.4f}  {pace:.0f} ms/step"
        )
        self._told = step, now

    def _require_finite(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise DidNotConverge(
                f"the loss is {loss} at step {step} of pretraining; use trainer.dtype=float64, or "
                "look for inputs or targets that are very large"
            )
