"""The trainer: runs an optimiser to its end, with checkpoints and clean stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gpx.bounds import at_their_floor
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.optimizer import Optimizer
from gpx.methods.base.start import StartWatch
from gpx.options.config import TrainerConfig
from gpx.training.interrupt import Interrupted, InterruptGuard
from gpx.training.progress import Monitor
from gpx.training.session import Session
from gpx.training.watched_start import WatchedStart


@dataclass
class FitResult:
    """Result of training.

    Attributes:
        steps: optimiser steps, or evaluations under L-BFGS-B.
        seconds: training time, including that before a run was resumed.
        seconds_of_start: part of it before the first step.
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


BUDGET_TOLERANCE = 0.1
"""Training that exceeds ``trainer.budget`` by more than this share of it is reported."""


@dataclass
class Trainer:
    """Trains a model, with checkpoints, monitors and clean stops.

    Args:
        config: options.
        seed: of the run; it determines batches and the objective's random draws.
        checkpoint: file to write.
        monitors: receive progress and metrics.
        extra_state: further entries of every checkpoint (data scaling).
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
        """Train ``model`` in place; continues from the checkpoint file if it exists.

        Args:
            model, objective: what to train; the objective's ``check`` has passed.
            optimizer: its ``run`` trains the model.
            x (n, d), y (n,): training data on the model's device.
            evaluate: returns test metrics of the current model; not counted as training time.
            initialise: sets the data-dependent start of model and objective, and reports its steps
                to its argument; skipped when a run is resumed after its start.

        Raises:
            Interrupted: after SIGINT, SIGTERM or SIGHUP, with the checkpoint written.
            DidNotConverge: the loss is not finite.
            ConfigError: the optimiser does not fit the objective.
        """
        if objective.batching == "minibatch" and (objective.told or not objective.total):
            objective.total, objective.told = x.shape[0], True
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
            # agreed, as only the first process writes it
            if any(sharing().all_max(float(self.checkpoint.exists()))):
                session.restore()
            if not session.resumed:
                with session.timed():
                    initialise(WatchedStart(session))
                (session.seconds,) = sharing().all_max(session.seconds)
                session.seconds_of_start = session.seconds
            if session.ended is None or session.given_more:
                session.ended = None  # a continued run has not ended before its optimiser says so
                reason = optimizer.run(session)
            else:
                reason = session.ended
                self.say("training had already finished: the model is only evaluated again")
        self._report_overrun(session)
        trained = [p for group in model.parameter_groups().values() for p in group]
        known = model.row_noise is not None and bool(model.row_noise.known.any())
        for name in at_their_floor(model, trained):
            line = f"note: {name} ended at its lower limit"
            if "noise_variance" in name and known:
                line += ": the model takes the targets to have the noise that is known, and no more"
            elif "noise_variance" in name:
                line += (
                    ": the model takes the targets as nearly free of noise, and over-fits if not so"
                )
            self.say(line)
        state = session.save()
        # a signal since the last step, for instance while points were selected again at the end
        if stopped := int(sharing().all_max(float(guard.received or 0))[0]):
            raise Interrupted(stopped)
        return FitResult(
            session.step,
            session.seconds,
            session.seconds_of_start,
            reason,
            state,
            tuple(session.cut_short),
        )

    def _report_overrun(self, session: Session) -> None:
        """Tell the user if training took clearly longer than ``trainer.budget``, and why."""
        budget, start = session.budget, session.seconds_of_start
        if budget is None or session.seconds <= (1.0 + BUDGET_TOLERANCE) * budget:
            return
        if start > budget and start > 0.5 * session.seconds:
            why = f"its start took {start:.3g} of them and is always finished"
        else:
            why = "at least one step is taken, and a step is always finished"
        self.say(
            f"note: training took {session.seconds:.3g} seconds, above trainer.budget={budget:g}: "
            f"{why}"
        )
