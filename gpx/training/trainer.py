"""Training to the end, with checkpoints and clean stops. It knows no Gaussian process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gpx.constraints import at_their_floor
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.optimizer import Optimizer
from gpx.methods.base.start import StartWatch
from gpx.options.config import TrainerConfig
from gpx.training.interrupt import InterruptGuard
from gpx.training.progress import Monitor
from gpx.training.session import Session
from gpx.training.watched_start import WatchedStart


@dataclass
class FitResult:
    """Outcome of training.

    Attributes:
        steps: optimiser steps, or evaluations under L-BFGS-B.
        seconds: training time, all sessions of a resumed run together.
        seconds_of_start: share of it before the first step.
        reason: why training stopped.
        cut_short: parts of the run that ``trainer.budget`` ended early, in words.
        state: contents of the last checkpoint.
    """

    steps: int
    seconds: float
    seconds_of_start: float
    reason: str
    state: dict[str, Any]
    cut_short: tuple[str, ...] = ()


OVERRUN = 0.1
"""Share of ``trainer.budget`` that training may take beyond it without a word."""


@dataclass
class Trainer:
    """Runs an objective to its end, with checkpoints, monitors and clean stops.

    Args:
        config: options.
        seed: of the run; batches and the objective's own draws follow from it.
        checkpoint: file to write.
        monitors: watchers.
        extra_state: saved with every checkpoint as it is (data scaling).
        say: takes lines for the user.
    """

    config: TrainerConfig
    seed: int
    checkpoint: Path
    monitors: list[Monitor] = field(default_factory=list)
    extra_state: dict[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda line: None

    def fit(
        self,
        model: Model,
        objective: Objective,
        optimizer: Optimizer,
        x: Tensor,
        y: Tensor,
        evaluate: Callable[[], Mapping[str, float]],
        initialise: Callable[[StartWatch], None],
    ) -> FitResult:
        """Train ``model`` in place; goes on from the checkpoint file when there is one.

        Args:
            model, objective: what to train; the objective's ``check`` has passed.
            optimizer: first-order, quasi-Newton (for deterministic objectives), or steps made for
                the model; it runs itself.
            x (n, d), y (n,): training data on the model's device.
            evaluate: test metrics of the current model; its time is not counted.
            initialise: data-dependent start of model and objective, which tells its argument of the
                steps that it takes; skipped when resuming after it.

        Raises:
            Interrupted: after SIGINT, SIGTERM or SIGHUP, with the checkpoint written.
            DidNotConverge: the loss is not finite.
            ConfigError: the optimiser does not fit the objective.
        """
        optimizer.require_fit(model, objective, x.shape[0], self.config.max_steps)
        session = Session(
            self.config,
            self.seed,
            self.checkpoint,
            self.monitors,
            self.extra_state,
            self.say,
            model,
            objective,
            optimizer,
            x,
            y,
            evaluate,
        )
        with InterruptGuard() as guard:
            session.guard = guard
            # the first process may be about to write one
            if any(sharing().all_max(float(self.checkpoint.exists()))):
                session.restore()
            if not session.resumed:
                with session.timed():
                    initialise(WatchedStart(session))
                (session.seconds,) = sharing().all_max(session.seconds)
                session.seconds_of_start = session.seconds
            if session.ended is None or session.given_more_steps:
                reason = optimizer.run(session)
            else:
                reason = session.ended
                self.say("training is finished: it is evaluated again, and not trained further")
        self._say_overrun(session)
        trained = [p for group in model.parameter_groups().values() for p in group]
        for name in at_their_floor(model, trained):
            line = f"note: {name} ended at its floor, where it is kept"
            if "noise_variance" in name:
                line += ": targets are taken for all but free of noise, which over-fits if not so"
            self.say(line)
        return FitResult(
            session.step,
            session.seconds,
            session.seconds_of_start,
            reason,
            session.save(),
            tuple(session.cut_short),
        )

    def _say_overrun(self, session: Session) -> None:
        """Say how far above ``trainer.budget`` training ended, and what no budget cuts short."""
        budget, start = session.budget, session.seconds_of_start
        if budget is None or session.seconds <= (1.0 + OVERRUN) * budget:
            return
        if start > budget and start > 0.5 * session.seconds:
            why = f"{start:.3g} s of them are its start, before the first step, which is finished"
        else:
            why = "a step that has begun is finished, and there must be something to predict with"
        self.say(
            f"note: training took {session.seconds:.3g} seconds, above trainer.budget={budget:g}: "
            f"{why}"
        )
