"""Steps of Markov chains: burn-in, then every ``thin``-th state is a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from gpx.errors import CheckpointError, ConfigError
from gpx.methods.base.model import Model
from gpx.methods.base.own_steps import OwnSteps

ModelT = TypeVar("ModelT", bound=Model)


class Chain(OwnSteps[ModelT]):
    """Own steps that draw samples with a Markov chain.

    Attributes:
        burn_in: steps before the first sample.
        iterations: steps after burn-in.
        thin: steps between samples.
        asked: ``burn_in + iterations`` as configured. It stays the number of steps when burn-in
            is shortened, also in a resumed run: the steps saved are used for samples.
        cut: whether burn-in was shortened, which changes ``burn_in`` and ``thin``.
        most_samples: number of samples at which every second one is dropped; twice what was asked
            for. A chain whose thinning was reduced, and that then goes on, would exceed it.
        saved: state of a run that is resumed; empty if there is none.
    """

    burn_in: int
    iterations: int
    thin: int
    asked: int
    saved: dict[str, Any]
    cut = False
    most_samples: float = math.inf

    def check_limit(self, limit: int) -> None:
        """Raise ConfigError when ``limit`` steps are too few for burn-in and a sample."""
        if limit < 2:
            raise ConfigError(
                f"max_steps={limit} is too few for a chain, which needs a step of burn-in and one "
                "for a sample; raise it"
            )

    def hurry(self, step: int, limit: int) -> str:
        """As in ``OwnSteps``: end burn-in now, and thin less to keep the number of samples."""
        if step >= self.burn_in:
            return ""
        wanted, self.burn_in = self.burn_in, step
        self.thin = max(1, min(self.thin, step // (self.iterations // self.thin)))
        self.cut = True
        kept = "every step" if self.thin == 1 else f"one step in {self.thin}"
        return f"burn-in, after {step} of {wanted} steps ({kept} from here on is kept as a sample),"

    def schedule_state(self) -> dict[str, Any]:
        """Burn-in and thinning if they were shortened; part of ``state_dict``."""
        return {"schedule": (self.burn_in, self.thin)} if self.cut else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep ``state_dict`` for ``bind``, and restore ``schedule_state``."""
        self.saved, self.restored = dict(state), True
        if "schedule" in state:
            self.burn_in, self.thin = state["schedule"]
            self.cut = True

    def require_coordinates(self, saved: int, wanted: int) -> None:
        """Raise CheckpointError if a stored state has another number of coordinates than sampled.

        A run that was stopped by a version that sampled fixed hyperparameters cannot go on.
        """
        if saved != wanted:
            raise CheckpointError(
                f"the chain of this checkpoint has {saved} hyperparameters and the model samples "
                f"{wanted} (fixed ones are not sampled): this run cannot go on, start it anew"
            )
