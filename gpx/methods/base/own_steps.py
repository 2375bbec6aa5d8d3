"""What an optimiser is that makes its own steps, and follows no gradient of an objective."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.optimizer import Optimizer, Session

ModelT = TypeVar("ModelT", bound=Model)
PREPARING = 0.5
"""Share of the time of training after which burn-in ends early."""


class OwnSteps(Optimizer, Generic[ModelT]):
    """Steps made for one kind of model: block solves, proposals of a chain, functions to take in.

    The order of calls: ``check`` and ``check_limit``; then ``run``: ``load_state_dict`` when a run
    goes on, ``bind``, ``max_steps``, ``step`` until that many are done or ``converged``,
    ``release``; at last ``final_evidence``.
    """

    unit: ClassVar[str]
    """What a step is, for people."""
    purpose: ClassVar[str]
    """What the steps do to which models, for people."""
    model_type: type[ModelT]
    """The models that these steps train."""
    model: ModelT
    """The one they are bound to."""
    converged = False
    """Whether the last step ended the run; only steps that solve to a tolerance know."""
    restored = False
    """Whether a state was loaded that ``bind`` has still to take up: what a run of another model
    left is none."""
    _frozen: tuple[nn.Parameter, ...] = ()

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """As in ``Optimizer``."""
        super().require_fit(model, objective, num_data, max_steps)
        self.check(model, num_data)
        self.check_limit(max_steps)

    def run(self, session: Session) -> str:
        """As in ``Optimizer``; every step is finite before it may be saved."""
        if session.pending:
            self.load_state_dict(session.pending)
        assert isinstance(session.model, self.model_type)  # ``check`` has passed
        self.bind(session.model, session.x, session.seed)
        session.limit = session.max_steps = self.max_steps(session.limit)
        spent = late = False
        try:
            while session.step < session.max_steps and not self.converged and not spent:
                with session.timed():
                    evidence = self.step(
                        session.step, session.x, session.y, generator=session.generator
                    )
                    session.step += 1
                    loss = float(-evidence.value / session.objective.num_data(session.x))
                    session.require_finite(loss, evidence.parts)
                if session.log_due(last=self.converged):
                    session.report(loss, evidence.parts, self.learning_rates(session.step - 1))
                session.end_step()
                self._look_at_clock(session)
                spent = session.out_of_time and self.serves(session.step)
                if session.out_of_time and not spent and not late:
                    late = True
                    session.say(
                        f"the seconds of training are spent after {session.step} {self.unit}, and "
                        "there is nothing to predict with yet: it goes on until there is"
                    )
        finally:
            self.release()
        reason = f"{session.step} {self.unit} done"
        if spent and not self.converged and session.step < session.max_steps:
            return session.ended_in_time()
        if self.outcome:
            reason += f", {self.outcome}"
            session.say(reason)
        return reason

    def _look_at_clock(self, session: Session) -> None:
        """Bring the end of a preparation forward where it would take all the time there is."""
        start, budget = session.seconds_of_start, session.budget
        if budget is None or self.serves(session.step):
            return
        if session.seconds >= start + PREPARING * (budget - start):
            ended = self.hurry(session.step, session.max_steps)
            if ended:
                session.cut(ended)

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
        """As in ``Optimizer``: these steps have it at hand."""
        return self.final_evidence(x, y, generator=generator)

    def check(self, model: Model, num_data: int) -> None:
        """Raise ConfigError, in one sentence, when the steps do not fit ``model`` or the data."""
        if not isinstance(model, self.model_type):
            raise ConfigError(
                f"optimizer={type(self).__name__}() {self.purpose}, got {type(model).__name__}; "
                "choose another optimizer="
            )
        self.check_fit(model, num_data)

    def check_fit(self, model: ModelT, num_data: int) -> None:
        """``check``, for a model of the right type. Default: nothing more is asked."""

    def check_limit(self, limit: int) -> None:
        """Raise ConfigError when ``limit`` steps (the run's ``max_steps``) are too few for use."""

    def serves(self, step: int) -> bool:
        """Whether there is something to predict with after ``step`` steps. Default: always."""
        return True

    def hurry(self, step: int, limit: int) -> str:
        """End what is done before there is something to predict with, such as burn-in.

        Called after ``step`` of ``limit`` steps that took half of the time there is, where they do
        not serve yet; more than once. What it changes is part of ``state_dict``.

        Returns:
            what ends early, for people; empty where nothing more can. Default: nothing.
        """
        return ""

    @abstractmethod
    def bind(self, model: ModelT, x: Tensor, seed: int) -> None:
        """Attach to a model and all training inputs x (n, d); ``check`` has passed.

        Args:
            model: trained in place from here on.
            x (n, d): on the model's device.
            seed: of the run.
        """

    def max_steps(self, limit: int) -> int:
        """Steps of the run, after ``bind`` and ``check_limit``. Default: ``limit``, the most."""
        return limit

    @abstractmethod
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Make one step and return the evidence afterwards.

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: of what is drawn.
        """

    @abstractmethod
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The evidence after the last step on all data x (n, d), y (n,), with its facts."""

    def freeze(self, model: ModelT) -> None:
        """Let no gradient into ``model`` until ``release``; to be called by ``bind``."""
        self._frozen = tuple(p for p in model.parameters() if p.requires_grad)
        for parameter in self._frozen:
            parameter.requires_grad_(False)

    def release(self) -> None:
        """Make trainable again what ``freeze`` froze, and no more (after the last step)."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = ()

    @property
    def outcome(self) -> str:
        """How the steps ended, in words; empty where the run did not last until they did."""
        return "converged" if self.converged else ""

    def learning_rates(self, step: int) -> dict[str, float]:
        """What is worth watching beside the evidence, by name. Default: nothing."""
        return {}
