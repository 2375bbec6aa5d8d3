"""SciPy's L-BFGS-B over parameters of a module, with exact resumption of stopped searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
        hooks = _Hooks(after_evaluation, after_iteration, after_stall, after_failure)
        path = _Path(
            self.record, parameters, loss, max_evaluations, hooks, lower, upper, self.memory
        )
        try:
            return self._follow(path)
        except BudgetSpent:
            return f"max_steps={max_evaluations} evaluations reached"
        finally:
            assign(parameters, torch.from_numpy(path.best_point))

    def _follow(self, path: _Path) -> str:
        """Search to the end, from every point where the search has to start again."""
        point = path.start
        if not any_free(path.parameters):
            path.evaluate(point)
            return NOTHING_TRAINED
        while True:
            try:
                result = scipy.optimize.minimize(
                    path.evaluate,
                    point,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=scipy.optimize.Bounds(path.lowest, path.highest)
                    if path.bounded
                    else None,
                    callback=path.end_iteration,
                    options={
                        "maxcor": self.memory,
                        "ftol": self.ftol,
                        "gtol": self.gtol,
                        "maxfun": path.max_evaluations + 1,
                        "maxiter": path.max_evaluations + 1,
                        "maxls": self.max_line_search,
                    },
                )
            except _BeyondLimit as stop:
                path.bounded, point = True, stop.nearest
            except _RecordFull:
                point = path.back_to_best()
                path.begin_record_at(point)
            else:
                reason = str(result.message)
                if STATIONARY in reason or not path.restarts_after_stall():
                    return reason
                point = path.back_to_best()

    def state_dict(self) -> dict[str, Any]:
        """The record."""
        return self.record.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``; the next ``minimise`` replays it first."""
        self.record = Record.of(state)


class _Hooks(NamedTuple):
    """What ``minimise`` calls, as it says there."""

    after_evaluation: Callable[[int, float, bool], None]
    after_iteration: Callable[[], None]
    after_stall: Callable[[], bool]
    after_failure: Callable[[], None]


class _Path:
    """The points of one ``minimise``: losses come from the record as long as it has them.

    Attributes:
        start (P,): where the search begins, within its limits.
        lowest, highest: limits of the points; ``bounded``: whether the search keeps them.
        best_loss, best_point (P,): lowest loss since the search last began, and where it was.
        most_recorded: number of evaluations that a record holds at the most.
    """

    def __init__(
        self,
        record: Record,
        parameters: Sequence[nn.Parameter],
        loss: Callable[[], Tensor],
        max_evaluations: int,
        hooks: _Hooks,
        lower: Sequence[float] | None,
        upper: Sequence[float] | None,
        memory: int,
    ) -> None:
        if record.start is None:
            record.start = values_of(parameters)
        trained = sum(parameter.numel() for parameter in parameters)
        if len(record.start) != trained:
            raise CheckpointError(
                f"the search of this checkpoint has {len(record.start)} numbers and the model "
                f"trains {trained} (fixed ones are not trained): this run cannot go on, start it "
                "anew"
            )
        self.record, self.parameters, self.loss = record, parameters, loss
        self.max_evaluations, self.hooks = max_evaluations, hooks
        self.recorded, self.restarts = record.evaluations, set(record.restarts)
        record.evaluations = []
        self.lowest = limits_of(parameters, lower)
        self.highest = np.inf if upper is None else limits_of(parameters, upper)
        begun = record.start.numpy()
        self.start = np.clip(begun, self.lowest, self.highest)
        moved = bool((self.start != begun).any())
        self.bounded = record.bounded or upper is not None or moved
        self.best_loss, self.best_point = np.inf, self.start.copy()
        self.most_recorded = max(RECORD_BYTES // (8 * max(1, trained)), MIN_RECORD * memory)

    @property
    def replays(self) -> bool:
        """Whether the record holds the next evaluation."""
        return len(self.record.evaluations) < len(self.recorded)

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss and gradient at a point, which are recorded."""
        count, replayed = self.record.count, self.replays
        if count >= self.max_evaluations:
            raise BudgetSpent
        checksum = float(np.sum(point))
        if replayed:
            recorded_sum, value, gradient = self.recorded[len(self.record.evaluations)]
            if recorded_sum != checksum:
                raise CheckpointError(
                    f"the run cannot be resumed exactly: evaluation {count} is at another "
                    "point than in the checkpoint (different data, versions, number of "
                    "threads, or options of the optimizer that lead it elsewhere)"
                )
        else:
            assign(self.parameters, torch.from_numpy(point))
            found = self._computed()
            if found is None:
                self.hooks.after_failure()
                # a high loss makes the line search step back
                failed = self.best_loss + 1e3 * (1.0 + abs(self.best_loss))
                found = failed, torch.zeros_like(values_of(self.parameters))
            value, gradient = found
        self.record.evaluations.append((checksum, value, gradient))
        if value < self.best_loss and bool((point >= self.lowest).all()):
            self.best_loss, self.best_point = value, point.copy()
        self.hooks.after_evaluation(count + 1, value, replayed)
        return value, gradient.numpy()

    def _computed(self) -> tuple[float, Tensor] | None:
        """Loss and gradient (P,); None at a trial point of a line search that has none.

        At the first point of a search there is nothing to step back to: what is raised there, or
        not finite, is the caller's.
        """
        first = self.best_loss == np.inf
        for parameter in self.parameters:
            parameter.grad = None
        try:
            value = self.loss()
            if value.requires_grad:
                value.backward()
        except (NotPositiveDefinite, DidNotConverge):
            if first:
                raise
            return None
        level, gradient = value_and_gradient(value, self.parameters)
        sharing().broadcast([level, gradient])
        if not first and not bool(level.isfinite() & gradient.isfinite().all()):
            return None
        return float(level), gradient

    def end_iteration(self, point: np.ndarray) -> None:
        """Called by SciPy with the point that a line search has reached."""
        if not self.bounded and bool((point < self.lowest).any()):
            raise _BeyondLimit(np.maximum(point, self.lowest))
        if not self.replays:  # otherwise the checkpoint has what follows
            assign(self.parameters, torch.from_numpy(point))
            self.hooks.after_iteration()
        if len(self.record.evaluations) >= self.most_recorded:
            raise _RecordFull

    def restarts_after_stall(self) -> bool:
        """Whether a search that has stopped early is to start again, as one of the record did."""
        count = self.record.count
        if count in self.restarts:
            return True
        if self.replays or not self.hooks.after_stall():
            return False
        self.record.restarts.append(count)
        return True

    def back_to_best(self) -> np.ndarray:
        """The best point, from which the search starts again; its loss is forgotten."""
        self.best_loss = np.inf
        return self.best_point.copy()

    def begin_record_at(self, point: np.ndarray) -> None:
        """Drop all recorded evaluations."""
        self.record.begin_at(point, self.bounded)
        self.recorded = []


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
