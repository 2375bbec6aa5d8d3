"""One stretch of training: checkpoints, monitoring and the loops of the three optimisers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpx.constraints import lower_limits
from gpx.errors import CheckpointError, DidNotConverge, NotPositiveDefinite
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.own_steps import OwnSteps
from gpx.sampling.batches import Batches
from gpx.sampling.seeds import stream
from gpx.training.checkpoint import load_checkpoint, save_checkpoint
from gpx.training.first_order import FirstOrder
from gpx.training.interrupt import Interrupted, InterruptGuard
from gpx.training.lbfgsb import LBFGSB
from gpx.training.progress import Progress

if TYPE_CHECKING:
    from gpx.training.trainer import Trainer


class Session:
    """State of one call of ``Trainer.fit``."""

    def __init__(
        self,
        trainer: Trainer,
        model: Model,
        objective: Objective,
        optimizer: FirstOrder | LBFGSB | OwnSteps[Any],
        x: Tensor,
        y: Tensor,
        evaluate: Callable[[], Mapping[str, float]],
    ) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.model = model
        self.objective = objective
        self.optimizer = optimizer
        self.x, self.y = x, y
        self.evaluate = evaluate
        self.generator = stream(trainer.seed, "objective", x.device)
        self.guard = InterruptGuard()
        self.step = 0
        self.round, self.round_start = 0, 0
        self.seconds = 0.0
        self.pending: dict[str, Any] = {}
        self.saved_step: int | None = None
        self.unlogged: tuple[Tensor, Mapping[str, Tensor]] | None = None
        self.max_steps = trainer.config.max_steps
        self._last_saved = time.perf_counter()
        self._logged_step, self._logged_seconds = 0, 0.0

    # -- checkpoints ------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Write everything a resumed run needs, and return it."""
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "rounds": {
                "round": self.round,
                "start": self.round_start,
                "model": self.model.rounds_state(),
            },
            **self.trainer.extra_state,
        }
        save_checkpoint(self.trainer.checkpoint, state)
        self.saved_step = self.step
        self._last_saved = time.perf_counter()
        return state

    def restore(self) -> None:
        """Continue from the checkpoint file."""
        state = load_checkpoint(self.trainer.checkpoint, self.x.device)
        try:
            self.step = state["step"]
            self.seconds = state["seconds"]
            self.model.load_state_dict(state["model"])
            self.objective.load_state_dict(state["objective"])
            self.generator.set_state(state["generator"].cpu())
            self.pending = state["optimizer"]
            if "rounds" in state:
                rounds = state["rounds"]
                self.round, self.round_start = rounds["round"], rounds["start"]
                self.model.load_rounds_state(rounds["model"])
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{self.trainer.checkpoint} does not fit this run's config.yaml: {error}"
            ) from error
        self.saved_step = self.step
        self._logged_step, self._logged_seconds = self.step, self.seconds

    def _stop_or_save(self) -> None:
        due = time.perf_counter() - self._last_saved > self.config.checkpoint_seconds
        if self.unlogged is not None and (due or self.guard.received is not None):
            # a state that is no number any more must not replace the last good checkpoint
            self._require_finite(float(self.unlogged[0]), self.unlogged[1])
        if self.guard.received is not None:
            self.save()
            raise Interrupted(self.guard.received)
        if due:
            self.save()

    # -- monitoring -------------------------------------------------------------------------------

    def _require_finite(self, loss: float, parts: Mapping[str, Tensor]) -> None:
        """Raise DidNotConverge where the loss is not a number; the last checkpoint stays."""
        if math.isfinite(loss):
            return
        broken = [name for name, value in parts.items() if not math.isfinite(float(value))]
        what = f"its term {broken[0]} is not finite" if broken else "its terms are finite now"
        advice = (
            "lower the learning rates (optimizer.groups.*.lr) or use trainer.dtype=float64"
            if isinstance(self.optimizer, FirstOrder)
            else "use trainer.dtype=float64 or a larger likelihood.noise_variance"
        )
        kept = ""
        if self.saved_step is not None:
            kept = (
                f"; the checkpoint of step {self.saved_step} is kept in {self.trainer.checkpoint}"
            )
        raise DidNotConverge(f"the loss is {loss} at step {self.step}, {what}; {advice}{kept}")

    def _report(self, loss: float, parts: Mapping[str, Tensor], rates: Mapping[str, float]) -> None:
        self._require_finite(loss, parts)
        num_data = self.objective.num_data(self.x)
        steps = max(1, self.step - self._logged_step)
        progress = Progress(
            step=self.step,
            max_steps=self.max_steps,
            evidence_per_point=-loss,
            parts={name: float(value) / num_data for name, value in parts.items()},
            learning_rates=rates,
            seconds_per_step=(self.seconds - self._logged_seconds) / steps,
            seconds=self.seconds,
        )
        self._logged_step, self._logged_seconds = self.step, self.seconds
        for monitor in self.trainer.monitors:
            monitor.progress(progress, self.model)

    def _due(self, every: int | None) -> bool:
        interval = max(1, self.max_steps // 10) if every is None else every
        return interval > 0 and self.step % interval == 0 and self.step < self.max_steps

    def _report_metrics(self) -> None:
        metrics = self.evaluate()
        for monitor in self.trainer.monitors:
            monitor.metrics(self.step, metrics)

    # -- the two loops ----------------------------------------------------------------------------

    def run_first_order(self, optimizer: FirstOrder, resumed: bool) -> str:
        """Stochastic (or full-batch first-order) steps up to max_steps."""
        config, objective = self.config, self.objective
        optimizer.bind(self.model.parameter_groups(), config.max_steps, self.model)
        if resumed:
            optimizer.load_state_dict(self.pending)
        batches = None
        if objective.batching == "minibatch":
            n = self.x.shape[0]
            if config.batch_size > n and self.step == 0:
                self.trainer.say(
                    f"trainer.batch_size={config.batch_size} is above the {n} training rows: "
                    "every step takes all of them"
                )
            batches = Batches(n, config.batch_size, self.trainer.seed, self.x.device)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.x.device)
        summed = 0
        while self.step < config.max_steps:
            started = time.perf_counter()
            optimizer.before_step(self.step)
            if batches is None:
                x, y = self.x, self.y
            else:
                rows = batches.rows(self.step)
                objective.before_step(self.model, self.x, self.y, rows)
                x, y = self.x[rows], self.y[rows]
            evidence = objective.evidence(self.model, x, y, generator=self.generator)
            loss = -evidence.value / objective.num_data(x)
            loss.backward()
            optimizer.step(self.step)
            objective.after_step(self.model)
            self.step += 1
            loss_sum += loss.detach()
            summed += 1
            log = self.step % config.log_every == 0 or self.step in (1, config.max_steps)
            mean_loss = float(loss_sum) / summed if log else 0.0  # the only host synchronisation
            self.seconds += time.perf_counter() - started
            if log:
                self._report(mean_loss, evidence.parts, optimizer.learning_rates(self.step - 1))
                loss_sum.zero_()
                summed = 0
            if self._due(config.eval_every):
                self._report_metrics()
            self.unlogged = (loss_sum, evidence.parts)
            self._stop_or_save()
        optimizer.release()
        return f"max_steps={config.max_steps} steps done"

    def run_own_steps(self, optimizer: OwnSteps[Any]) -> str:
        """Steps that the optimiser makes itself; every one is finite before it may be saved."""
        if self.pending:
            optimizer.load_state_dict(self.pending)
        optimizer.bind(self.model, self.x, self.trainer.seed)
        self.max_steps = optimizer.max_steps(self.config.max_steps)
        while self.step < self.max_steps and not optimizer.converged:
            started = time.perf_counter()
            evidence = optimizer.step(self.step, self.x, self.y, generator=self.generator)
            self.step += 1
            loss = float(-evidence.value / self.objective.num_data(self.x))
            self._require_finite(loss, evidence.parts)
            self.seconds += time.perf_counter() - started
            last = optimizer.converged or self.step in (1, self.max_steps)
            if self.step % self.config.log_every == 0 or last:
                self._report(loss, evidence.parts, optimizer.learning_rates(self.step - 1))
            if self._due(self.config.eval_every):
                self._report_metrics()
            self._stop_or_save()
        optimizer.release()
        reason = f"{self.step} {optimizer.unit} done"
        if optimizer.outcome:
            reason += f", {optimizer.outcome}"
            self.trainer.say(reason)
        return reason

    def run_rounds(self, optimizer: LBFGSB) -> str:
        """L-BFGS-B, again from every new start that the model moves to.

        Round r of R ends at evaluation (r + 1) max_steps / R at the latest; a model that wants no
        further start may use what is left of max_steps.
        """
        if self.pending:
            optimizer.load_state_dict(self.pending)
        total, most = self.model.num_rounds, self.config.max_steps
        while True:
            last = self.round + 1 >= total
            budget = max(1, most * (self.round + 1) // total - self.round_start)
            try:
                reason = self.run_quasi_newton(optimizer, budget)
            except NotPositiveDefinite:
                if last:
                    raise
                reason = "the inducing points have no Cholesky factor"
            if self.step >= most:
                reason = f"max_steps={most} evaluations reached"
            ended = _flat(self.model)
            again = self.end_round(optimizer.lowest)
            unfinished = self.step - self.round_start >= budget and self.step < most
            if last or not (again or unfinished):
                return reason
            if again or not torch.equal(ended, _flat(self.model)):
                optimizer.forget()
                self.round_start = self.step
            self.round = self.round + 1 if again else total - 1
            self.save()

    def end_round(self, loss: float) -> bool:
        """Ask the model for another start."""
        started = time.perf_counter()
        generator = stream(self.trainer.seed, f"round {self.round}", self.x.device)
        self.model.note = ""
        again = self.model.next_round(self.x, self.y, loss, generator=generator)
        if self.model.note:
            self.trainer.say(f"step {self.step}: {self.model.note}")
        self.seconds += time.perf_counter() - started
        return again

    def run_quasi_newton(self, optimizer: LBFGSB, budget: int) -> str:
        """L-BFGS-B on a deterministic objective, ``budget`` evaluations at most."""
        parameters = [p for group in self.model.parameter_groups().values() for p in group]
        latest: list[Evidence] = []
        restored_seconds = self.seconds
        clock = time.perf_counter()

        def loss() -> Tensor:
            evidence = self.objective.evidence(self.model, self.x, self.y)
            latest[:] = [evidence]
            return -evidence.value / self.objective.num_data(self.x)

        def after_evaluation(count: int, value: float, replayed: bool) -> None:
            nonlocal clock
            self.step = self.round_start + count
            if replayed:
                clock = time.perf_counter()
                self.seconds = restored_seconds
                return
            self.seconds += time.perf_counter() - clock
            if count == 1 or self.step % self.config.log_every == 0:
                self._report(value, latest[0].parts, {})
            if self._due(self.config.eval_every):
                self._report_metrics()
            self._stop_or_save()
            clock = time.perf_counter()

        return optimizer.minimise(
            parameters,
            loss,
            budget,
            after_evaluation,
            after_iteration=lambda: self.objective.after_step(self.model),
            after_stall=lambda: self.objective.after_stall(self.model),
            lower=lower_limits(self.model, parameters),
        )


def _flat(model: Model) -> Tensor:
    """All parameters in one vector."""
    parts = [p.detach().reshape(-1) for group in model.parameter_groups().values() for p in group]
    return torch.cat(parts)
