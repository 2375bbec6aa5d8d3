"""Base classes of the models with discrete weights, for any likelihood and any family of q."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gpx.bases import Basis, basis_of
from gpx.bases.fixed_functions import fix_functions, sufficient_statistics
from gpx.bases.grid_eigenfunctions.start import require_sums
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.constraints import is_trained, set_above_floor
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.trained_columns import TrainedColumns
from gpx.methods.direct.grids import WeightGrid, effective_log_prior, require_grid
from gpx.methods.direct.mean_field import (
    best_noise_logits,
    logits_after_sweep,
    negative_divergence,
    squared_error,
)
from gpx.methods.direct.posterior import DirectPosterior
from gpx.methods.direct.summed import SummedRegression


class DiscreteWeights(TrainedColumns, InDoublePrecision, Model):
    """Basis functions with discrete weights; subclasses add the data, the likelihood and q.

    f(x) = m(x) + sum_i phi_i(x) sd_i w_i, where sd_i is the prior standard deviation that the
    basis gives weight i, and every w_i takes one of the k values of ``weights``. Basis, kernel and
    mean are not trained.

    Args:
        kernel: covariance function that the basis approximates.
        mean: prior mean function.
        likelihood: see the subclass.
        basis: a basis built on ``kernel``, or a callable that makes one from ``kernel`` and
            ``num_basis``.
        num_basis: m; the basis may have fewer functions.
        weights: possible values of a weight and their prior; None: ``WeightGrid()``.

    Attributes:
        scale (m,): prior standard deviations sd of the weights.
        logits (m, k): their softmax gives the probabilities of q; (r, m, k) for a mixture.

    Raises:
        ConfigError: the basis gives its weights a correlated prior.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("scale",)

    mean: Mean
    scale: Tensor
    logits: nn.Parameter

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        basis: Basis | Callable[..., Basis],
        num_basis: int,
        weights: WeightGrid | None,
    ) -> None:
        super().__init__()
        require_grid(weights, WeightGrid, "weights")
        self.basis = basis_of(basis, kernel, num_basis)
        if self.basis.dense_prior:
            raise ConfigError(
                f"basis {class_name(self.basis)} gives its weights a prior with correlations, and "
                "discrete weights are independent; use basis=RandomFourier or another with "
                "variances"
            )
        self.mean = mean
        self.likelihood = likelihood
        self.weights = WeightGrid() if weights is None else weights
        self.register_buffer("scale", torch.zeros(0, dtype=torch.float64))

    @property
    def kernel(self) -> Kernel:
        """Covariance function; the basis owns it."""
        kernel = self.basis.kernel
        assert isinstance(kernel, Kernel)
        return kernel

    def values(self) -> Tensor:
        """The values (k,) that a weight may take."""
        return self.weights.values.to(self.scale.device)

    def log_prior(self) -> Tensor:
        """Log prior probabilities (k,) of the values; the marginal ones for a mixture of priors."""
        return self.weights.log_prior.to(self.scale.device)

    def mixture(self) -> tuple[Tensor, Tensor]:
        """Shares (r,) and probabilities (r, m, k) of q's components; r = 1 for a mean field."""
        return self.scale.new_ones(1), self.logits.softmax(-1).unsqueeze(0)

    @torch.no_grad()
    def sparsity(self) -> float:
        """Expected share of zero weights in a draw from q.

        Raises:
            ConfigError: zero is not one of the values.
        """
        shares, q = self.mixture()
        return float(shares @ q[..., self.weights.place_of_zero()].mean(1))

    def set_prior_scale(self) -> None:
        """Store the prior standard deviations of the weights, once the basis functions are fixed.

        Warns if the basis has too few functions to represent the kernel.
        """
        self.basis.warn_of_few()
        self.scale = self.basis.log_variances().detach().double().mul(0.5).exp()
        self.note += f"; weights of {len(self.weights)} values"

    def facts(self) -> dict[str, bool | int | float | str]:
        """Sizes, and the sparsity if zero is a value, as plain values for the run's record."""
        found: dict[str, bool | int | float | str] = {
            "num_basis": self.basis.num_basis,
            "num_values": len(self.weights),
        }
        if self.weights.zero is not None:
            found["sparsity"] = self.sparsity()
        return found | self.basis.facts()

    def noise_probabilities(self) -> Tensor:
        """Probabilities (k_s,) of the noise variances; empty if it is known or there is none."""
        return self.scale.new_zeros(0)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> DirectPosterior:
        """The posterior at the present q; x and y are not read."""
        posterior = self.new_posterior()
        shares, q = self.mixture()
        posterior.fill(self.scale, self.values(), q, self.noise_probabilities(), shares)
        posterior.remember_columns(self.scale, self.trained_columns)
        return posterior

    def new_posterior(self) -> DirectPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        return DirectPosterior(self.basis, self.mean, None)


class DiscreteRegression(SummedRegression, DiscreteWeights):
    """Discrete weights under Gaussian noise, trained on sums over the data.

    Attributes:
        gram (m, m), projected (m,), totals (2,): Phi^T Phi and Phi^T r, with the functions scaled
            by sd_i and r = y - m(x); |r|^2 and n.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("gram", "projected", "scale")

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: only checks that the m x m sums fit into memory."""
        self.basis.place(x)
        require_sums("num_basis", self.basis.num_basis, x.device)
        return {}

    @torch.no_grad()
    def fix(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the basis functions and compute the sums over the data x (n, d), y (n,)."""
        noise = self.likelihood.noise_variance
        learns_noise = is_trained(self.likelihood, "noise_variance")
        residual = y - self.mean(x)
        start = fix_functions(
            self.basis, x, residual, noise, generator=generator, fixed_noise=not learns_noise
        )
        if learns_noise:
            set_above_floor(self.likelihood, "noise_variance", start.noise)
        self.remember_columns(x, x.shape[1])
        self.note = start.note
        self.set_prior_scale()
        self.statistics = start.statistics.standardised(self.scale)
        if self.noise is not None:
            self.note += f", noise variances of {len(self.noise)}"

    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """As in ``SummedRegression``, for the functions scaled by sd_i and the targets y - m(x)."""
        sums = sufficient_statistics(self.basis, x, y - self.mean(x))
        return sums.standardised(self.scale)

    @torch.no_grad()
    def annealed_logits(self, levels: int) -> Tensor:
        """Logits (m, k) of a mean field after coordinate ascent at increasing noise precisions.

        If the values are further apart than the posterior is wide, the first sweep (or gradient
        step) gives a weight nearly all its probability at one value, where it stays. At a low
        precision no weight is certain yet, and each explains a part of the targets.

        Args:
            levels: number of precisions, from 1e-4 times that of the noise to the full one (the
                full one alone for 1), with two sweeps each; 0 returns the prior.

        Cost: 2 levels m (m + k).
        """
        logits = self.log_prior().detach().expand(len(self.scale), -1).clone()
        for share in torch.logspace(0.0, -4.0, levels, dtype=torch.float64).tolist()[::-1]:
            for _ in range(2):
                q = logits.softmax(-1)
                if self.noise is not None:
                    error = squared_error(self.statistics, q, self.values())
                    self.noise_logits.copy_(
                        best_noise_logits(error, self.totals[1], *self.noise_grid())
                    )
                logits = self.logits_after_sweep(logits, share)
        return logits

    def effective_log_prior(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The effective log prior (k,) under q (m, k) and its constant (), of ``grids``."""
        return effective_log_prior(q, self.weights)

    @torch.no_grad()
    def logits_after_sweep(self, logits: Tensor, share: float = 1.0) -> Tensor:
        """Logits (m, k) of a mean field after one sweep of coordinate ascent.

        Args:
            logits (m, k): starting point.
            share: factor on the noise precision.

        Cost: O(m^2 + m k).
        """
        prior, _ = self.effective_log_prior(logits.softmax(-1))
        precision = share * self.noise_terms().precision
        return logits_after_sweep(
            self.gram, self.projected, logits, self.values(), prior, precision
        )

    def mean_field_terms(self, logits: Tensor) -> dict[str, Tensor]:
        """Terms of the evidence lower bound of the mean field with ``logits`` (m, k), in nats.

        Differentiable: fit, constant, and minus the divergences of weights and noise.

        Cost: O(m^2 + m k).
        """
        log_q, noise = logits.log_softmax(-1), self.noise_terms()
        q = log_q.exp()
        prior, constant = self.effective_log_prior(q)
        error = squared_error(self.statistics, q, self.values())
        return {
            "fit": -0.5 * noise.precision * error,
            "constant": noise.constant,
            "weights": negative_divergence(log_q, prior).sum() + constant,
            "noise": noise.prior,
        }

    def noise_probabilities(self) -> Tensor:
        """As in ``DiscreteWeights``."""
        return self.noise_terms().log_q.exp()

    def new_posterior(self) -> DirectPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        noise = None if self.noise is None else self.noise.values
        return DirectPosterior(self.basis, self.mean, noise)
