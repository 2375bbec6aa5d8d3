"""Mean-field regression on discrete weights, with an exact bound."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpx.bases import Basis
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import running_sum
from gpx.means.base import Mean
from gpx.methods.direct.base import DiscreteRegression
from gpx.methods.direct.grids import NoiseGrid, WeightGrid, log_density, prior_at
from gpx.methods.direct.mean_field import Bound, bound, swept
from gpx.methods.direct.posterior import DirectPosterior
from gpx.methods.direct.rounds import SweptRounds


class Direct(SweptRounds, DiscreteRegression):
    """Regression on the functions of a basis with discrete weights, at a cost free of n.

    q makes the weights independent (mean field), with any probabilities; the evidence lower bound
    and its gradient are then exact sums over Phi^T Phi, Phi^T r and r^T r, without a sample drawn.

    Args:
        kernel, mean, likelihood, basis, num_basis, weights, noise: as for ``DiscreteRegression``.
        learn_values: move the values as well (around zero, which stays), for the largest bound.
        restarts: of a gradient search, each after sweeps of coordinate ascent.
        anneal: levels of the precision at the start, see ``annealed``; 0 starts at the prior.

    Attributes:
        logits (m, k): of q, its probabilities their softmax.
        log_gaps (k - 1,): logarithms of the differences of neighbouring values, where these are
            learned; else empty.

    Raises:
        ConfigError: options that do not fit.

    Exactness: a lower bound on the log evidence of the discrete model, whose prior is a relaxation
    of the Gaussian process on the same functions.
    Cost: n m^2 / 2 multiply-adds once; an evaluation with gradient O(m^2 + m k).
    Source: Evans thesis, chapter 7; Evans and Nair, NeurIPS 2018.
    """

    data_sized = (*DiscreteRegression.data_sized, "logits")
    in_double = (*DiscreteRegression.in_double, "log_gaps")

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        basis: Basis | Callable[..., Basis],
        num_basis: int = 1000,
        weights: WeightGrid | None = None,
        noise: NoiseGrid | None = None,
        learn_values: bool = False,
        restarts: int = 3,
        anneal: int = 20,
    ) -> None:
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            basis=basis,
            num_basis=num_basis,
            weights=weights,
            noise=noise,
        )
        self.take_restarts(restarts)
        if anneal < 0:
            raise ConfigError(f"anneal={anneal}: expected 0 or more")
        self.anneal = anneal
        self.learn_values = learn_values
        if learn_values and (self.weights.zero is None or len(self.weights) < 2):
            raise ConfigError(
                "learn_values=True moves values around zero, which must be one of two values or "
                "more; give weights= with zero among its values"
            )
        if learn_values and len(self.weights.log_shares) > 1:
            raise ConfigError(
                "learn_values=True moves a single prior along with its values, and weights= has a "
                "mixture of priors; choose one of the two"
            )
        empty = self.weights.values[:0]
        self.logits = nn.Parameter(empty.new_zeros(0, len(self.weights)))
        self.log_gaps = nn.Parameter(self.weights.values.diff().log() if learn_values else empty)

    def values(self) -> Tensor:
        """The values (k,) of the weights, differentiable where they are learned."""
        if not self.learn_values:
            return super().values()
        gaps = self.log_gaps.exp()
        zero = self.weights.zero
        assert zero is not None  # checked by the constructor
        below = -running_sum(gaps[:zero].flip(0)).flip(0)
        return torch.cat([below, gaps.new_zeros(1), running_sum(gaps[zero:])])

    def log_prior(self) -> Tensor:
        """Logarithm of the prior (k,) at the values; a Gaussian's moves with them."""
        if self.learn_values and self.weights.prior == "gaussian":
            return log_density(self.values(), "gaussian").log_softmax(0)
        return super().log_prior()

    def _prior_at(self, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """As ``prior_at``, of the prior that moves with learned values."""
        if self.learn_values:
            return self.log_prior(), log_q.new_zeros(())
        return prior_at(log_q.exp(), self.weights)

    def prior_now(self, q: Tensor) -> Tensor:
        """As in ``DiscreteRegression``; where values are learned it moves with them."""
        return self.log_prior().detach() if self.learn_values else super().prior_now(q)

    @torch.no_grad()
    def swept(self) -> Tensor:
        """Logits (m, k) after one sweep of coordinate ascent. Cost: O(m^2 + m k)."""
        return swept(
            self.gram,
            self.projected,
            self.logits.detach(),
            self.values(),
            self._prior_at(self.logits.log_softmax(-1))[0],
            self.noise_terms().precision,
        )

    @torch.no_grad()
    def bound(self, logits: Tensor | None = None) -> Bound:
        """The evidence lower bound with its gradient, at other ``logits`` where they are given.

        Cost: O(m^2 + m k).
        """
        log_q = (self.logits.detach() if logits is None else logits).log_softmax(-1)
        prior, gained = self._prior_at(log_q)
        found = bound(
            self.statistics,
            log_q,
            self.values(),
            prior,
            self.noise_terms(),
            None if self.noise is None else self.noise_grid(),
        )
        return found._replace(value=found.value + gained, weights=found.weights + gained)

    @torch.no_grad()
    def sweep(self) -> None:
        """As in ``SweptRounds``. Cost: O(m^2 + m k)."""
        if self.noise is not None:
            self.noise_logits.copy_(self.best_noise(self.bound().fit))
        self.logits.copy_(self.swept())

    def bound_value(self) -> float:
        """As in ``SweptRounds``."""
        return float(self.bound().value)

    def sparsity(self) -> float:
        """As in ``DiscreteRegression``."""
        return float(self.logits.detach().softmax(-1)[:, self.place_of_zero()].mean())

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the functions and sum over the data, once; q starts where annealing leads."""
        self.fix(x, y, generator=generator)
        self.logits.data = self.annealed(self.anneal)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q; ``hyperparameters``: the values, where they are learned."""
        groups = {"variational": [self.logits]}
        if self.noise is not None:
            groups["variational"].append(self.noise_logits)
        return groups | ({"hyperparameters": [self.log_gaps]} if self.learn_values else {})

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> DirectPosterior:
        """The posterior at the present q; x and y are not read."""
        posterior = self.new_posterior()
        noise = self.logits.new_zeros(0) if self.noise is None else self.noise_terms().log_q.exp()
        values = self.values().detach()
        posterior.fill(self.scale, values, self.logits.detach().softmax(-1)[None], noise)
        return posterior
