"""SciPy's L-BFGS-B over a model's parameters, with exact resumption of stopped runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpx.bounds import limits_within
from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.flat_parameters import values_of
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.optimizer import Optimizer, Session
from gpx.methods.base.replayed_step import ReplayedStep, worth_recording
from gpx.training.bounds import checked_bounds
from gpx.training.evaluation_record import Record
from gpx.training.resumable_search import BudgetSpent, ResumableSearch, any_free


class LBFGSB(ResumableSearch, Optimizer):
    """Limited-memory quasi-Newton with a line search, for deterministic objectives.

    Stopped runs go on bit for bit (``ResumableSearch``).

    Args:
        memory: number of correction pairs.
        ftol: stop when the relative decrease of the loss is below this.
        gtol: stop when the largest gradient entry is below this.
        max_line_search: limit of evaluations per line search.
        bounds: (name, lowest, largest) of positive parameters, in natural units, as in
            ``[("kernel.lengthscale", 0.1, 10.0)]``. No evaluation is then beyond any limit, and
            the start of a run keeps them too. Two equal numbers hold the parameter at that value.

    Raises:
        ConfigError: a count below 1, a negative or infinite tolerance, or bounds that are not a
            name and two numbers, the second not below the first and positive.
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
        super().__init__(memory, ftol, gtol, max_line_search)
        self.bounds = checked_bounds(bounds)

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
                raise BudgetSpent
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

    def finish(self) -> bool:
        """As in ``Optimizer``: drops the record."""
        found = self.record.count > 0
        self.record = Record()
        return found


def _loss(session: Session, x: Tensor, y: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss () with its graph, and the parts of the evidence."""
    evidence = session.objective.evidence(session.model, x, y)
    return session.objective.loss(evidence, session.model, x), evidence.parts


def _recorded(session: Session, parameters: Sequence[nn.Parameter]) -> ReplayedStep | None:
    """Loss and gradient replayed from a CUDA graph; None where they run as they are."""
    model, objective = session.model, session.objective
    if not (session.cuda_graphs and worth_recording(objective, model, len(session.x))):
        return None
    if sharing().count > 1 or not any_free(parameters):
        return None
    evaluate = partial(_loss, session)
    return ReplayedStep(evaluate, parameters, owners=(model, objective), state=objective)


def _trained(model: Model) -> list[nn.Parameter]:
    return [p for group in model.parameter_groups().values() for p in group]
