"""Coordinate ascent on the bound of discrete weights: one weight at a time, to its optimum."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.base.objective import Evidence
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.direct.model import Direct

FARTHEST = 1e6
"""Times the change of a sweep: beyond, every weight has long taken one value."""


class CoordinateAscent(OwnSteps[Direct]):
    """Sweeps over all weights of a ``Direct`` model; the bound never falls.

    Every step gives the noise variance its best distribution and then, in turn, every weight its
    own given the others': proportional to p(w) exp(tau (e w - A_jj w^2 / 2)), with tau the expected
    precision of the noise and e what the other weights leave of the targets along its function.
    Where sweeps creep along a valley, the logits then go on in the direction of the sweep, twice as
    far as long as the bound rises: about half the sweeps, for two bounds each.

    Args:
        tolerance: nats; ends when a sweep gains less.

    Raises:
        ConfigError: the tolerance is not positive; ``check`` says what does not fit the model.

    Cost per step: O(m^2 + m k), whatever n, in m small operations one after the other.
    Source: Evans thesis, section 7.3 (stationary points of theorem 7.1); the steps beyond are ours.
    """

    unit = "sweeps"
    purpose = "sweeps over the weights of Direct models"
    model_type = Direct
    ends_rounds = True  # it needs no other start

    def __init__(self, tolerance: float = 1e-3) -> None:
        if not 0.0 < tolerance < math.inf:
            raise ConfigError(f"tolerance={tolerance} must be positive and finite")
        self.tolerance = tolerance
        self.gain = math.inf

    def check_fit(self, model: Direct, num_data: int) -> None:
        """As in ``OwnSteps``: values that are learned need a gradient."""
        if model.learn_values:
            raise ConfigError(
                "optimizer=CoordinateAscent() has no step for the values of the weights, and "
                "learn_values=True learns them; use optimizer=LBFGSB()"
            )

    def bind(self, model: Direct, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``."""
        self.model = model
        self.converged = self.gain < self.tolerance

    @torch.no_grad()
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """One sweep; returns the bound afterwards. x, y and the generator are not read."""
        before, logits = self.model.bound(), self.model.logits.detach().clone()
        self.model.sweep()
        self._go_on(self.model.logits - logits)
        evidence = self._evidence()
        self.gain = float(evidence.value - before.value)
        self.converged = self.gain < self.tolerance
        return evidence

    def _go_on(self, direction: Tensor) -> None:
        """Take steps of 1, 2, 4 ... times ``direction`` (m, k) while the bound rises."""
        here, highest, length = self.model.logits.detach().clone(), self.model.bound().value, 1.0
        while length < FARTHEST:
            tried = here + length * direction
            value = self.model.bound(tried).value
            if not bool(value > highest):
                return
            self.model.logits.copy_(tried)
            highest, length = value, 2.0 * length

    def _evidence(self, **facts: bool | int | float | str) -> Evidence:
        found = self.model.bound()
        parts = {name: getattr(found, name) for name in ("fit", "constant", "weights", "noise")}
        return Evidence(found.value, "lower_bound", parts, None, facts)

    @torch.no_grad()
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The bound after the last sweep; warns where sweeps ran out."""
        if not self.converged:
            warnings.warn(
                f"coordinate ascent ended while a sweep still gained {self.gain:.1e} nats, above "
                f"tolerance={self.tolerance}; raise max_steps",
                stacklevel=2,
            )
        return self._evidence(
            **self.model.facts(), converged=self.converged, gain_of_last_sweep=self.gain
        )

    def learning_rates(self, step: int) -> dict[str, float]:
        """Nats that the last sweep gained."""
        return {"gain": self.gain}

    def state_dict(self) -> dict[str, Any]:
        """Nats that the last sweep gained; q is the model's."""
        return {"gain": self.gain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.gain = state["gain"]
