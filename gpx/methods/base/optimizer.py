"""The contract of optimisers: each runs training itself, from the start or from a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gpx.constructed import Recorded
from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective

NOTHING_TRAINED = "every parameter is fixed: nothing to train"
"""Why training ends after one evidence."""


class Session(Protocol):
    """One run of training as an optimiser sees it; implemented in ``gpx.training.session``.

    Attributes:
        model, objective: what is trained.
        x (n, d), y (n,): all training data.
        seed: of the run.
        generator: for the objective's random draws.
        step: steps (or evaluations) done; the optimiser counts them.
        limit: steps asked for; ``max_steps``: steps of this run, as far as is known.
        batch_size: rows of a mini-batch.
        cuda_graphs: whether steps may be recorded and replayed on a GPU.
        seconds: training time so far; ``timed`` adds to it. seconds_of_start: the part of it before
            the first step.
        budget: seconds that training may take; None: no limit.
        out_of_time: whether the budget is used up or a monitor ended training, so that it ends at
            once; false before the first step.
        pending: state of the optimiser in the checkpoint of a resumed run; empty otherwise.
        resumed: whether there was a checkpoint.
        ended: why training has ended, in words; None while it goes on. An optimiser that could not
            find the end again from its state sets it; a resumed run is then only evaluated, unless
            it is given more steps or time.
        round, round_start: number of the current optimisation, and the step at which it began.
        unlogged: summed loss and parts of the steps since the last report, which are checked to be
            finite before a checkpoint is written.
    """

    model: Model
    objective: Objective
    x: Tensor
    y: Tensor
    seed: int
    generator: torch.Generator
    step: int
    limit: int
    max_steps: int
    batch_size: int
    cuda_graphs: bool
    seconds: float
    seconds_of_start: float
    budget: float | None
    pending: dict[str, Any]
    resumed: bool
    ended: str | None
    round: int
    round_start: int
    unlogged: tuple[Tensor, Mapping[str, Tensor]] | None

    @property
    def out_of_time(self) -> bool:
        """See the attributes."""

    def ended_in_time(self) -> str:
        """Report that training ends as ``out_of_time`` says; returns the reason in words."""

    def cut(self, what: str) -> None:
        """Record, for metrics.json, which part of the run ended early because of ``budget``."""

    def timed(self) -> AbstractContextManager[None]:
        """Context in which time counts as training time."""

    def say(self, line: str) -> None:
        """Print a line for the user."""

    def log_due(self, *, last: bool = False) -> bool:
        """Whether the step just made is to be reported."""

    def require_finite(self, loss: float, parts: Mapping[str, Tensor]) -> None:
        """Raise DidNotConverge if the loss is not finite; the last checkpoint stays."""

    def report(self, loss: float, parts: Mapping[str, Tensor], rates: Mapping[str, float]) -> None:
        """Report a step: loss in nats per point, parts in nats, learning rates by name."""

    def end_step(self) -> None:
        """Compute test metrics and write a checkpoint when due; raises Interrupted if stopped."""

    def end_round(self, loss: float) -> bool:
        """Call ``Model.next_round``; returns whether there is a new start to optimise from."""

    def save(self) -> dict[str, Any]:
        """Write a checkpoint now."""


class Optimizer(Recorded, ABC):
    """Trains a model: first order, quasi-Newton, or steps made for one kind of model.

    The order of calls: ``require_fit``, then ``run`` once, then ``evidence_at_end``.
    """

    advice = "use float64 or a larger noise variance"
    """What to try when the loss is not finite."""
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Likelihood,)
    """Likelihoods that it supports."""
    streams: bool = False
    """Whether it reads rows in batches, so that they may stay in files."""
    takes_priors = False
    """Whether it minimises ``Objective.loss``, which includes the model's priors."""
    ends_rounds = False
    """Whether it detects that an optimisation has ended and calls ``Model.next_round``."""

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """Raise ConfigError if this optimiser cannot train ``model`` on ``objective``.

        Default: checks priors, and that models of several rounds get an optimiser with
        ``ends_rounds``.
        """
        self.require_priors(model)
        if model.num_rounds > 1 and not self.ends_rounds:
            argument = model.rounds_argument
            raise ConfigError(
                f"{argument}={model.num_rounds - 1} needs optimizer=LBFGSB(), which knows when an "
                f"optimisation has ended; set {argument}=0"
            )

    def require_priors(self, model: Model) -> None:
        """Raise ConfigError for priors of ``model`` that training would ignore."""
        priors = getattr(
            model, "hyperpriors", None
        )  # the trainer also takes objects that are no Model
        if priors is not None:
            if not self.takes_priors:
                raise ConfigError(
                    f"{type(self).__name__} makes steps of its own, which know no priors of "
                    "hyperparameters: leave out priors, or choose an optimizer of the evidence"
                )
            trained = [p for group in model.parameter_groups().values() for p in group]
            priors.require(model, trained)

    def bounds_of_values(self) -> Mapping[str, tuple[float, float]]:
        """Lowest and largest value by dotted name of positive parameters, which the start keeps.

        Default: none.
        """
        return {}

    @abstractmethod
    def run(self, session: Session) -> str:
        """Train to the end, from ``session.pending`` if there was a checkpoint.

        Returns:
            why training stopped, in words.
        """

    def evidence_at_end(
        self,
        model: Model,
        objective: Objective,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator,
    ) -> Evidence:
        """Evidence over all training data x (n, d), y (n,), for metrics.json."""
        return objective.full_evidence(model, x, y, batch_size=batch_size, generator=generator)

    def finish(self) -> bool:
        """Drop state that only a resumed run needs; returns whether there was any."""
        return False

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """State that the next step needs beside that of model and objective."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Restore ``state_dict``."""
