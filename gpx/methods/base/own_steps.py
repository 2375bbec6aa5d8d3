"""What an optimiser is that makes its own steps, and follows no gradient of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence

ModelT = TypeVar("ModelT", bound=Model)


class OwnSteps(ABC, Generic[ModelT]):
    """Steps made for one kind of model: block solves, proposals of a chain, functions to take in.

    The order of calls: ``check`` and ``check_limit``; ``load_state_dict`` when a run goes on;
    ``bind``, ``max_steps``, ``step`` until that many are done or ``converged``, ``release``;
    ``final_evidence``.
    """

    option: ClassVar[str]
    """What optimizer= calls these steps."""
    unit: ClassVar[str]
    """What a step is, for people."""
    purpose: ClassVar[str]
    """What the steps do to which approx=, for people."""
    model_type: type[ModelT]
    """The models that these steps train."""
    model: ModelT
    """The one they are bound to."""
    converged = False
    """Whether the last step ended the run; only steps that solve to a tolerance know."""

    def check(self, model: Model, num_data: int) -> None:
        """Raise ConfigError, in one sentence, when the steps do not fit ``model`` or the data."""
        if not isinstance(model, self.model_type):
            raise ConfigError(
                f"optimizer={self.option} {self.purpose}, got {type(model).__name__}; choose "
                "another optimizer="
            )
        self.check_fit(model, num_data)

    @abstractmethod
    def check_fit(self, model: ModelT, num_data: int) -> None:
        """``check``, for a model of the right type."""

    def check_limit(self, limit: int) -> None:
        """Raise ConfigError when ``limit`` steps (trainer.max_steps) are too few to be of use."""

    @abstractmethod
    def bind(self, model: ModelT, x: Tensor, seed: int) -> None:
        """Attach to a model and all training inputs x (n, d); ``check`` has passed.

        Args:
            model: trained in place from here on.
            x (n, d): on the model's device.
            seed: of the run.
        """

    @abstractmethod
    def max_steps(self, limit: int) -> int:
        """Steps of the run, at most ``limit``; ``bind`` and ``check_limit`` have passed."""

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

    def release(self) -> None:
        """Make trainable again what ``bind`` froze (after the last step). Default: nothing."""

    @property
    def outcome(self) -> str:
        """How the steps ended, in words; empty where the run did not last until they did."""
        return "converged" if self.converged else ""

    def learning_rates(self, step: int) -> dict[str, float]:
        """What is worth watching beside the evidence, by name. Default: nothing."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next step needs that the model does not hold."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
