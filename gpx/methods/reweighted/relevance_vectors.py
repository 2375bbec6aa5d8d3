"""The sequential relevance vector machine: each step optimises one prior variance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import ConfigError
from gpx.linalg import cholesky
from gpx.methods.base.objective import Evidence
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.reweighted.model import Reweighted
from gpx.methods.reweighted.posterior import LOG_OF_ZERO_VARIANCE
from gpx.methods.reweighted.weights import CovarianceForm, ReweightedWeights
from gpx.tensor_checks import check_at_least, check_positive
from gpx.warned_line import users_line

COLLINEARITY_TOLERANCE = 1e-10
"""Relative residual below which a function counts as collinear with those of the model."""


class RelevanceVectors(OwnSteps[Reweighted]):
    """Type-II inference of a re-weighted basis that adds functions to an empty model one by one.

    Every step sets one prior variance, that with the largest gain, to its exact optimum: a function
    is added, re-weighted or removed. Then the noise variance is set to its fixed point. The
    evidence never falls; at its maximum most functions have variance zero. Predictions still
    evaluate these, unless they are kernels at training inputs (basis=dictionary).

    Args:
        tolerance: nats; ends when the best step, noise included, gains less.
        moves: most steps.
        learn_noise: whether to learn the noise variance.

    Raises:
        ConfigError: an option out of range.

    Cost per step: k^2 m + 5 k^3 for k functions in the model, independent of n.
    Source: Tipping and Faul 2003; from sums: Evans thesis, section 5.3.2.
    """

    inference = "relevance_vectors"
    """Inference that the model must have; see ``Reweighted.check_optimizer``."""
    unit = "moves"
    purpose = "selects functions of Reweighted models"
    model_type = Reweighted

    def __init__(
        self, tolerance: float = 1e-3, moves: int = 10_000, learn_noise: bool = True
    ) -> None:
        check_positive(finite=True, tolerance=tolerance)
        check_at_least(1, moves=moves)
        self.tolerance = tolerance
        self.moves = moves
        self.learn_noise = learn_noise
        self.residual = math.inf
        self.at_noise_floor = False
        self.saved: dict[str, Any] = {}

    def check_fit(self, model: Reweighted, num_data: int) -> None:
        """As in ``OwnSteps``; the model must have ``inference="relevance_vectors"``."""
        if model.inference != "relevance_vectors":
            raise ConfigError(
                "optimizer=RelevanceVectors() leaves functions out and inference="
                f"{model.inference} weights all of them; use inference=relevance_vectors"
            )

    def bind(self, model: Reweighted, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``; continues the selection of a checkpoint."""
        self.model = model
        self.statistics = model.statistics
        self.variances = torch.zeros_like(self.statistics.projected)
        restored, self.restored = self.restored, False
        self.residual, self.at_noise_floor, self.converged = math.inf, False, False
        if restored and self.saved:
            self.variances = self.saved["variances"].to(self.variances)
            self.residual = self.saved["residual"]
            self.at_noise_floor = self.saved.get("held", False)
            self.converged = self.residual < self.tolerance
            return
        self._move(self.noise_variance)

    @property
    def noise_variance(self) -> Tensor:
        """Noise variance () of the model, float64."""
        return self.model.noise_variance.detach().double()

    def _move(self, noise: Tensor) -> None:
        logs = self.variances.log().clamp_min(LOG_OF_ZERO_VARIANCE)
        self.model.set_position(torch.cat([logs, noise.log()[None]]))

    def max_steps(self, limit: int) -> int:
        """As in ``OwnSteps``: ``moves``, at most ``limit``."""
        return min(limit, self.moves)

    @torch.no_grad()
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The best change of a prior variance, and of the noise; returns the evidence.

        Args:
            step: number of the step, from 0.
            x, y, generator: unused.
        """
        noise = self.noise_variance
        factors = coordinate_factors(self.statistics, self.variances, noise)
        best = torch.argmax(factors.gain)
        self.residual = float(factors.gain[best])
        if self.residual >= self.tolerance:
            self.variances[best] = factors.optimum[best]
        if self.learn_noise and self.model.learns_noise:
            weights = active_weights(self.statistics, self.variances, noise)
            before = weights.log_marginal_likelihood()
            optimum = noise_update(self.statistics, self.variances, noise, weights)
            self._move(optimum)
            self.at_noise_floor = float(optimum) < 0.99 * float(self.noise_variance)
            evidence = self._evidence()
            self.residual = max(self.residual, float((evidence.value - before).abs()))
        else:
            self._move(noise)
            evidence = self._evidence()
        self.converged = self.residual < self.tolerance
        return evidence

    def _evidence(self, **facts: bool | int | float | str) -> Evidence:
        weights = active_weights(self.statistics, self.variances, self.noise_variance)
        parts = weights.parts(self.noise_variance.log())
        return Evidence(weights.log_marginal_likelihood(), "estimate", parts, None, facts)

    @torch.no_grad()
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Log marginal likelihood, and the number of functions in the model.

        Warns if ``moves`` was reached, and if the noise variance is at its lower bound.
        """
        if not self.converged:
            warnings.warn(
                f"the selection of relevance vectors ended with {self.residual:.1e} nats left to "
                f"gain in one move, above tolerance={self.tolerance}; raise "
                f"moves={self.moves}",
                stacklevel=users_line(),
            )
        if self.at_noise_floor:
            warnings.warn(
                f"the noise variance is at its lower bound of {float(self.noise_variance):g}: the "
                "functions fit the targets almost exactly, which over-fits unless these are free "
                "of noise; take fewer functions "
                "(num_basis=), longer lengthscales, learn_noise=False, or "
                "inference=type1",
                stacklevel=users_line(),
            )
        facts = self.model.facts() | {
            "relevance_vectors": int((self.variances > 0.0).sum()),
            "converged": self.converged,
            "residual": self.residual,
        }
        return self._evidence(**facts)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Largest gain of the last step in nats, and the number of functions in the model."""
        count = float((self.variances > 0.0).sum())
        return {"gain": self.residual, "relevance_vectors": count}

    def state_dict(self) -> dict[str, Any]:
        """Prior variances (m,), the largest gain, and whether the noise is at its bound."""
        return {"variances": self.variances, "residual": self.residual, "held": self.at_noise_floor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.saved, self.restored = dict(state), True


def active_weights(
    statistics: SufficientStatistics, variances: Tensor, noise: Tensor
) -> ReweightedWeights:
    """Posterior of the weights with g_i > 0, from variances g (m,) and noise ().

    Cost: k^3 for k of them.
    """
    kept = variances.nonzero().squeeze(1)
    form = CovarianceForm(statistics.select_functions(kept))
    return form.weights(variances[kept].log(), noise.log())


def noise_update(
    statistics: SufficientStatistics, variances: Tensor, noise: Tensor, weights: ReweightedWeights
) -> Tensor:
    """A noise variance () that does not lower the evidence, at fixed prior variances g (m,).

    MacKay's fixed point misfit / (n - sum of variance_reduction), which converges faster, if its
    evidence is larger than that of the expectation maximisation step,
    (misfit + s sum of variance_reduction) / n, whose evidence never falls.

    Args:
        weights: ``active_weights`` at this noise variance.

    Cost: 2 k^3 for k functions with g > 0.
    Source: MacKay 1992; Tipping 2001.
    """
    part = statistics.select_functions(variances.nonzero().squeeze(1))
    misfit = part.about(weights.mean()).squared.clamp_min(0.0)
    used = weights.variance_reduction.sum()
    slow = (misfit + noise * used) / statistics.num_data
    fast = misfit / (statistics.num_data - used).clamp_min(1e-3)
    smallest = 1e-12 * statistics.squared / statistics.num_data
    ends = [value.clamp_min(smallest) for value in (slow, fast)]
    fits = [active_weights(statistics, variances, value) for value in ends]
    lowest = torch.stack([w.fit + w.log_determinant for w in fits])
    return torch.stack(ends)[torch.argmin(lowest)]


class CoordinateFactors(NamedTuple):
    """The evidence as a function of one prior variance g at a time, the others fixed.

    Up to a constant it is (q^2 g / (1 + g s) - log(1 + g s)) / 2.

    Attributes:
        sparsity (m,): s of Tipping and Faul, by the model without function i.
        quality (m,): q of Tipping and Faul, by the model without function i.
        optimum (m,): the maximising g: (q^2 - s) / s^2, or 0 if q^2 <= s.
        gain (m,): gain in evidence there, in nats, non-negative.
    """

    sparsity: Tensor
    quality: Tensor
    optimum: Tensor
    gain: Tensor


def coordinate_factors(
    statistics: SufficientStatistics, variances: Tensor, noise: Tensor
) -> CoordinateFactors:
    """Factors of all m functions at prior variances g (m,), zero for functions not in the model.

    Functions that are numerically collinear with the model have gain zero.

    Cost: k^2 m + k^3 multiply-adds for k functions with g > 0.
    Source: Tipping and Faul 2003; from statistics: derived from Evans thesis, section 5.3.2.
    """
    active = variances.nonzero().squeeze(1)
    root = variances[active].sqrt()
    cross = root.unsqueeze(1) * statistics.gram[active] / noise
    inner = cross[:, active] * root
    inner.diagonal().add_(1.0)
    factor, _ = cholesky(inner, name=f"system of {len(active)} relevance vectors", ladder=(0.0,))
    half = torch.linalg.solve_triangular(factor, cross, upper=False)
    target = root * statistics.projected[active] / noise
    half_target = torch.linalg.solve_triangular(factor, target.unsqueeze(1), upper=False)
    overlap = statistics.gram.diagonal() / noise
    within = overlap - half.square().sum(0)
    error = statistics.projected / noise - (half.mT @ half_target).squeeze(1)
    within = torch.where(within > COLLINEARITY_TOLERANCE * overlap, within, torch.inf)
    # for functions in the model use the diagonal of the inverse, 1 - g S, to avoid cancellation
    left = torch.cholesky_inverse(factor).diagonal()
    pull = torch.cholesky_solve(target.unsqueeze(1), factor).squeeze(1)
    sparsity, quality = within.clone(), error.clone()
    sparsity[active] = (1.0 - left) / (variances[active] * left)
    quality[active] = pull / (root * left)
    excess = quality.square() - sparsity
    optimum = torch.where(excess > 0.0, excess / sparsity.square(), 0.0)

    def value(g: Tensor) -> Tensor:
        grown = torch.where(g > 0.0, g * sparsity, 0.0)
        return 0.5 * (quality.square() * g / (1.0 + grown) - grown.log1p())

    return CoordinateFactors(
        sparsity, quality, optimum, (value(optimum) - value(variances)).clamp_min(0.0)
    )
