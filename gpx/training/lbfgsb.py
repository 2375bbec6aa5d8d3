"""SciPy's L-BFGS-B over a model's parameters, resumable although SciPy hides its state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn

from gpx.constraints import lower_limits
from gpx.errors import CheckpointError, ConfigError, DidNotConverge, NotPositiveDefinite
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.optimizer import Optimizer, Session
from gpx.training.evaluation_record import Record
from gpx.training.flat_parameters import assign, limits_of, value_and_gradient, values_of

RECORD_BYTES = 2**26
"""Of recorded gradients, at most; but at least ``LEAST_RECORD`` times the memory of them."""
LEAST_RECORD = 5

STATIONARY = "GRADIENT"
"""In SciPy's message when it stopped because the gradient vanished."""


class LBFGSB(Optimizer):
    """Limited-memory quasi-Newton with a line search, for deterministic objectives.

    A run is stopped and resumed exactly by replaying its record through a fresh SciPy run. Where
    the gradients fill ``RECORD_BYTES``, the search begins anew at the best point and the record
    with it: runs of many parameters forget their correction pairs once in some hundred evaluations.

    ``lower`` limits of the parameters come in when they are needed: the search is without bounds
    until an iteration ends beyond one, and from there on, starting at the limit, within them. A run
    that stays inside walks the path of one without limits bit for bit.

    Args:
        memory: number of correction pairs.
        ftol: stop when the loss (nats per point) falls by less than this, relative to its size.
        gtol: stop when the largest gradient entry is below this.
        max_line_search: evaluations per line search at most.

    Raises:
        ConfigError: a count below 1 or a negative tolerance.
    """

    advice = "use trainer.dtype=float64 or a larger likelihood.noise_variance"
    ends_rounds = True
    takes_priors = True

    def __init__(
        self,
        memory: int = 10,
        ftol: float = 1e-10,
        gtol: float = 1e-7,
        max_line_search: int = 20,
    ) -> None:
        for name, count in (("memory", memory), ("max_line_search", max_line_search)):
            if count < 1:
                raise ConfigError(f"optimizer.{name}={count}: expected at least 1")
        for name, tolerance in (("ftol", ftol), ("gtol", gtol)):
            if not 0.0 <= tolerance < math.inf:
                raise ConfigError(f"optimizer.{name}={tolerance}: expected 0 or more")
        self.memory = memory
        self.ftol = ftol
        self.gtol = gtol
        self.max_line_search = max_line_search
        self.record = Record()

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """As in ``Optimizer``: the line search compares values of one function."""
        super().require_fit(model, objective, num_data, max_steps)
        if objective.batching == "minibatch":
            raise ConfigError(
                f"L-BFGS-B needs a deterministic objective and {type(objective).__name__} is "
                "stochastic; use a first-order optimizer"
            )

    def run(self, session: Session) -> str:
        """As in ``Optimizer``: again from every new start that the model moves to.

        Round r of R ends at evaluation (r + 1) limit / R at the latest; a model that wants no
        further start may use what is left of the limit.
        """
        if session.pending:
            self.load_state_dict(session.pending)
        total, most = session.model.num_rounds, session.limit
        while True:
            last = session.round + 1 >= total
            budget = max(1, most * (session.round + 1) // total - session.round_start)
            try:
                reason = self._run_round(session, budget)
            except NotPositiveDefinite:
                if last:
                    raise
                reason = "the model's matrix has no Cholesky factor"
            if session.step >= most:
                reason = f"max_steps={most} evaluations reached"
            elif session.out_of_time:
                return session.ended_in_time()
            ended = values_of(_trained(session.model))
            again = session.end_round(self.record.lowest)
            unfinished = session.step - session.round_start >= budget and session.step < most
            if last or not (again or unfinished):
                return reason
            if again or not torch.equal(ended, values_of(_trained(session.model))):
                self.record = Record()
                session.round_start = session.step
            session.round = session.round + 1 if again else total - 1
            session.save()

    def _run_round(self, session: Session, budget: int) -> str:
        """One optimisation of ``budget`` evaluations at most."""
        parameters = _trained(session.model)
        latest: list[Evidence] = []
        restored_seconds = session.seconds
        clock = time.perf_counter()

        def loss() -> Tensor:
            evidence = session.objective.evidence(session.model, session.x, session.y)
            latest[:] = [evidence]
            return session.objective.loss(evidence, session.model, session.x)

        def after_evaluation(count: int, value: float, replayed: bool) -> None:
            nonlocal clock
            session.step = session.round_start + count
            if replayed:
                clock = time.perf_counter()
                session.seconds = restored_seconds
                return
            session.seconds += time.perf_counter() - clock
            if count == 1 or session.log_due():
                session.report(value, latest[0].parts, {})
            session.end_step()
            if session.out_of_time:
                raise _BudgetSpent
            clock = time.perf_counter()

        return self.minimise(
            parameters,
            loss,
            budget,
            after_evaluation,
            after_iteration=lambda: session.objective.after_step(session.model),
            after_stall=lambda: session.objective.after_stall(session.model),
            lower=lower_limits(session.model, parameters),
        )

    def minimise(
        self,
        parameters: Sequence[nn.Parameter],
        loss: Callable[[], Tensor],
        max_evaluations: int,
        after_evaluation: Callable[[int, float, bool], None],
        after_iteration: Callable[[], None] = lambda: None,
        after_stall: Callable[[], bool] = lambda: False,
        lower: Sequence[float] | None = None,
    ) -> str:
        """Minimise ``loss`` over ``parameters``; they end at the best point seen.

        Args:
            parameters: what to move.
            loss: closure giving the scalar loss at the current parameters, with a graph.
            max_evaluations: stop after this many (exactly: the best point so far is kept).
            after_evaluation: called with (evaluations so far, loss, whether it was replayed);
                may raise to stop the run (``_BudgetSpent``: where it is).
            after_iteration: called when an iteration has ended at a new point.
            after_stall: called when the loss no longer falls, or a line search failed, where the
                gradient has not vanished; true when the loss was changed so that it is worth while
                to start again from the best point.
            lower: least value of the entries of each parameter (``gpx.constraints.lower_limits``);
                None for no limits. A line search may try points beyond, no iteration starts there.

        Returns:
            why it stopped, in words.

        Raises:
            CheckpointError: a recorded run does not replay (other data, code or thread count).
        """
        record = self.record
        if record.start is None:
            record.start = values_of(parameters)
        recorded, restarts = record.evaluations, set(record.restarts)
        record.evaluations = []
        limits = limits_of(parameters, lower)
        start = np.maximum(record.start.numpy(), limits)
        bounded = record.bounded or bool((start != record.start.numpy()).any())
        best_loss, best_point = np.inf, start.copy()
        most = max(RECORD_BYTES // (8 * max(1, start.size)), LEAST_RECORD * self.memory)

        def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best_loss, best_point
            place, count = len(record.evaluations), record.count
            if count >= max_evaluations:
                raise _BudgetSpent
            checksum = float(np.sum(point))
            replayed = place < len(recorded)
            if replayed:
                if recorded[place][0] != checksum:
                    raise CheckpointError(
                        f"the recorded run cannot be continued exactly: evaluation {count} went to "
                        "another point (different data, versions or thread count)"
                    )
                value, gradient = recorded[place][1], recorded[place][2]
            else:
                assign(parameters, torch.from_numpy(point))
                value, gradient = self._evaluate(parameters, loss, count, best_loss)
            record.evaluations.append((checksum, value, gradient))
            if value < best_loss and bool((point >= limits).all()):
                best_loss, best_point = value, point.copy()
            after_evaluation(count + 1, value, replayed)
            return value, gradient.numpy()

        def iterated(point: np.ndarray) -> None:
            if not bounded and bool((point < limits).any()):
                raise _BeyondLimit(np.maximum(point, limits))
            if len(record.evaluations) >= len(recorded):  # before, the loss's own state knows of it
                assign(parameters, torch.from_numpy(point))
                after_iteration()
            if len(record.evaluations) >= most:
                raise _RecordFull

        def again() -> bool:
            count = record.count
            if count in restarts:
                return True
            if len(record.evaluations) < len(recorded) or not after_stall():
                return False
            record.restarts.append(count)
            return True

        try:
            point = start
            while True:
                try:
                    result = scipy.optimize.minimize(
                        evaluate,
                        point,
                        jac=True,
                        method="L-BFGS-B",
                        bounds=scipy.optimize.Bounds(limits, np.inf) if bounded else None,
                        callback=iterated,
                        options={
                            "maxcor": self.memory,
                            "ftol": self.ftol,
                            "gtol": self.gtol,
                            "maxfun": max_evaluations + 1,
                            "maxiter": max_evaluations + 1,
                            "maxls": self.max_line_search,
                        },
                    )
                except _BeyondLimit as stop:
                    bounded, point = True, stop.nearest
                    continue
                except _RecordFull:
                    point, best_loss = best_point.copy(), np.inf
                    record.begin_at(point, bounded)
                    recorded = []
                    continue
                reason = str(result.message)
                if STATIONARY in reason or not again():
                    break
                point, best_loss = best_point.copy(), np.inf
        except _BudgetSpent:
            reason = f"max_steps={max_evaluations} evaluations reached"
        finally:
            assign(parameters, torch.from_numpy(best_point))
        return reason

    @staticmethod
    def _evaluate(
        parameters: Sequence[nn.Parameter], loss: Callable[[], Tensor], count: int, best: float
    ) -> tuple[float, Tensor]:
        for parameter in parameters:
            parameter.grad = None
        try:
            value = loss()
            value.backward()
        except (NotPositiveDefinite, DidNotConverge):
            # A trial point of the line search outside the numerically feasible set: a high wall
            # makes the search step back. At the starting point there is nowhere to step back to.
            if count == 0:
                raise
            return best + 1e3 * (1.0 + abs(best)), torch.zeros_like(values_of(parameters))
        level, gradient = value_and_gradient(value, parameters)
        sharing().broadcast([level, gradient])
        return float(level), gradient

    def finish(self) -> bool:
        """As in ``Optimizer``: the record, of a gradient for every evaluation."""
        found = self.record.count > 0
        self.record = Record()
        return found

    def state_dict(self) -> dict[str, Any]:
        """The record."""
        return self.record.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``; the next ``minimise`` replays it first."""
        self.record = Record.of(state)


class _BudgetSpent(Exception):
    """SciPy has no exact limit on evaluations or time (a line search runs to its end); this is
    one."""


class _RecordFull(Exception):
    """The gradients of the record take what they may."""


class _BeyondLimit(Exception):
    """An iteration without bounds ended beyond a limit."""

    def __init__(self, nearest: np.ndarray) -> None:
        super().__init__()
        self.nearest = nearest


def _trained(model: Model) -> list[nn.Parameter]:
    return [p for group in model.parameter_groups().values() for p in group]
