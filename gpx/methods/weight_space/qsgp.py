"""Gaussian processes in weight space: f(x) = phi(x)^T w, Gaussian q over very many weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from gpx.bases import Basis, RandomFourier, basis_of
from gpx.errors import ConfigError, class_name
from gpx.kernels import Kernel
from gpx.likelihoods import Gaussian, Likelihood
from gpx.linalg.triangular import inverse_root
from gpx.means import Constant
from gpx.means.base import Mean
from gpx.methods.base.model import Hyperparameters
from gpx.methods.weight_space.block_ascent import BlockReport, ascend
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cells import Cells
from gpx.methods.weight_space.chevron import ChevronWeights, FullWeights
from gpx.methods.weight_space.group_solves import WeightGroup, fitted_values, group_system
from gpx.methods.weight_space.mean_field import Diagonal, MeanFieldWeights
from gpx.methods.weight_space.model import WeightSpaceModel, require_zero_mean
from gpx.methods.weight_space.posterior import QSGPPosterior
from gpx.methods.weight_space.sites import (
    SiteReport,
    ascend_sites,
    check_site,
    mean_precision,
    sites_of,
)
from gpx.tensor_checks import check_at_least, check_one_of

Covariance = Literal["mean_field", "block_diagonal", "chevron", "full"]
logger = logging.getLogger(__name__)

MIN_FUNCTIONS, FUNCTIONS_PER_ROW, MAX_FUNCTIONS = 5_000, 10, 100_000
"""Default number of basis functions: ten per training row, within these limits. More functions
predict hardly better, and with a block-diagonal covariance predictive variances become too wide."""

BISECTIONS = 30
"""Halvings of the interval of log site variances that hold the fixed point."""


def default_num_basis(num_data: int | None) -> int:
    """Default number of basis functions for n training points, a multiple of 100."""
    if num_data is None:
        return MAX_FUNCTIONS
    return min(MAX_FUNCTIONS, max(MIN_FUNCTIONS, 100 * -(-FUNCTIONS_PER_ROW * num_data // 100)))


class QSGP(WeightSpaceModel):
    """Quadruply stochastic Gaussian process: very many basis functions with Gaussian q(w).

    y = phi(x)^T w + noise, w ~ N(0, S^-1), with m basis functions phi that approximate the kernel,
    by default random Fourier features. q(w) = N(mu, C C^T) with C diagonal (``mean_field``), C C^T
    block-diagonal (``block_diagonal``), C with K dense columns (``chevron``), or C any lower
    triangle (``full``, at most a few thousand functions). The state is O(m) numbers (b / 4 per
    weight for ``block_diagonal``, m^2 for ``full``); features are never stored.

    ``initialise`` first solves exactly for a group of ``warm_start_size`` weights as if it were the
    whole basis (one pass over the data), then for ``block_solves`` further groups in turn, each
    exactly given the others (block ascent). The rest is learned by the objective and optimiser.

    Args:
        kernel: one that the basis supports; for Fourier features stationary with a spectral sampler
            (RBF, Matern).
        mean: must be Zero (targets are standardised; the prior mean of the weights is zero).
        likelihood: Gaussian, or one that is log-concave in one latent function (Bernoulli,
            Laplace, Poisson), which is trained with SiteBoundELBO. Counts and positive targets,
            which are not standardised, have a learned level of f beside phi(x)^T w.
        num_basis: m, if ``basis`` is a class; None: ten functions per row, within 5,000 and
            100,000.
        covariance: ``mean_field``, ``block_diagonal``, ``chevron`` or ``full``.
        num_dense: K, dense columns of a chevron covariance; 0 for the others.
        block_columns: b, weights solved for in a block step, rounded to whole blocks of the basis.
            The cosines and the sines of a group are one covariance block each (``Cells``).
        covariance_storage: dtype of the covariance blocks.
        diagonal: ``closed_form`` (c_r at its optimum, no parameter) or ``free`` (a parameter).
        warm_start: whether to solve the first group exactly; with ``full``, all weights.
        warm_start_size: weights per exact solve of ``initialise``, rounded to whole blocks.
        block_solves: exact group solves after the warm start, O(n b^2 + b^3) each; m / b of them
            make one sweep of block ascent.
        diagonal_rows: training rows from which the closed-form scales are computed (0: all rows,
            O(n m) once).
        basis: phi, a basis on ``kernel`` with a diagonal prior precision; or a class or callable
            that makes one from ``kernel`` and ``num_basis`` (``gpx.bases``).
        num_data: n if known, for ``num_basis=None``.
        site_passes: non-Gaussian likelihoods: most passes over all features that extend the warm
            start to all weights (``representer``), O(n m d) each; 0: only its group is set.

    Raises:
        ConfigError: a mean, likelihood, kernel or option that does not fit.

    Source: Evans and Nair 2020 (QSGP); Rahimi and Recht 2007. The exact starts are additions.
    """

    streams = True
    starts_by_laplace = True
    condition_uses_data = False  # q holds the weights, and optimisers condition in their steps

    def __init__(
        self,
        *,
        kernel: nn.Module,
        mean: Mean,
        likelihood: Likelihood,
        num_basis: int | None = 100_000,
        covariance: Covariance = "mean_field",
        num_dense: int = 0,
        block_columns: int = 5000,
        covariance_storage: str = "float32",
        diagonal: Diagonal = "closed_form",
        warm_start: bool = True,
        warm_start_size: int = 5000,
        block_solves: int = 0,
        diagonal_rows: int = 2000,
        basis: Basis | Callable[..., Basis] = RandomFourier,
        site_passes: int = 6,
        num_data: int | None = None,
    ) -> None:
        require_zero_mean(mean, "QSGP")
        check_site(likelihood)
        check_one_of(get_args(Covariance), covariance=covariance)
        if (covariance == "chevron") != (num_dense > 0):
            raise ConfigError(
                f"covariance={covariance} with num_dense={num_dense}: chevron needs num_dense >= 1 "
                "and the others need num_dense=0"
            )
        check_at_least(1, warm_start_size=warm_start_size, num_data=num_data)
        check_at_least(
            0,
            num_dense=num_dense,
            block_solves=block_solves,
            diagonal_rows=diagonal_rows,
            site_passes=site_passes,
        )
        size = default_num_basis(num_data) if num_basis is None else num_basis
        functions = basis_of(basis, kernel, size)
        blocks, width = functions.num_blocks, functions.block_size
        family: MeanFieldWeights
        if covariance == "block_diagonal":
            if diagonal != "closed_form" or warm_start or block_solves:
                raise ConfigError(
                    "covariance=block_diagonal is solved by optimizer=BlockSteps(), also its "
                    f"start and its scales; got diagonal={diagonal}, warm_start={warm_start}, "
                    f"block_solves={block_solves}: set closed_form, False and 0"
                )
            cells = Cells.of(functions, block_columns)
            family = BlockDiagonalWeights(cells, covariance_storage)
        elif covariance == "full":
            family = FullWeights(blocks, width)
        elif covariance == "chevron":
            family = ChevronWeights(blocks, width, num_dense, diagonal)
        else:
            family = MeanFieldWeights(blocks, width, diagonal)
        super().__init__(functions, mean, likelihood, family)
        self.level = Constant() if likelihood.task in ("count", "positive") else None
        self._chosen = num_basis is None
        self.warm_start = warm_start
        self.group = min(blocks, max(1, round(warm_start_size / width)))
        self.block_solves = block_solves
        self.diagonal_rows = diagonal_rows
        self.site_passes = site_passes
        self.report: BlockReport | SiteReport | None = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.level is not None:  # of earlier versions
            state_dict.setdefault(f"{prefix}level.constant", torch.zeros(()))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def hyperparameters(self) -> Hyperparameters:
        """As in ``Model``, with the level for the mean where there is one."""
        mean = self.mean if self.level is None else self.level
        return Hyperparameters(cast(Kernel, self.kernel), mean, self.likelihood)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """As in ``WeightSpaceModel``; the level is one of the ``hyperparameters``."""
        groups = super().parameter_groups()
        if self.level is not None:
            groups["hyperparameters"] += self.level.parameters()
        return groups

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: m for ``num_basis=None``."""
        if not self._chosen:
            return {}
        return {"num_basis": (self.basis.num_basis, f"for {x.shape[0]:,} training points")}

    @property
    def anchor_blocks(self) -> int:
        """As in ``WeightSpaceModel``."""
        return 0 if self.report is None else self.report.visited

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Exact warm start and block solves for the mean, closed-form scales.

        Cost: O(n b^2 + b^3) for the warm start, O(diagonal_rows m) for the scales; O(n m^2 + m^3)
        for a full covariance.
        """
        with torch.no_grad():
            self.num_data.fill_(float(x.shape[0]))
            m = self.basis.num_basis
            self.basis.start(x, y, self.noise_variance, generator=generator)
            if self.basis.num_basis != m:
                raise ConfigError(
                    f"num_basis={m}, but the basis has only {self.basis.num_basis} functions for "
                    f"these inputs: set num_basis to at most {self.basis.num_basis}"
                )
            if not isinstance(self.likelihood, Gaussian):
                self._start_sites(x, y)
                return
            if self.warm_start or self.block_solves:
                self.report = ascend(
                    self.basis,
                    self.family.mean.data,
                    x,
                    y,
                    self.noise_variance.detach(),
                    group=self.group,
                    warm_start=self.warm_start,
                    solves=self.block_solves,
                )
                logger.info(
                    "%d exact block solves (%s products): training residual variance %.4g",
                    self.report.solves,
                    "float64" if self.report.float64_products else "float32",
                    self.report.residual_variance,
                )
            rows = x
            if 0 < self.diagonal_rows < x.shape[0]:
                chosen = torch.randperm(x.shape[0], generator=generator, device=x.device)
                rows = x[chosen[: self.diagonal_rows]]
            self._start_scales(rows)
            if isinstance(self.family, FullWeights) and self.warm_start:
                self._start_full(self.family, x, y)

    @torch.no_grad()
    def rate_factors(self) -> dict[str, float]:
        """``variational``: one over the prior standard deviation of f, if that is above one.

        Targets have variance one, so the larger the prior variance of f, the smaller the weights
        stay; with an unscaled rate, f would move by many standard deviations in one step.
        Non-Gaussian likelihoods do not set the scale of f in this way.
        """
        if not isinstance(self.likelihood, Gaussian):
            return {}
        return {"variational": max(1.0, self.prior_variance()) ** -0.5}

    @torch.no_grad()
    def prior_variance(self) -> float:
        """The mean prior variance of f: that of a weight times its column square, summed."""
        weights = (1.0 / self.basis.precision_diagonal().double()).sum()
        return float(weights * self.basis.mean_column_square().double())

    def _start_full(self, family: FullWeights, x: Tensor, y: Tensor) -> None:
        """Set q to the exact posterior of the weights, where the bound is the log evidence."""
        every = WeightGroup.of_blocks(
            self.basis, torch.arange(self.basis.num_blocks, device=x.device)
        )
        weight = 1.0 / float(self.noise_variance)
        system = group_system(every, x.double(), y, weight=weight, prior=every.prior_precision())
        precision = system.precision + system.precision.tril(-1).mT
        name = f"precision of {every.size} basis functions"
        root = inverse_root(precision, name=name, ladder=(0.0,))  # no jitter is needed
        family.mean.copy_(system.solve(system.moment).view_as(family.mean))
        family.set_root(root.to(family.mean))

    def _start_sites(self, x: Tensor, y: Tensor) -> None:
        """Iterate site variance and scales to their fixed point, then solve for the mean."""

        def latent_variance() -> Tensor:
            blocks = torch.arange(self.basis.num_blocks, device=x.device)
            total = self.log_scales(blocks).mul_(2.0).exp_().sum(dtype=torch.float64)
            return (total * self.basis.mean_column_square()).to(x.dtype)

        self._start_scales(None)
        for _ in range(3):
            v = latent_variance()
            precision = mean_precision(sites_of(self), y, torch.zeros_like(y), v)
            self.site_variance.fill_(1.0 / precision)
            self._start_scales(None)
        if self.warm_start or self.block_solves:
            self.report = ascend_sites(
                self.basis,
                self.family.mean.data,
                sites_of(self),
                x,
                y,
                latent_variance=latent_variance(),
                group=self.site_group(x.shape[0]),
                warm_start=self.warm_start,
                solves=self.block_solves,
                passes=self.site_passes,
            )
            self._settle_sites(x, y, self.report, latent_variance)
            logger.info(
                "%d block solves for %s sites: %d iterations, %s",
                self.report.solves,
                class_name(self.likelihood),
                self.report.iterations,
                "converged" if self.report.converged else "stopped early",
            )
            passes = self.report.representer
            if passes is not None:
                logger.info(
                    "start extended to all functions: %d passes, residual %.2g",
                    passes.passes,
                    passes.residual,
                )

    def _settle_sites(
        self, x: Tensor, y: Tensor, report: SiteReport, latent_variance: Callable[[], Tensor]
    ) -> None:
        """Set the site variance to that of the solved means, without overshooting.

        The larger the site variance, the larger the latent variance v, and with it the precision
        of sites whose curvature grows with v: of a Poisson rate it is exp(f + v / 2). Where all
        counts are zero, f is so low that v would become the prior variance, and the expected rate
        exp(f + v / 2) astronomic. A step beyond the fixed point that the next one would more than
        undo is therefore cut back to the fixed point.
        """
        tiny = torch.finfo(self.site_variance.dtype).tiny
        before, proposed = max(float(self.site_variance), tiny), max(report.site_variance, tiny)
        self.site_variance.fill_(proposed)
        if report.representer is None:
            lists = torch.arange(self.basis.num_blocks, device=x.device).split(self.group)
            mean = self.family.mean.data
            parts = ((WeightGroup.of_blocks(self.basis, b), mean[b].reshape(-1)) for b in lists)
            latent = fitted_values(parts, x)
        else:
            latent = report.representer.fitted

        def excess(log_variance: float) -> float:
            """log of the site variance that follows, minus the given one."""
            self.site_variance.fill_(math.exp(log_variance))
            v = latent_variance().double()
            return -math.log(mean_precision(sites_of(self), y.double(), latent, v)) - log_variance

        low, high = math.log(before), math.log(proposed)
        step = high - low
        after = excess(high)
        if after * step >= 0.0 or abs(after) <= abs(step):
            self.site_variance.fill_(proposed)
            return
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if excess(middle) * step > 0.0 else (low, middle)
        self.site_variance.fill_(math.exp(low))

    def site_group(self, num_data: int) -> int:
        """Blocks per solve for non-Gaussian sites: at most n functions, as more add nothing."""
        return min(self.group, max(1, round(num_data / self.basis.block_size)))

    def _start_scales(self, rows: Tensor | None) -> None:
        """Set the scales to their optimum, from ``rows`` or from expected column squares."""
        expected = self.num_data * self.basis.mean_column_square()
        square = expected.expand_as(self.family.mean).clone()
        if rows is not None:
            scale = self.num_data / rows.shape[0]
            for blocks in torch.arange(self.basis.num_blocks, device=rows.device).split(self.group):
                found = WeightGroup.of_blocks(self.basis, blocks).column_squares(rows)
                square[blocks] = scale * found.view(blocks.shape[0], -1).to(square)
        self.start_scales(square)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> QSGPPosterior:
        """The posterior process under q; the data are not needed."""
        blocks = torch.arange(self.basis.num_blocks, device=self.family.mean.device)
        scale = self.log_scales(blocks).exp() * self.family.is_diagonal_column(blocks)
        posterior = self.new_posterior()
        # scales may be float64 (as the prior precision) when the weights are float32
        posterior.to(device=scale.device, dtype=self.family.mean.dtype)
        if isinstance(self.family, BlockDiagonalWeights):
            posterior.covariance = self.family.covariance.share()
        posterior.remember_columns(posterior.weight_mean, x.shape[1])
        posterior.weight_mean.copy_(self.family.mean)
        posterior.scale.copy_(scale)
        posterior.dense.copy_(self.family.dense_of(blocks))
        if self.level is not None:
            posterior.level.copy_(self.level.constant)
        return posterior

    def new_posterior(self) -> QSGPPosterior:
        """As in ``Model``."""
        if isinstance(self.family, BlockDiagonalWeights):
            storage = str(self.family.covariance.storage).removeprefix("torch.")
            return QSGPPosterior(self.basis, 0, self.family.cells, storage)
        return QSGPPosterior(self.basis, self.family.num_dense)
