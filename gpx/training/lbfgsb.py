"""SciPy's L-BFGS-B over a model's parameters, with exact resumption of stopped runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn

from gpx.bounds import limits_within
from gpx.errors import CheckpointError, ConfigError, DidNotConverge, NotPositiveDefinite
from gpx.flat_parameters import assign, limits_of, value_and_gradient, values_of
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.optimizer import NOTHING_TRAINED, Optimizer, Session
from gpx.methods.base.replayed_step import ReplayedStep, worth_recording
from gpx.tensor_checks import check_at_least
from gpx.training.bounds import checked_bounds
from gpx.training.evaluation_record import Record

RECORD_BYTES = 2**26
"""Limit of the recorded gradients, but never fewer than ``MIN_RECORD`` times ``memory`` of them."""
MIN_RECORD = 5
STATIONARY = "GRADIENT"
"""Part of SciPy's message when it stopped because the gradient vanished."""


class LBFGSB(Optimizer):
    """Limited-memory quasi-Newton with a line search, for deterministic objectives.

    SciPy does not expose its state, so all losses and gradients are recorded, and a resumed run
    replays them through a fresh SciPy search. Once the gradients fill ``RECORD_BYTES``, search and
    record start again at the best point: with very many parameters the correction pairs are thus
    lost from time to time.

    ``lower`` limits take effect only when needed: the search is unbounded until an iteration ends
    beyond a limit, and then starts again from the nearest point within, with bounds. A run that
    never crosses a limit is bit for bit the unbounded one.

    Args:
        memory: number of correction pairs.
        ftol: stop when the relative decrease of the loss is below this.
        gtol: stop when the largest gradient entry is below this.
        max_line_search: limit of evaluations per line search.
        bounds: (name, lowest, largest) of positive parameters, in natural units, as in
            ``[("kernel.lengthscale", 0.1, 10.0)]``. No evaluation is then beyond any limit, and
            the start of a run keeps them too. Two equal numbers hold the parameter at that value.

    Raises:
        ConfigError: a count below 1, a negative tolerance, or bounds that are not a name and two
            numbers, the second not below the first and positive.
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
        bounds: Sequence[Any] = (),
    ) -> None:
        check_at_least(1, memory=memory, max_line_search=max_line_search)
        for name, tolerance in (("ftol", ftol), ("gtol", gtol)):
            if not 0.0 <= tolerance < math.inf:
                raise ConfigError(f"{name}={tolerance}: expected 0 or more")
        self.memory = memory
        self.ftol = ftol
        self.gtol = gtol
        self.max_line_search = max_line_search
        self.bounds = checked_bounds(bounds)
        self.record = Record()

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """As in ``Optimizer``: the objective must be deterministic, for the line search."""
        super().require_fit(model, objective, num_data, max_steps)
        if objective.batching == "minibatch":
            raise ConfigError(
                f"L-BFGS-B needs a deterministic objective and {type(objective).__name__} is "
                "stochastic; use a first-order optimizer"
            )
        limits_within(model, _trained(model), self.bounds)

    def bounds_of_values(self) -> dict[str, tuple[float, float]]:
        """As in ``Optimizer``."""
        return self.bounds

    def run(self, session: Session) -> str:
        """As in ``Optimizer``: one search from every start of the model.

        Round r of R ends at evaluation (r + 1) limit / R at the latest. If the model needs no
        further start, the last round may use all remaining evaluations.
        """
        if session.pending:
            self.load_state_dict(session.pending)
        if self.record.count == 0:  # new, or ended with fewer steps: its record was dropped
            session.round_start = session.step
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
            ended = values_of(_trained(session.model))
            if session.out_of_time and session.step < most:
                reason = session.ended_in_time()
                session.model.keep_best(self.record.lowest)
                finished, again = True, False
            else:
                again = session.end_round(self.record.lowest)
                unfinished = session.step - session.round_start >= budget and session.step < most
                finished = last or not (again or unfinished)
            if again or not torch.equal(ended, values_of(_trained(session.model))):
                self.record = Record()  # it is of another model than the next search begins with
                session.round_start = session.step
            if finished:
                session.ended = reason  # a resumed run cannot find the end of this round again
                return reason
            session.round = session.round + 1 if again else total - 1
            session.save()

    def _run_round(self, session: Session, budget: int) -> str:
        """One search of at most ``budget`` evaluations; returns why it stopped."""
        parameters = _trained(session.model)
        recorded = _recorded(session, parameters)
        latest: list[Mapping[str, Tensor]] = []
        restored_seconds = session.seconds
        clock = time.perf_counter()

        def loss() -> Tensor:
            latest.clear()  # stays empty at a point of the line search without a value
            if recorded is None:
                value, parts = _loss(session, session.x, session.y)
            else:
                value, parts = recorded(session.x, session.y)
            latest.append(parts)
            return value

        def after_evaluation(count: int, value: float, replayed: bool) -> None:
            nonlocal clock
            session.step = session.round_start + count
            if replayed:
                clock = time.perf_counter()
                session.seconds = restored_seconds
                return
            session.seconds += time.perf_counter() - clock
            if latest and (count == 1 or session.log_due()):
                session.report(value, latest[0], {})
            session.end_step()
            if session.out_of_time:
                raise _BudgetSpent
            clock = time.perf_counter()

        lower, upper = limits_within(session.model, parameters, self.bounds)
        return self.minimise(
            parameters,
            loss,
            budget,
            after_evaluation,
            after_iteration=lambda: session.objective.after_step(session.model),
            after_stall=lambda: session.objective.after_stall(session.model),
            after_failure=latest.clear,  # its evidence is none of the run's
            lower=lower,
            upper=upper if self.bounds else None,
        )

    def minimise(
        self,
        parameters: Sequence[nn.Parameter],
        loss: Callable[[], Tensor],
        max_evaluations: int,
        after_evaluation: Callable[[int, float, bool], None],
        after_iteration: Callable[[], None] = lambda: None,
        after_stall: Callable[[], bool] = lambda: False,
        after_failure: Callable[[], None] = lambda: None,
        lower: Sequence[float] | None = None,
        upper: Sequence[float] | None = None,
    ) -> str:
        """Minimise ``loss`` over ``parameters``, which are set to the best point seen.

        Args:
            parameters: to optimise.
            loss: closure giving the scalar loss at the current parameters, with a graph; without
                one if it has left the gradients in the parameters.
            max_evaluations: stop after exactly this many.
            after_evaluation: called with (evaluations so far, loss, whether it was replayed); may
                raise to stop the run (``_BudgetSpent`` ends it as reaching the limit does).
            after_iteration: called at the end of every iteration.
            after_stall: called when the search stopped although the gradient has not vanished (the
                loss no longer falls, or a line search failed). It may make the loss more accurate
                and return True; the search then starts again from the best point.
            after_failure: called, before ``after_evaluation``, for a trial of a line search whose
                loss or gradient cannot be computed or is not finite.
            lower: lower limit for each parameter (``gpx.bounds.lower_limits``), or None. A
                line search may try points beyond a limit, but no iteration starts there.
            upper: upper limit for each parameter, or None. With these every point is within.

        Returns:
            why it stopped, in words.

        Raises:
            CheckpointError: a recorded run does not replay (other data, code or thread count), or
                is of another number of parameters.
        """
        record = self.record
        if record.start is None:
            record.start = values_of(parameters)
        trained = sum(parameter.numel() for parameter in parameters)
        if len(record.start) != trained:
            raise CheckpointError(
                f"the search of this checkpoint has {len(record.start)} numbers and the model "
                f"trains {trained} (fixed ones are not trained): this run cannot go on, start it "
                "anew"
            )
        recorded, restarts = record.evaluations, set(record.restarts)
        record.evaluations = []
        limits = limits_of(parameters, lower)
        highest = np.inf if upper is None else limits_of(parameters, upper)
        start = np.clip(record.start.numpy(), limits, highest)
        bounded = record.bounded or upper is not None or bool((start != record.start.numpy()).any())
        best_loss, best_point = np.inf, start.copy()
        most = max(RECORD_BYTES // (8 * max(1, start.size)), MIN_RECORD * self.memory)

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
                        f"the run cannot be resumed exactly: evaluation {count} is at another "
                        "point than in the checkpoint (different data, versions, number of "
                        "threads, or options of the optimizer that lead it elsewhere)"
                    )
                value, gradient = recorded[place][1], recorded[place][2]
            else:
                assign(parameters, torch.from_numpy(point))
                found = self._evaluate(parameters, loss, first=best_loss == np.inf)
                if found is None:
                    after_failure()
                    # a high loss makes the line search step back
                    failed = best_loss + 1e3 * (1.0 + abs(best_loss))
                    found = failed, torch.zeros_like(values_of(parameters))
                value, gradient = found
            record.evaluations.append((checksum, value, gradient))
            if value < best_loss and bool((point >= limits).all()):
                best_loss, best_point = value, point.copy()
            after_evaluation(count + 1, value, replayed)
            return value, gradient.numpy()

        def end_iteration(point: np.ndarray) -> None:
            if not bounded and bool((point < limits).any()):
                raise _BeyondLimit(np.maximum(point, limits))
            if len(record.evaluations) >= len(recorded):  # not in a replay: the checkpoint has it
                assign(parameters, torch.from_numpy(point))
                after_iteration()
            if len(record.evaluations) >= most:
                raise _RecordFull

        def restart_after_stall() -> bool:
            count = record.count
            if count in restarts:
                return True
            if len(record.evaluations) < len(recorded) or not after_stall():
                return False
            record.restarts.append(count)
            return True

        try:
            point = start
            if not _any_free(parameters):
                evaluate(point)
                return NOTHING_TRAINED
            while True:
                try:
                    result = scipy.optimize.minimize(
                        evaluate,
                        point,
                        jac=True,
                        method="L-BFGS-B",
                        bounds=scipy.optimize.Bounds(limits, highest) if bounded else None,
                        callback=end_iteration,
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
                if STATIONARY in reason or not restart_after_stall():
                    break
                point, best_loss = best_point.copy(), np.inf
        except _BudgetSpent:
            reason = f"max_steps={max_evaluations} evaluations reached"
        finally:
            assign(parameters, torch.from_numpy(best_point))
        return reason

    @staticmethod
    def _evaluate(
        parameters: Sequence[nn.Parameter], loss: Callable[[], Tensor], *, first: bool
    ) -> tuple[float, Tensor] | None:
        """Loss and gradient (P,); None at a trial point of a line search that has none.

        At the ``first`` of a search there is nothing to step back to: what is raised there, or not
        finite, is the caller's.
        """
        for parameter in parameters:
            parameter.grad = None
        try:
            value = loss()
            if value.requires_grad:
                value.backward()
        except (NotPositiveDefinite, DidNotConverge):
            if first:
                raise
            return None
        level, gradient = value_and_gradient(value, parameters)
        sharing().broadcast([level, gradient])
        if not first and not bool(level.isfinite() & gradient.isfinite().all()):
            return None
        return float(level), gradient

    def finish(self) -> bool:
        """As in ``Optimizer``: drops the record."""
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
    """Evaluations or time are spent. SciPy itself would finish the line search first."""


class _RecordFull(Exception):
    """The recorded gradients have reached their limit of memory."""


class _BeyondLimit(Exception):
    """An iteration of the unbounded search ended beyond a limit."""

    def __init__(self, nearest: np.ndarray) -> None:
        super().__init__()
        self.nearest = nearest


def _loss(session: Session, x: Tensor, y: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss () with its graph, and the parts of the evidence."""
    evidence = session.objective.evidence(session.model, x, y)
    return session.objective.loss(evidence, session.model, x), evidence.parts


def _recorded(session: Session, parameters: Sequence[nn.Parameter]) -> ReplayedStep | None:
    """Loss and gradient replayed from a CUDA graph; None where they run as they are."""
    model, objective = session.model, session.objective
    if not (session.cuda_graphs and worth_recording(objective, model, len(session.x))):
        return None
    if sharing().count > 1 or not _any_free(parameters):
        return None
    evaluate = partial(_loss, session)
    return ReplayedStep(evaluate, parameters, owners=(model, objective), state=objective)


def _trained(model: Model) -> list[nn.Parameter]:
    return [p for group in model.parameter_groups().values() for p in group]


def _any_free(parameters: Sequence[nn.Parameter]) -> bool:
    return any(parameter.requires_grad for parameter in parameters)
