"""The contract of optimisers that make their own steps rather than follow a gradient."""

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
PREPARATION_SHARE = 0.5
"""Share of the time budget after which preparation (such as burn-in) is shortened."""


class OwnSteps(Optimizer, Generic[ModelT]):
    """Steps made for one kind of model: block solves, proposals of a chain, basis selection.

    A subclass writes ``bind``, ``step``, ``state_dict`` and ``load_state_dict``; everything else
    has a default. It may set the class attributes ``unit``, ``purpose`` and ``model_type``, and
    ``takes_priors = True`` if it minimises ``session.objective.loss``, which includes priors of
    hyperparameters. CONTRIBUTING.md has an example.

    The order of calls: ``check`` and ``check_limit``; then, in ``run``, ``load_state_dict`` if the
    run is resumed, ``bind``, ``max_steps``, ``step`` until that many are done or ``converged``,
    ``release``; at last ``final_evidence``.
    """

    unit: ClassVar[str] = "steps"
    """What a step is called in messages (plural)."""
    purpose: ClassVar[str] = ""
    """What the steps do to which models, as the predicate of an error message; empty: that they
    train models of ``model_type``."""
    model_type: type[ModelT] = Model  # type: ignore[assignment]
    """Class of the models that these steps train."""
    model: ModelT
    """The model they are bound to."""
    session: Session
    """The run, from ``bind`` on: its ``objective``, ``batch_size`` and so on."""
    converged = False
    """Whether the steps have converged; only steps that solve to a tolerance set it."""
    restored = False
    """Whether a state was loaded that ``bind`` must use (a state of another model is ignored)."""
    _frozen: tuple[nn.Parameter, ...] = ()

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """As in ``Optimizer``."""
        super().require_fit(model, objective, num_data, max_steps)
        self.check(model, num_data)
        self.check_limit(max_steps)

    def run(self, session: Session) -> str:
        """As in ``Optimizer``; every step is checked to be finite before it may be saved."""
        if session.pending:
            self.load_state_dict(session.pending)
        assert isinstance(session.model, self.model_type)  # ``check`` has passed
        self.session = session
        out_of_time = warned = False
        try:  # what ``bind`` freezes before it fails is released as well
            self.bind(session.model, session.x, session.seed)
            session.limit = session.max_steps = self.max_steps(session.limit)
            while session.step < session.max_steps and not self.converged and not out_of_time:
                with session.timed():
                    evidence = self.step(
                        session.step, session.x, session.y, generator=session.generator
                    )
                    session.step += 1
                    value = evidence.value.detach()
                    loss = float(-value / session.objective.num_data(session.x))
                    session.require_finite(loss, evidence.parts)
                if session.log_due(last=self.converged):
                    session.report(loss, evidence.parts, self.learning_rates(session.step - 1))
                session.end_step()
                self._shorten_preparation(session)
                out_of_time = session.out_of_time and self.serves(session.step)
                if session.out_of_time and not out_of_time and not warned:
                    warned = True
                    session.say(
                        f"training should end after {session.step} {self.unit}, but there is "
                        "nothing to predict with yet: training goes on until there is"
                    )
        finally:
            self.release()
        reason = f"{session.step} {self.unit} done"
        if out_of_time and not self.converged and session.step < session.max_steps:
            return session.ended_in_time()
        if self.outcome:
            reason += f", {self.outcome}"
            session.say(reason)
        return reason

    def _shorten_preparation(self, session: Session) -> None:
        """End the preparation early once it has used its share of the time budget."""
        start, budget = session.seconds_of_start, session.budget
        if budget is None or self.serves(session.step):
            return
        if session.seconds >= start + PREPARATION_SHARE * (budget - start):
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
        """As in ``Optimizer``, from ``final_evidence``."""
        found = self.final_evidence(x, y, generator=generator)
        if found is not None:
            return found
        return super().evidence_at_end(
            model, objective, x, y, batch_size=batch_size, generator=generator
        )

    def check(self, model: Model, num_data: int) -> None:
        """Raise ConfigError if the steps do not support ``model`` or the number of rows."""
        if not isinstance(model, self.model_type):
            purpose = self.purpose or f"trains {self.model_type.__name__} models"
            raise ConfigError(
                f"optimizer={type(self).__name__}() {purpose}, got {type(model).__name__}; "
                "choose another optimizer="
            )
        self.check_fit(model, num_data)

    def check_fit(self, model: ModelT, num_data: int) -> None:
        """Further checks of a model of the right type. Default: none."""

    def check_limit(self, limit: int) -> None:
        """Raise ConfigError if ``limit`` (the run's ``max_steps``) is too few steps."""

    def serves(self, step: int) -> bool:
        """Whether the model can predict after ``step`` steps. Default: always."""
        return True

    def hurry(self, step: int, limit: int) -> str:
        """End a preparation such as burn-in early, because time is short. Default: nothing.

        Called after ``step`` of ``limit`` steps once half of the time budget is used and ``serves``
        is still false; possibly several times. The changes must be part of ``state_dict``.

        Returns:
            what ended early, for a message; empty if nothing more can be shortened.
        """
        return ""

    @abstractmethod
    def bind(self, model: ModelT, x: Tensor, seed: int) -> None:
        """Attach to a model and all training inputs; ``check`` has passed.

        Args:
            model: trained in place from here on.
            x (n, d): on the model's device.
            seed: of the run.
        """

    def max_steps(self, limit: int) -> int:
        """Steps of the run, at most ``limit``; called after ``bind``. Default: ``limit``."""
        return limit

    @abstractmethod
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Make one step and return the evidence afterwards, or that which the step was made for.

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: for random draws.
        """

    def final_evidence(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator
    ) -> Evidence | None:
        """The evidence after the last step for all data x (n, d), y (n,), with its facts.

        Default: None, for that of the run's objective (``Objective.full_evidence``).
        """
        return None

    def freeze(self, model: ModelT) -> None:
        """Turn gradients of ``model`` off until ``release``; called by ``bind``."""
        self._frozen = tuple(p for p in model.parameters() if p.requires_grad)
        for parameter in self._frozen:
            parameter.requires_grad_(False)

    def release(self) -> None:
        """Make the parameters that ``freeze`` froze trainable again (after the last step)."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = ()

    @property
    def outcome(self) -> str:
        """How the steps ended, in words; empty if the run ended before them."""
        return "converged" if self.converged else ""

    def learning_rates(self, step: int) -> dict[str, float]:
        """Rates to log beside the evidence, by name. Default: none."""
        return {}
