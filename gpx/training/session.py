"""State of a training run: its checkpoints, and its reports to monitors and the user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpx.errors import (
    CheckpointError,
    DataError,
    DidNotConverge,
    NotPositiveDefinite,
    class_name,
)
from gpx.likelihoods.base import Likelihood
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.optimizer import Optimizer
from gpx.options.config import TrainerConfig
from gpx.sampling.seeds import continued, stream
from gpx.training.checkpoint import load_checkpoint, save_checkpoint
from gpx.training.interrupt import Interrupted, InterruptGuard
from gpx.training.progress import Monitor, Progress, StopTraining


class Session:
    """State of one call of ``Trainer.fit``; implements ``gpx.methods.base.optimizer.Session``.

    Args:
        config, seed, checkpoint, monitors, extra_state, say: of the trainer.
        model, objective, optimizer: what is trained, and how.
        x (n, d), y (n,): training data.
        evaluate: test metrics of the current model.
    """

    def __init__(
        self,
        config: TrainerConfig,
        seed: int,
        checkpoint: Path,
        monitors: Sequence[Monitor],
        extra_state: Mapping[str, Any],
        say: Callable[[str], None],
        model: Model,
        objective: Objective,
        optimizer: Optimizer,
        x: Tensor,
        y: Tensor,
        evaluate: Callable[[], Mapping[str, float]],
    ) -> None:
        self.config, self.seed = config, seed
        self.checkpoint, self.monitors, self.extra_state = checkpoint, monitors, extra_state
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.x, self.y = x, y
        self.evaluate = evaluate
        self.generator = stream(seed, "objective", x.device)
        self.guard = InterruptGuard()
        self.step = 0
        self.limit = self.max_steps = config.max_steps
        self.batch_size = config.batch_size
        self.cuda_graphs = config.cuda_graphs and x.device.type == "cuda"
        self.round, self.round_start = 0, 0
        self.seconds, self.seconds_of_start = 0.0, 0.0
        self.budget = config.budget
        self.cut_short: list[str] = []
        self.pending: dict[str, Any] = {}
        self.start_state: dict[str, Any] | None = None
        self.resumed = False
        self.ended: str | None = None
        self.stopped: str | None = None  # why a monitor ended training
        self._asked_to_stop: str | None = None  # in this process, not agreed between them yet
        self.saved_step: int | None = None
        self.unlogged: tuple[Tensor, Mapping[str, Tensor]] | None = None
        self._say = say
        self._last_saved = time.perf_counter()
        self._logged_step, self._logged_seconds = 0, 0.0

    @property
    def out_of_time(self) -> bool:
        """Whether ``trainer.budget`` is spent, or a monitor ended training.

        Never before the first step.
        """
        spent = self.budget is not None and self.seconds >= self.budget
        return self.step > 0 and (spent or self.stopped is not None)

    def ended_in_time(self) -> str:
        """Tell the user why training ends before its last step; returns the reason."""
        if self.stopped is not None:
            # recorded, as a run that is resumed after this has no monitor that would end it again
            self.ended = f"a monitor ended training after {self.step} steps: {self.stopped}"
            self.say(self.ended)
            return self.ended
        reason = (
            f"trainer.budget={self.budget:g} seconds: {self.step} steps of at most {self.limit}"
        )
        self.say(f"training ends because of {reason}; the model may not have converged")
        return reason

    @property
    def given_more(self) -> bool:
        """Whether a run that ended at a limit of steps or of time has been given a larger one."""
        ended = self.ended or ""
        at_limit = ended.startswith(("max_steps=", "trainer.budget="))
        return at_limit and self.step < self.max_steps and not self.out_of_time

    def cut(self, what: str) -> None:
        """Record, and tell the user, that a part of the run ends early for ``trainer.budget``."""
        self.cut_short.append(what)
        self.say(f"{what} ends early because of trainer.budget={self.budget:g} seconds")

    # -- checkpoints ------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Write a checkpoint with everything a resumed run needs, and return its contents."""
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "seconds_of_start": self.seconds_of_start,
            "cut_short": list(self.cut_short),
            "model": self.model.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "rounds": {
                "round": self.round,
                "start": self.round_start,
                "model": self.model.rounds_state(),
            },
            **({} if self.ended is None else {"ended": self.ended}),
            **self.extra_state,
        }
        if sharing().number == 0:
            save_checkpoint(self.checkpoint, state)
        self.saved_step = self.step
        self._last_saved = time.perf_counter()
        return state

    def save_start(self, start: dict[str, Any], seconds: float) -> None:
        """Write a checkpoint of a run before its first step.

        Args:
            start: state of the model's start.
            seconds: training time so far.
        """
        state = {"step": 0, "seconds": seconds, "start": start, **self.extra_state}
        if sharing().number == 0:
            save_checkpoint(self.checkpoint, state)

    def restore(self) -> None:
        """Continue from the checkpoint file.

        It sets ``resumed``, or ``start_state`` if the run was stopped before its first step.
        """
        state = load_checkpoint(self.checkpoint, self.x.device)
        try:
            self.step = state["step"]
            self.seconds = state["seconds"]
            if "start" in state:
                self.start_state = state["start"]
                return
            self.seconds_of_start = state.get("seconds_of_start", 0.0)
            self.cut_short = list(state.get("cut_short", ()))
            self.model.load_state_dict(state["model"])
            self.objective.load_state_dict(state["objective"])
            if not continued(self.generator, state["generator"]):
                self.generator = stream(self.seed, f"objective {self.step}", self.x.device)
            self.pending = state["optimizer"]
            self.ended = state.get("ended")
            if "rounds" in state:
                rounds = state["rounds"]
                self.round, self.round_start = rounds["round"], rounds["start"]
                self.model.load_rounds_state(rounds["model"])
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{self.checkpoint} does not fit this run's config.yaml: {error}"
            ) from error
        self.resumed = True
        self.saved_step = self.step
        self._logged_step, self._logged_seconds = self.step, self.seconds

    def end_step(self) -> None:
        """Evaluate test metrics and write a checkpoint if they are due.

        Raises:
            Interrupted: the run was asked to stop; the checkpoint is written.
        """
        if self._due(self.config.eval_every):
            self._test()
        late = time.perf_counter() - self._last_saved > self.config.checkpoint_seconds
        # clocks and signals differ between processes, but all must take the same decision
        asked = float(self._asked_to_stop is not None)
        signal = float(self.guard.received or 0)
        agreed = sharing().all_max(self.seconds, float(late), signal, asked)
        self.seconds, due, stopped = agreed[0], bool(agreed[1]), int(agreed[2]) or None
        if agreed[3]:
            self.stopped = self._asked_to_stop or "in another process"
        if self.unlogged is not None and (due or stopped is not None):
            # a state with NaN must not replace the last good checkpoint
            self.require_finite(float(self.unlogged[0]), self.unlogged[1])
        if stopped is not None:
            if self.stopped is not None:  # training has ended, whatever the signal
                self.ended_in_time()
            self.save()
            raise Interrupted(stopped)
        if due:
            self.save()

    def _test(self) -> None:
        """Give test metrics of the current model to the monitors.

        The model may be at a trial point of a line search that has no posterior. The optimiser will
        step back from there, so the user is told and training goes on.
        """
        try:
            metrics = self.evaluate()
        except (NotPositiveDefinite, DidNotConverge) as error:
            self.say(
                f"step {self.step}: no test metrics, as the line search is at hyperparameters "
                f"without a posterior; training goes on: {error}"
            )
            return
        for monitor in self.monitors if metrics else ():  # empty without test rows
            with self._stops():
                monitor.metrics(self.step, metrics)

    @contextmanager
    def _stops(self) -> Iterator[None]:
        """Note that a monitor asks for the end of training."""
        try:
            yield
        except StopTraining as stop:
            self._asked_to_stop = str(stop) or "no reason was given"

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time spent inside as training time."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    # -- monitoring -------------------------------------------------------------------------------

    def require_finite(self, loss: float, parts: Mapping[str, Tensor]) -> None:
        """Raise DidNotConverge if the loss is not finite; the last checkpoint is kept.

        DataError if that is so at the first step for targets that the likelihood cannot have.
        """
        if math.isfinite(loss):
            return
        refused = _refused_targets(self.model, self.y) if self.step <= 1 else ""
        if refused:
            raise DataError(refused)
        broken = [name for name, value in parts.items() if not math.isfinite(float(value))]
        what = f" (its term {broken[0]} is not finite)" if broken else ""
        kept = ""
        if self.saved_step is not None:
            kept = f"; the checkpoint of step {self.saved_step} is kept in {self.checkpoint}"
        raise DidNotConverge(
            f"the loss is {loss} at step {self.step}{what}; {self.optimizer.advice}{kept}"
        )

    def report(self, loss: float, parts: Mapping[str, Tensor], rates: Mapping[str, float]) -> None:
        """Report to the monitors: loss in nats per point, parts in nats."""
        self.require_finite(loss, parts)
        num_data = self.objective.num_data(self.x)
        evidence = -loss
        priors = getattr(self.model, "hyperpriors", None)
        if priors is not None:  # the loss includes their log density, the evidence does not
            with torch.no_grad():
                evidence -= float(priors.log_prob(self.model)) / num_data
        steps = max(1, self.step - self._logged_step)
        before = max(self._logged_seconds, self.seconds_of_start)  # pretraining is not a step
        progress = Progress(
            step=self.step,
            max_steps=self.max_steps,
            evidence_per_point=evidence,
            parts={name: value / num_data for name, value in _values(parts).items()},
            learning_rates=rates,
            seconds_per_step=(self.seconds - before) / steps,
            seconds=self.seconds,
        )
        self._logged_step, self._logged_seconds = self.step, self.seconds
        for monitor in self.monitors:
            with self._stops():
                monitor.progress(progress, self.model)

    def say(self, line: str) -> None:
        """Print a line for the user."""
        self._say(line)

    def log_due(self, *, last: bool = False) -> bool:
        """Whether the last step is to be reported."""
        return last or self.step % self.config.log_every == 0 or self.step in (1, self.max_steps)

    def _due(self, every: int | None) -> bool:
        interval = max(1, self.max_steps // 10) if every is None else every
        return interval > 0 and self.step % interval == 0 and self.step < self.max_steps

    def end_round(self, loss: float) -> bool:
        """Ask the model for another start; returns whether it moved to one."""
        started = time.perf_counter()
        generator = stream(self.seed, f"round {self.round}", self.x.device)
        self.model.note = ""
        again = self.model.next_round(self.x, self.y, loss, generator=generator)
        if self.model.note:
            self.say(f"step {self.step}: {self.model.note}")
        seconds = self.seconds + time.perf_counter() - started
        (self.seconds,) = sharing().all_max(seconds)
        return again


def _refused_targets(model: Model, y: Tensor) -> str:
    """What is wrong with targets that have no finite density at f = 0; empty if all have one."""
    likelihood = getattr(model, "likelihood", None)
    if not isinstance(likelihood, Likelihood) or not isinstance(y, Tensor):
        return ""
    latents = likelihood.num_latents
    f = y.new_zeros(len(y), latents) if latents > 1 else y.new_zeros(len(y))
    try:
        with torch.no_grad():
            count = int((~likelihood.log_prob(y, f).isfinite()).sum())
    except Exception:  # of a class that is not ours: the loss is what is told then
        return ""
    if count == 0:
        return ""
    known = y[~y.isnan()]
    standardised = likelihood.task == "regression"
    return (
        f"log p(y | f) of the {class_name(likelihood)} likelihood is not finite for {count:,} of "
        f"{len(y):,} training targets at f = 0; "
        + ("standardised, they" if standardised else "they")
        + f" range from {float(known.min()):.4g} to {float(known.max()):.4g}; "
        + (
            'if it is of targets above 0, give it task = "positive", which leaves them as they are'
            if standardised
            else "check its log_prob there"
        )
    )


def _values(parts: Mapping[str, Tensor]) -> dict[str, float]:
    """Values of one-element tensors, copied from their device together."""
    if len({part.device for part in parts.values()}) != 1:
        return {name: float(part) for name, part in parts.items()}
    together = torch.stack([part.detach().double().reshape(()) for part in parts.values()])
    return dict(zip(parts, together.tolist(), strict=True))
