"""Regression on discrete weights with a mean-field q and an exact evidence lower bound."""

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
from gpx.methods.direct.grids import NoiseGrid, WeightGrid, log_weights
from gpx.methods.direct.mean_field import total
from gpx.methods.direct.rounds import SweptRounds
from gpx.tensor_checks import check_at_least


class Direct(SweptRounds, DiscreteRegression):
    """Regression on basis functions with discrete weights; the cost of a step does not depend on n.

    Under q the weights are independent (mean field) with arbitrary probabilities. The evidence
    lower bound and its gradient are computed exactly from Phi^T Phi, Phi^T r and r^T r; nothing is
    sampled.

    Args:
        kernel, mean, basis, num_basis, weights: as for ``DiscreteWeights``.
        likelihood: Gaussian.
        noise: possible noise variances and their prior; None: the noise variance stays as
            initialised.
        learn_values: also maximise the bound over the values of the weights; zero stays a value.
        restarts: number of restarts of the gradient search, each after sweeps of coordinate ascent.
        anneal: precision levels of the start, see ``annealed_logits``; 0 starts at the prior.

    Attributes:
        logits (m, k): their softmax gives the probabilities of q.
        log_gaps (k - 1,): logarithms of the gaps between neighbouring values if these are learned,
            otherwise empty.

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
        )
        self.register_sums(noise)
        check_at_least(0, restarts=restarts, anneal=anneal)
        self.restarts, self.anneal = restarts, anneal
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
        """The values (k,) that a weight may take, differentiable if they are learned."""
        if not self.learn_values:
            return super().values()
        gaps = self.log_gaps.exp()
        zero = self.weights.zero
        assert zero is not None  # checked by the constructor
        below = -running_sum(gaps[:zero].flip(0)).flip(0)
        return torch.cat([below, gaps.new_zeros(1), running_sum(gaps[zero:])])

    def log_prior(self) -> Tensor:
        """Log prior probabilities (k,) of the values; a Gaussian prior follows learned values."""
        if self.learn_values and self.weights.prior == "gaussian":
            return log_weights(self.values(), "gaussian").log_softmax(0)
        return super().log_prior()

    def effective_log_prior(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``DiscreteRegression``; follows the values if they are learned."""
        if self.learn_values:
            return self.log_prior(), q.new_zeros(())
        return super().effective_log_prior(q)

    def logits_after_sweep(self, logits: Tensor | None = None, share: float = 1.0) -> Tensor:
        """As in ``DiscreteRegression``; None starts from the present logits."""
        return super().logits_after_sweep(self.logits.detach() if logits is None else logits, share)

    def mean_field_terms(self, logits: Tensor | None = None) -> dict[str, Tensor]:
        """As in ``DiscreteRegression``; None: those at the present logits."""
        return super().mean_field_terms(self.logits if logits is None else logits)

    @torch.no_grad()
    def sweep(self) -> None:
        """As in ``SweptRounds``. Cost: O(m^2 + m k)."""
        if self.noise is not None:
            self.noise_logits.copy_(self.best_noise_logits(self.mean_field_terms()["fit"]))
        self.logits.copy_(self.logits_after_sweep())

    def bound_value(self, logits: Tensor | None = None) -> float:
        """As in ``SweptRounds``; at the present logits, or at ``logits`` (m, k)."""
        return float(total(self.mean_field_terms(logits)).detach())

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the basis functions, compute the sums over the data, and start q by annealing."""
        self.fix(x, y, generator=generator)
        self.logits.data = self.annealed_logits(self.anneal)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q; ``hyperparameters``: the values of the weights, if learned."""
        groups = {"variational": self.with_noise_logits(self.logits)}
        return groups | ({"hyperparameters": [self.log_gaps]} if self.learn_values else {})
