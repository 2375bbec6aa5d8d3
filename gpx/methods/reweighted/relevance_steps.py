"""The sequential relevance vector machine: one prior variance a step, to its optimum."""

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
from gpx.methods.reweighted.cached_relevance import (
    LEFT_OUT,
    active_weights,
    coordinate_factors,
    noise_update,
)
from gpx.methods.reweighted.model import Reweighted
from gpx.methods.reweighted.statistics_evidence import LOG_TWO_PI, log_marginal_likelihood


class RelevanceVectors(OwnSteps[Reweighted]):
    """Type-II inference of a re-weighted basis that starts without functions and takes them in.

    Every step puts the prior variance with most to gain to its exact optimum: a function joins, is
    weighted anew, or leaves. Then the noise variance takes its fixed point. The evidence never
    falls; at its maximum most functions are out. Their weights are zero in predictions, which
    evaluate them all the same unless they are kernels at training inputs (basis=dictionary).

    Args:
        tolerance: nats; ends when the best move and the noise gain less.
        moves: steps at most.
        learn_noise: whether the noise variance moves.

    Raises:
        ConfigError: an option out of range; ``check`` says what does not fit the model.

    Cost per step: k^2 m + 4 k^3 for k functions that are in, from sums over the data, whatever n.
    Source: Tipping and Faul 2003; from sums: Evans thesis, section 5.3.2.
    """

    option = "relevance_vectors"
    unit = "moves"
    purpose = "selects functions of approx=reweighted"
    model_type = Reweighted

    def __init__(
        self, tolerance: float = 1e-3, moves: int = 10_000, learn_noise: bool = True
    ) -> None:
        if not 0.0 < tolerance < math.inf or moves < 1:
            raise ConfigError(
                f"optimizer.tolerance={tolerance} must be positive and finite and "
                f"optimizer.moves={moves} at least 1"
            )
        self.tolerance = tolerance
        self.moves = moves
        self.learn_noise = learn_noise
        self.residual = math.inf
        self.held = False
        self.saved: dict[str, Any] = {}

    def check_fit(self, model: Reweighted, num_data: int) -> None:
        """As in ``OwnSteps``: a selection was asked for."""
        if model.inference != "relevance_vectors":
            raise ConfigError(
                f"optimizer={self.option} leaves functions out and approx.inference="
                f"{model.inference} weights all of them; use inference=relevance_vectors"
            )

    def bind(self, model: Reweighted, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``; goes on with the selection of a checkpoint."""
        self.model = model
        self.statistics = model.statistics
        self.variances = torch.zeros_like(self.statistics.projected)
        if self.saved:
            self.variances = self.saved["variances"].to(self.variances)
            self.residual = self.saved["residual"]
            self.held = self.saved.get("held", False)
            self.converged = self.residual < self.tolerance
            return
        self._move(self.noise_variance)

    @property
    def noise_variance(self) -> Tensor:
        """Where the model has it; (), float64."""
        return self.model.noise_variance.detach().double()

    def _move(self, noise: Tensor) -> None:
        logs = self.variances.log().clamp_min(LEFT_OUT)
        self.model.move(torch.cat([logs, noise.log()[None]]))

    def max_steps(self, limit: int) -> int:
        """Moves, at most ``limit``."""
        return min(limit, self.moves)

    @torch.no_grad()
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The best move, and the noise; returns the evidence afterwards.

        Args:
            step: number of the step, from 0.
            x, y: not read.
            generator: unused; nothing is drawn.
        """
        noise = self.noise_variance
        factors = coordinate_factors(self.statistics, self.variances, noise)
        best = torch.argmax(factors.gain)
        self.residual = float(factors.gain[best])
        if self.residual >= self.tolerance:
            self.variances[best] = factors.optimum[best]
        if self.learn_noise:
            before = log_marginal_likelihood(active_weights(self.statistics, self.variances, noise))
            wanted = noise_update(self.statistics, self.variances, noise)
            self._move(wanted)
            self.held = float(wanted) < 0.99 * float(self.noise_variance)
            evidence = self._evidence()
            self.residual = max(self.residual, float((evidence.value - before).abs()))
        else:
            self._move(noise)
            evidence = self._evidence()
        self.converged = self.residual < self.tolerance
        return evidence

    def _evidence(self, **facts: bool | int | float | str) -> Evidence:
        weights = active_weights(self.statistics, self.variances, self.noise_variance)
        noise = weights.num_data * self.noise_variance.log()
        parts = {
            "fit": -0.5 * weights.fit,
            "complexity": -0.5 * (weights.log_determinant - noise),
            "constant": -0.5 * (noise + weights.num_data * LOG_TWO_PI),
        }
        return Evidence(log_marginal_likelihood(weights), "estimate", parts, None, facts)

    @torch.no_grad()
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Log marginal likelihood, and how many functions are in.

        Warns when moves ran out, and when the noise variance is the least that there may be.
        """
        if not self.converged:
            warnings.warn(
                f"the selection of relevance vectors ended with {self.residual:.1e} nats left to "
                f"gain in one move, above optimizer.tolerance={self.tolerance}; raise "
                "optimizer.moves",
                stacklevel=2,
            )
        if self.held:
            warnings.warn(
                f"the evidence wants less noise than the variance of {float(self.noise_variance):g}"
                " that is kept at least: the functions explain the targets all but exactly, which "
                "over-fits unless these are free of noise; take fewer functions "
                "(approx.num_basis), longer lengthscales, optimizer.learn_noise=false, or "
                "inference=type1_mala",
                stacklevel=2,
            )
        facts = self.model.facts() | {
            "relevance_vectors": int((self.variances > 0.0).sum()),
            "converged": self.converged,
            "residual": self.residual,
        }
        return self._evidence(**facts)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Nats that the last step gained at most, and how many functions are in."""
        count = float((self.variances > 0.0).sum())
        return {"gain": self.residual, "relevance_vectors": count}

    def state_dict(self) -> dict[str, Any]:
        """Prior variances (m,), what was left to gain, and whether the noise is at its least."""
        return {"variances": self.variances, "residual": self.residual, "held": self.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.saved = dict(state)
