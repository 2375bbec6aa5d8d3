"""The quadruply stochastic relevance vector machine and its sparse posterior."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpx.bases.dictionary import MAX_PRECISION, KernelDictionary
from gpx.bases.inducing_points import draw_centres
from gpx.constraints import is_trained, set_above_floor
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian
from gpx.linalg import inverse_of_factor
from gpx.linalg.triangular import inverse_lower
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.weight_space.chevron import ChevronWeights
from gpx.methods.weight_space.group_solves import WeightGroup, group_system
from gpx.methods.weight_space.mean_field import MeanFieldWeights
from gpx.methods.weight_space.model import WeightSpaceModel, require_zero_mean
from gpx.tensor_checks import check_at_least

logger = logging.getLogger(__name__)

MIN_PRECISION = 1e-4
"""Lower bound of prior precisions, which keeps the systems well scaled."""
MIN_NOISE = 1e-6
"""Lower bound of the learned noise variance."""
PRUNING_PRECISION = 1e6
"""Weights whose precision exceeds this in a sweep are set to zero and removed from solves."""
SWEEP_TOLERANCE = 1e-3
"""Sweeps stop when no finite log precision changes by more than this."""
RELEVANCE_PRECISION = 1e4
"""Centres whose precision is below this are relevance vectors (QSGP paper)."""


@dataclass(frozen=True)
class SweepReport:
    """Result of the fixed-point sweeps.

    Attributes:
        solves: number of sweeps.
        residual: largest change of a log precision in the last sweep.
        converged: whether that is below ``SWEEP_TOLERANCE``.
    """

    solves: int
    residual: float
    converged: bool


class QSRVM(WeightSpaceModel):
    """Weight-space model on a kernel dictionary with one learned prior precision per function.

    y = sum_i w_i k(x, z_i) + noise, w ~ N(0, diag(s)^-1), z_i the training inputs (or a random
    subset); q(w) mean-field or chevron as for QSGP. Empirical Bayes drives most s_i to infinity.

    ``initialise`` runs fixed-point sweeps over groups of ``group_size`` functions: mean and
    covariance of each group exactly given the others, then s_i <- (1 - s_i Sigma_ii) / mu_i^2 and
    the noise variance in closed form (MacKay's updates; block-diagonal q). With ``sweeps=0``,
    ``RelevanceSteps`` select functions from mini-batches. Gradients of QuadruplyStochasticELBO
    (also with respect to log s) train the result further, but select functions slowly.
    ``condition`` solves exactly for the weights of the centres with s_i < 10^4, and the posterior
    consists of those only.

    Args:
        kernel: any covariance function; its outputscale is redundant with s, better fixed to 1.
        mean: must be Zero.
        likelihood: must be Gaussian.
        num_data: n.
        num_inputs: d.
        max_centres: m is the smaller of this and n.
        num_dense: K, dense columns of the covariance factor of q; 0 for mean-field.
        precision: initial s_i.
        sweeps: most fixed-point sweeps; 0: none, for ``RelevanceSteps``.
        group_size: functions per exact solve, b.
        block_size: most functions per block, the unit of sampling.

    Raises:
        ConfigError: a mean, likelihood or option that does not fit.

    Attributes:
        report: of the fixed-point sweeps; None before them and with ``sweeps=0``.

    Cost: O(n m b + m b^2) per sweep, less when precisions become infinite; state O(m).
    Source: Tipping 2001; MacKay 1992; Evans and Nair 2020 (QSGP), section on the QSRVM.
    """

    basis: KernelDictionary
    precision: float = 1.0  # of pickles that do not hold it

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: nn.Module,
        num_data: int,
        num_inputs: int,
        max_centres: int = 10_000,
        num_dense: int = 0,
        precision: float = 1.0,
        sweeps: int = 500,
        group_size: int = 250,
        block_size: int = 50,
    ) -> None:
        require_zero_mean(mean, "QSRVM")
        if not isinstance(likelihood, Gaussian):
            name = class_name(likelihood)
            raise ConfigError(f"model=QSRVM() needs likelihood=Gaussian(), got {name}")
        check_at_least(
            1,
            num_data=num_data,
            num_inputs=num_inputs,
            max_centres=max_centres,
            group_size=group_size,
        )
        check_at_least(0, sweeps=sweeps, num_dense=num_dense)
        centres = torch.zeros(min(num_data, max_centres), num_inputs)
        basis = KernelDictionary(kernel, centres, block_size, precision, sparse=True)
        blocks, width = basis.num_blocks, basis.block_size
        family = (
            ChevronWeights(blocks, width, num_dense)
            if num_dense
            else MeanFieldWeights(blocks, width)
        )
        super().__init__(basis, mean, likelihood, family)
        self.sweeps = sweeps
        self.precision = precision
        self.group = min(blocks, max(1, round(group_size / width)))
        self.report: SweepReport | None = None

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Draw the centres, run the fixed-point sweeps, set the scales of q.

        What an earlier call has learned belonged to other centres and is dropped.
        """
        n, m = x.shape[0], self.basis.num_basis
        self.num_data.fill_(float(n))
        if bool(self.family.mean.any()):
            self.family.mean.zero_()
            if isinstance(self.family, ChevronWeights):
                self.family.dense.zero_()
            self.basis.log_precision.fill_(math.log(self.precision))
        draw_centres(self.basis.centres, x, generator)
        groups = list(torch.arange(self.basis.num_blocks, device=x.device).split(self.group))
        fitted = torch.zeros(n, dtype=torch.float64, device=x.device)
        done, change = 0, math.inf
        while done < self.sweeps and change >= SWEEP_TOLERANCE:
            done += 1
            change, freedom = 0.0, 0.0
            for blocks in groups:
                moved, used, fitted = self._solve_group(blocks, x, y, fitted)
                change, freedom = max(change, moved), freedom + used
            noise = (y.double() - fitted).square().sum() / max(n - freedom, 1.0)
            if is_trained(self.likelihood, "noise_variance"):
                set_above_floor(self.likelihood, "noise_variance", noise.clamp_min(MIN_NOISE))
        if self.sweeps:
            ended = change < SWEEP_TOLERANCE
            self.report = SweepReport(done, change, ended)
            kept = self.basis.relevant(RELEVANCE_PRECISION).shape[0]
            self.note = f"{done} fixed-point sweeps, {kept} of {m} vectors"
            if not ended:
                self.note += (
                    f"; not converged, log precisions still move by {change:.1e} per sweep "
                    f"(raise sweeps={self.sweeps})"
                )
            logger.log(logging.INFO if ended else logging.WARNING, "%s", self.note)
        squares = [WeightGroup.of_blocks(self.basis, g).column_squares(x) for g in groups]
        self.start_scales(torch.cat(squares).view_as(self.family.mean))

    def _solve_group(
        self, blocks: Tensor, x: Tensor, y: Tensor, fitted: Tensor
    ) -> tuple[float, float, Tensor]:
        """Largest change of log s, degrees of freedom used, and the new Phi mu (n,)."""
        columns = self.basis.columns_of(blocks)
        log_limit = math.log(PRUNING_PRECISION)
        log_precision = self.basis.log_precision.data[:, 0]  # a view
        old = self.family.mean.data[blocks].reshape(-1).double()
        active = torch.nonzero(log_precision[columns] < log_limit)[:, 0]
        if not active.shape[0]:  # their weights are zero
            return 0.0, 0.0, fitted
        s = log_precision[columns[active]].double().exp()
        group = WeightGroup.of_columns(self.basis, columns[active])
        weight = 1.0 / float(self.noise_variance)
        system = group_system(group, x, y.double() - fitted, weight=weight, prior=s)
        mu = old[active] + system.solve(system.moment - s * old[active])
        left = s * inverse_of_factor(system.factor).diagonal()  # s_i Sigma_ii
        share = (1.0 - left).clamp(1e-12, 1.0)
        updated = (share.log() - mu.square().clamp_min(1e-300).log()).clamp(
            math.log(MIN_PRECISION), log_limit
        )
        kept = updated < log_limit
        change = float((updated - s.log())[kept].abs().max()) if bool(kept.any()) else 0.0
        final = torch.where(kept, updated, math.log(MAX_PRECISION))
        log_precision[columns[active]] = final.to(log_precision)
        new = torch.zeros_like(old)
        new[active[kept]] = mu[kept]
        self.family.mean.data[blocks] = new.to(self.family.mean).view(-1, self.basis.block_size)
        return change, float(share.sum()), fitted + group.values((new - old)[active], x)

    @property
    def anchor_blocks(self) -> int:
        """As in ``WeightSpaceModel``: all blocks after fixed-point sweeps, none without."""
        return self.basis.num_blocks if self.sweeps else 0

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: sparse tables of q; ``precisions``: log s; ``hyperparameters``."""
        groups, own = super().parameter_groups(), self.basis.log_precision
        rest = [p for p in groups["hyperparameters"] if p is not own]
        return {**groups, "hyperparameters": rest, "precisions": [own]}

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> RelevanceVectorPosterior:
        """The posterior of the exact weights of the relevance vectors given all data.

        Cost: O(n k (d + k)) for k vectors.
        """
        kept = self.basis.relevant(RELEVANCE_PRECISION)
        posterior = self.new_posterior().to(self.basis.centres)
        posterior.centres = self.basis.centres[kept].clone()
        group = WeightGroup.of_columns(self.basis, kept)
        weight = 1.0 / float(self.noise_variance)
        system = group_system(group, x.double(), y, weight=weight, prior=group.prior_precision())
        weights = system.solve(system.moment)
        root = inverse_lower(system.factor).mT  # Sigma = R R^T
        posterior.weight_mean = weights.to(self.basis.centres)
        posterior.weight_root = root.to(self.basis.centres)
        return posterior

    def new_posterior(self) -> RelevanceVectorPosterior:
        """As in ``Model``; the number of vectors is taken from the state."""
        return RelevanceVectorPosterior(self.basis.kernel)


class RelevanceVectorPosterior(Posterior):
    """f(x) = sum over k relevance vectors of w_i k(x, z_i), w ~ N(weight_mean, R R^T).

    Args:
        kernel: copied.

    Attributes:
        centres (k, d), weight_mean (k,), weight_root (k, k).

    Cost of prediction: O(k d + k^2) per point.
    """

    data_sized = ("centres", "weight_mean", "weight_root")
    centres: Tensor
    weight_mean: Tensor
    weight_root: Tensor

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel: Kernel = untrained(kernel)
        self.register_data_sized()

    @property
    def num_vectors(self) -> int:
        """k."""
        return self.centres.shape[0]

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of f at x (n, d), without observation noise."""
        phi = self.kernel.evaluate(x, self.centres)
        return Marginals(phi @ self.weight_mean, (phi @ self.weight_root).square().sum(1))

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` functions: draws of the weights. The callable maps x (n, d) to (num, n)."""
        noise = self.centres.new_empty(self.num_vectors, num).normal_(generator=generator)
        weights = self.weight_mean[:, None] + self.weight_root @ noise

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            return (self.kernel.evaluate(x, self.centres) @ weights).T

        return paths
