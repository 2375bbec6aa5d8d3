"""SciPy's L-BFGS-B over parameters of a module, with exact resumption of stopped searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn

from gpx.errors import CheckpointError, DidNotConverge, NotPositiveDefinite
from gpx.flat_parameters import assign, limits_of, value_and_gradient, values_of
from gpx.linalg.processes import sharing
from gpx.methods.base.optimizer import NOTHING_TRAINED
from gpx.tensor_checks import check_at_least, check_not_negative
from gpx.training.evaluation_record import Record

RECORD_BYTES = 2**26
"""Limit of the recorded gradients, but never fewer than ``MIN_RECORD`` times ``memory`` of them."""
MIN_RECORD = 5
STATIONARY = "GRADIENT"
"""Part of SciPy's message when it stopped because the gradient vanished."""


class ResumableSearch:
    """A search by SciPy's L-BFGS-B that goes on bit for bit where it was stopped.

    SciPy does not expose its state, so all losses and gradients are recorded, and a resumed search
    replays them through a fresh one. Once the gradients fill ``RECORD_BYTES``, search and record
    start again at the best point: with very many parameters the correction pairs are thus lost from
    time to time.

    ``lower`` limits take effect only when needed: the search is unbounded until an iteration ends
    beyond a limit, and then starts again from the nearest point within, with bounds. A run that
    never crosses a limit is bit for bit the unbounded one.

    Args:
        memory: number of correction pairs.
        ftol: stop when the relative decrease of the loss is below this.
        gtol: stop when the largest gradient entry is below this.
        max_line_search: limit of evaluations per line search.

    Raises:
        ConfigError: a count below 1, or a tolerance that is negative or infinite.
    """

    def __init__(
        self,
        memory: int = 10,
        ftol: float = 1e-10,
        gtol: float = 1e-7,
        max_line_search: int = 20,
    ) -> None:
        check_at_least(1, memory=memory, max_line_search=max_line_search)
        check_not_negative(finite=True, ftol=ftol, gtol=gtol)
        self.memory = memory
        self.ftol = ftol
        self.gtol = gtol
        self.max_line_search = max_line_search
        self.record = Record()

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
                raise to stop the run (``BudgetSpent`` ends it as reaching the limit does).
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
                raise BudgetSpent
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
            if not any_free(parameters):
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
        except BudgetSpent:
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

    def state_dict(self) -> dict[str, Any]:
        """The record."""
        return self.record.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``; the next ``minimise`` replays it first."""
        self.record = Record.of(state)


class BudgetSpent(Exception):
    """Evaluations or time are spent. SciPy itself would finish the line search first."""


class _RecordFull(Exception):
    """The recorded gradients have reached their limit of memory."""


class _BeyondLimit(Exception):
    """An iteration of the unbounded search ended beyond a limit."""

    def __init__(self, nearest: np.ndarray) -> None:
        super().__init__()
        self.nearest = nearest


def any_free(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether any of the parameters is trained."""
    return any(parameter.requires_grad for parameter in parameters)
