"""What an optimiser is: it runs itself, from the first step or a checkpoint to its own end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective


class Session(Protocol):
    """One stretch of training, as an optimiser sees it; ``gpx.training.session`` has the real one.

    Attributes:
        model, objective: what is trained.
        x (n, d), y (n,): all training data.
        seed: of the run.
        generator: of the objective's own draws.
        step: steps (or evaluations) done; the optimiser counts them.
        limit: steps asked for; ``max_steps``: steps of this run, as far as is known.
        batch_size: rows of a mini-batch.
        cuda_graphs: whether steps may be recorded and replayed on a GPU.
        seconds: training time so far; ``timed`` adds to it. seconds_of_start: share of it before
            the first step.
        budget: seconds that training may take; None: any.
        out_of_time: whether these have passed, so that training ends at once; false before the
            first step.
        pending: state of the optimiser in the checkpoint that is gone on from; empty otherwise.
        resumed: whether there was a checkpoint.
        round, round_start: which optimisation in a row this is, and the step it began at.
        unlogged: summed loss and parts of steps since the last report, to be looked at before they
            are saved.
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
    round: int
    round_start: int
    unlogged: tuple[Tensor, Mapping[str, Tensor]] | None

    @property
    def out_of_time(self) -> bool:
        """See the attributes."""

    def ended_in_time(self) -> str:
        """Says that training ends for ``budget``; the reason in words."""

    def cut(self, what: str) -> None:
        """Told of a part of the run that ends early for ``budget``, in words; for metrics.json."""

    def timed(self) -> AbstractContextManager[None]:
        """What happens inside counts as training time."""

    def say(self, line: str) -> None:
        """A line for the user."""

    def log_due(self, *, last: bool = False) -> bool:
        """Whether the step that has just been made is to be reported."""

    def require_finite(self, loss: float, parts: Mapping[str, Tensor]) -> None:
        """Raise DidNotConverge where the loss is no number; the last checkpoint stays."""

    def report(self, loss: float, parts: Mapping[str, Tensor], rates: Mapping[str, float]) -> None:
        """Tell the watchers: loss in nats per point, parts in nats."""

    def end_step(self) -> None:
        """Test metrics and a checkpoint where they are due; raises Interrupted when stopped."""

    def end_round(self, loss: float) -> bool:
        """Ask the model for another start; whether it is at one."""

    def save(self) -> dict[str, Any]:
        """Write a checkpoint now."""


class Optimizer(ABC):
    """First order, quasi-Newton, or steps made for one kind of model.

    The order of calls: ``require_fit``, then ``run`` once, then ``evidence_at_end``.
    """

    advice = "use float64 or a larger noise variance"
    """What to try when the loss is no number any more."""
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Likelihood,)
    """Likelihoods of the models that it trains."""
    streams: bool = False
    """Whether it asks for a few rows at a time, so that they may lie in files."""
    takes_priors = False
    """Whether it minimises ``Objective.loss``, which counts the model's priors in."""
    ends_rounds = False
    """Whether it knows when an optimisation has ended, so that a model can move to a new start."""

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """Raise ConfigError, in one sentence, where this cannot train that.

        Default: a model of several optimisations in a row needs to be told when one has ended.
        """
        self.require_priors(model)
        if model.num_rounds > 1 and not self.ends_rounds:
            argument = model.rounds_argument
            raise ConfigError(
                f"{argument}={model.num_rounds - 1} needs optimizer=LBFGSB(), which knows when an "
                f"optimisation has ended; set {argument}=0"
            )

    def require_priors(self, model: Model) -> None:
        """Raise ConfigError for priors of ``model`` that would not count, as it is settled now."""
        priors = getattr(model, "hyperpriors", None)  # the trainer takes stand-ins for a model
        if priors is not None:
            if not self.takes_priors:
                raise ConfigError(
                    f"{type(self).__name__} makes steps of its own, which know no priors of "
                    "hyperparameters: leave out priors, or choose an optimizer of the evidence"
                )
            trained = [p for group in model.parameter_groups().values() for p in group]
            priors.require(model, trained)

    @abstractmethod
    def run(self, session: Session) -> str:
        """Train to the end, from ``session.pending`` where there was a checkpoint.

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
        """Evidence over all training data x (n, d), y (n,), for the record."""
        return objective.full_evidence(model, x, y, batch_size=batch_size, generator=generator)

    def finish(self) -> bool:
        """Drop what only a run that goes on would need; whether there was any. Default: nothing."""
        return False

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next step needs that model and objective do not hold."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Restore ``state_dict``."""
