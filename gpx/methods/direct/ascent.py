"""Coordinate ascent on the evidence bound of discrete weights: one weight at a time."""

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
from gpx.methods.direct.mean_field import total
from gpx.methods.direct.model import Direct
from gpx.tensor_checks import check_positive
from gpx.warned_line import users_line

MAX_STEP_LENGTH = 1e6
"""Longest step along the direction of a sweep, in multiples of its change of the logits."""


class CoordinateAscent(OwnSteps[Direct]):
    """Sweeps over all weights of a ``Direct`` model; the bound never decreases.

    Every step sets q(noise variance) to its optimum, then q of each weight in turn given the
    others: proportional to p(w) exp(tau (e w - A_jj w^2 / 2)), with tau the expected noise
    precision and e the product of the weight's function with the residual of the other weights.
    After the sweep the logits move on in its direction, with doubling steps, as long as the bound
    rises. This saves sweeps where they converge slowly.

    Args:
        tolerance: nats; training ends when a sweep gains less.

    Raises:
        ConfigError: the tolerance is not positive, or the model learns its values.

    Cost per step: O(m^2 + m k), independent of n, in m sequential updates.
    Source: Evans thesis, section 7.3 (stationary points of theorem 7.1). The steps along the
    direction of a sweep are an addition.
    """

    unit = "sweeps"
    purpose = "sweeps over the weights of Direct models"
    model_type = Direct
    ends_rounds = True  # no restarts: a sweep does not get stuck where a gradient vanishes

    def __init__(self, tolerance: float = 1e-3) -> None:
        check_positive(finite=True, tolerance=tolerance)
        self.tolerance = tolerance
        self.gain = math.inf

    def check_fit(self, model: Direct, num_data: int) -> None:
        """As in ``OwnSteps``; refuses learned values, which need a gradient."""
        if model.learn_values:
            raise ConfigError(
                "optimizer=CoordinateAscent() has no step for the values of the weights, and "
                "learn_values=True learns them; use optimizer=LBFGSB()"
            )

    def bind(self, model: Direct, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``."""
        self.model = model
        restored, self.restored = self.restored, False
        if not restored:  # the gain is that of another run
            self.gain = math.inf
        self.converged = self.gain < self.tolerance

    @torch.no_grad()
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """One sweep; returns the bound afterwards. x, y and the generator are not read."""
        before, logits = self.model.bound_value(), self.model.logits.detach().clone()
        self.model.sweep()
        self._extrapolate(self.model.logits - logits)
        evidence = self._evidence()
        self.gain = float(evidence.value) - before
        self.converged = self.gain < self.tolerance
        return evidence

    def _extrapolate(self, direction: Tensor) -> None:
        """Try steps of 1, 2, 4 ... times ``direction`` (m, k) and keep the last that gains."""
        start, highest, length = self.model.logits.detach().clone(), self.model.bound_value(), 1.0
        while length < MAX_STEP_LENGTH:
            tried = start + length * direction
            value = self.model.bound_value(tried)
            if not value > highest:
                return
            self.model.logits.copy_(tried)
            highest, length = value, 2.0 * length

    def _evidence(self, **facts: bool | int | float | str) -> Evidence:
        terms = self.model.mean_field_terms()
        return Evidence(total(terms), "lower_bound", terms, None, facts)

    @torch.no_grad()
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The bound after the last sweep; warns if the ascent has not converged."""
        if not self.converged:
            warnings.warn(
                f"coordinate ascent ended while a sweep still gained {self.gain:.1e} nats, above "
                f"tolerance={self.tolerance}; raise max_steps",
                stacklevel=users_line(),
            )
        return self._evidence(
            **self.model.facts(), converged=self.converged, gain_of_last_sweep=self.gain
        )

    def learning_rates(self, step: int) -> dict[str, float]:
        """No rates; logs the gain of the last sweep in nats instead."""
        return {"gain": self.gain}

    def state_dict(self) -> dict[str, Any]:
        """The gain of the last sweep in nats; q belongs to the model."""
        return {"gain": self.gain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.gain, self.restored = state["gain"], True
