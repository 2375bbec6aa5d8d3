"""Exact Gaussian process regression averaged over its hyperparameters."""

from __future__ import annotations

import warnings
from typing import ClassVar

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.exact_solver import require_finite
from gpx.inference.sampled_hyperparameters import SampledHyperparameters
from gpx.inference.sampled_hyperparameters.stacked import StackedProcesses
from gpx.inference.stacked_density import stacked_density
from gpx.inference.stacked_kernels import Stacks, mapped, stacked_covariances
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.hyper_position import HyperPosition
from gpx.methods.base.objective import Objective
from gpx.methods.exact.exact_mll import ExactMLL
from gpx.methods.exact.model import ExactGP
from gpx.warned_line import users_line

BATCH_BYTES = {"cpu": 2**22, "cuda": 2**29}
"""Bytes of the covariance matrices of all chains up to which they are factorised together: on a CPU
they stay in cache."""

MANY_ROWS = 3000
"""Rows above which a CPU needs more than a second for an evidence and its gradient."""


class FullyBayesianGP(SampledHyperparameters, ExactGP):  # type: ignore[misc]  # other posterior
    """Fully Bayesian Gaussian process regression: hyperparameters are marginalised by sampling.

    ``optimizer=hamiltonian`` draws hyperparameters from p(theta | y), and predictions are the
    mixture of the exact processes at these. Error bars then include the uncertainty of the
    hyperparameters, which matters if there are few rows. Priors: ``hyperpriors``, and weak default
    priors of all hyperparameters that have none there (``HyperPriors``).

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.

    Cost: see ``HamiltonianChains`` and ``HyperparameterMixture``; n^3 multiply-adds for an evidence
    with its gradient.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("samples",)

    def __init__(self, *, kernel: Kernel, mean: Mean, likelihood: Gaussian) -> None:
        super().__init__(kernel=kernel, mean=mean, likelihood=likelihood, solver="cholesky")
        self._register_samples()

    def log_likelihoods(
        self, objective: Objective, place: HyperPosition, positions: Tensor, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As in ``SampledHyperparameters``; of few rows (``BATCH_BYTES``) in one batch."""
        limit = BATCH_BYTES.get(x.device.type, BATCH_BYTES["cpu"])
        size = len(positions) * x.shape[0] ** 2 * x.element_size()
        if type(objective) is not ExactMLL or x.dtype != torch.float64 or size > limit:
            return super().log_likelihoods(objective, place, positions, x, y)
        require_finite(y)
        with torch.enable_grad():
            u = positions.detach().requires_grad_()
            stacks = place.stacks(u, self)
            inputs = x.expand(len(u), *x.shape)
            covariances = stacked_covariances(self.kernel, stacks, inputs)
            mean = mapped(self.mean, stacks, lambda own, rows: own(rows), inputs)
            noise = self._variances(self._noise_of(stacks), x)
        found = stacked_density(covariances.detach(), y - mean.detach(), noise, gradient=True)
        gradients = found.gradient(u, covariances, mean, noise)
        values = found.fit + found.complexity - 0.5 * len(x) * LOG_TWO_PI
        failed = (found.info != 0).nonzero().flatten()
        if len(failed):  # with jitter, if that helps
            alone = super().log_likelihoods(objective, place, positions[failed], x, y)
            values[failed], gradients[failed] = alone
        return values, gradients

    def _noise_of(self, stacks: Stacks) -> Tensor:
        """Noise variances (S,) of stacked hyperparameters."""
        return mapped(self.likelihood, stacks, lambda own: own.noise_variance)

    def _variances(self, noise: Tensor, x: Tensor) -> Tensor:
        """Noise variances (S, 1) of all rows x (n, d), or (S, n) where their noise is known."""
        if self.row_noise is None:
            return noise.unsqueeze(1)
        known = self.row_noise.like(x)
        return known.known + known.relative * noise.unsqueeze(1)

    @torch.no_grad()
    def condition_all(self, samples: Tensor, x: Tensor, y: Tensor) -> StackedProcesses | None:
        """As in ``SampledHyperparameters``, in float64."""
        if x.dtype != torch.float64:
            return None
        require_finite(y)
        stacks = self.hyper_position(fixed=True).stacks(samples, self)
        noise = self._noise_of(stacks)
        variances = self._variances(noise, x)
        return StackedProcesses.condition(self.kernel, self.mean, stacks, x, y, noise, variances)

    def check(self, x: Tensor) -> None:
        """As in ``Model``; warns where chains would take hours."""
        super().check(x)
        if len(x) > MANY_ROWS and x.is_cpu:
            warnings.warn(
                f"chains take thousands of evidences, each with a factorisation of {len(x):,} rows "
                "(n^3): model=FullyBayesianSGPR() takes n M^2, and with so many rows "
                "model=ExactGP() or SGPR() hardly predict differently",
                stacklevel=users_line(),
            )
