"""Gaussian processes in weight space: f(x) = phi(x)^T w, Gaussian q over very many weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gpx.bases.grid_eigenfunctions.features import GridFeatures
from gpx.errors import ConfigError, class_name
from gpx.likelihoods import Gaussian, Likelihood
from gpx.linalg.cholesky import cholesky
from gpx.means import Zero
from gpx.methods.base.model import Model
from gpx.methods.weight_space.basis import weight_space_basis
from gpx.methods.weight_space.block_ascent import BlockReport, ascend, normal_equations
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cells import Cells
from gpx.methods.weight_space.chevron import ChevronWeights
from gpx.methods.weight_space.full_covariance import FullWeights
from gpx.methods.weight_space.mean_field import Diagonal, MeanFieldWeights
from gpx.methods.weight_space.posterior import QSGPPosterior
from gpx.methods.weight_space.sites import SiteReport, ascend_sites, check_site, site_precision

Covariance = Literal["mean_field", "block_diagonal", "chevron", "full"]
logger = logging.getLogger(__name__)


class QSGP(Model):
    """Model of quadruply stochastic Gaussian processes: random Fourier features, q(w) Gaussian.

    y = phi(x)^T w + noise, w ~ N(0, S^-1), phi the m scaled random Fourier features of the kernel;
    q(w) = N(mu, C C^T) with C diagonal (``mean_field``), with K dense columns (``chevron``) or any
    lower triangle (``full``, a few thousand functions at most). The state is O(m) numbers, m^2 for
    the last; neither features nor frequencies are ever stored.

    ``initialise`` solves for one group of ``warm_start_size`` weights exactly as if it were the
    whole basis (one pass over the data), then solves ``block_solves`` further groups in turn, each
    exactly given the others (block ascent); all further learning is the objective's.

    Args:
        kernel: stationary kernel with a spectral sampler (RBF, Matern).
        mean: must be Zero (targets are standardised; the prior mean of the weights is zero).
        likelihood: Gaussian, or any with log-concave sites of one latent (Bernoulli, Laplace,
            Poisson); those train with SiteBoundELBO.
        num_basis: m, even.
        covariance: ``mean_field``, ``block_diagonal``, ``chevron`` or ``full``.
        num_dense: K, dense columns of a chevron covariance; 0 for the others.
        block_columns: weights that a block step solves for, b, rounded to groups of the basis; its
            cosines and its sines are the blocks of a block_diagonal covariance (``Cells``).
        covariance_storage: dtype of those blocks, b / 4 numbers per column.
        diagonal: ``closed_form`` (c_r at its optimum, no parameter) or ``free`` (a parameter).
        warm_start: whether to solve the first group exactly; with ``full``, for all of q.
        warm_start_size: weights per exact solve, b; rounded to whole blocks.
        block_solves: exact group solves after the warm start, O(n b^2 + b^3) each; m / b of them
            make one sweep of block ascent.
        diagonal_rows: training rows that the closed-form scales see (0: all rows, O(n m) once).
        seed: of the random frequencies.
        block_frequencies: upper limit of frequencies per block.
        basis: which frequencies: random_fourier (independent), orthogonal, structured_orthogonal,
            quasi_monte_carlo or gauss_hermite; or grief: the leading eigenfunctions of the kernel
            on a grid (``GridFeatures``).
        site_passes: likelihoods other than Gaussian: passes over all features at most that spread
            the warm start over all weights (``site_spread``), O(n m d) each; 0 leaves it on its
            group.
        spread: factors by which random frequencies are drawn farther out than the spectral
            density has them, made up for by prior variances (``RandomFourier``); ``auto``: from
            the kind of kernel (``automatic_spread``).

    Raises:
        ConfigError: a mean, likelihood, kernel or option that does not fit.

    Source: Evans and Nair 2020 (QSGP); Rahimi and Recht 2007; the exact starts are ours.
    """

    num_data: Tensor
    site_variance: Tensor

    def __init__(
        self,
        kernel: nn.Module,
        mean: nn.Module,
        likelihood: Likelihood,
        num_basis: int = 100_000,
        covariance: Covariance = "mean_field",
        num_dense: int = 0,
        block_columns: int = 5000,
        covariance_storage: str = "float32",
        diagonal: Diagonal = "closed_form",
        warm_start: bool = True,
        warm_start_size: int = 5000,
        block_solves: int = 0,
        diagonal_rows: int = 2000,
        seed: int = 0,
        block_frequencies: int = 500,
        basis: str = "random_fourier",
        site_passes: int = 6,
        spread: Literal["auto"] | float | Sequence[float] = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(mean, Zero):
            raise ConfigError(
                f"approx=qsgp needs mean=zero, got {type(mean).__name__}: weight-space models put "
                "no prior mean on the weights, and targets are standardised"
            )
        check_site(likelihood)
        if covariance not in get_args(Covariance):
            raise ConfigError(
                f"covariance={covariance}: expected one of {', '.join(get_args(Covariance))}"
            )
        if (covariance == "chevron") != (num_dense > 0):
            raise ConfigError(
                f"covariance={covariance} with num_dense={num_dense}: chevron needs num_dense >= 1 "
                "and the others need num_dense=0"
            )
        if warm_start_size < 1 or min(block_solves, diagonal_rows, site_passes) < 0:
            raise ConfigError(
                f"warm_start_size={warm_start_size} must be at least 1, block_solves="
                f"{block_solves}, diagonal_rows={diagonal_rows} and site_passes={site_passes} at "
                "least 0"
            )
        self.basis = weight_space_basis(
            basis,
            kernel,
            num_basis,
            seed=seed,
            block_frequencies=block_frequencies,
            spread=spread,
        )
        self.mean = mean
        self.likelihood = likelihood
        blocks, width = self.basis.num_blocks, self.basis.block_size
        self.family: MeanFieldWeights
        if covariance == "block_diagonal":
            if diagonal != "closed_form" or warm_start or block_solves:
                raise ConfigError(
                    f"covariance=block_diagonal is solved by optimizer=qsgp_blocks, also its start "
                    f"and its scales; got diagonal={diagonal}, warm_start={warm_start}, "
                    f"block_solves={block_solves}: set closed_form, false and 0"
                )
            cells = Cells.of(self.basis, block_columns)
            self.family = BlockDiagonalWeights(cells, covariance_storage)
        elif covariance == "full":
            self.family = FullWeights(blocks, width)
        elif covariance == "chevron":
            self.family = ChevronWeights(blocks, width, num_dense, diagonal)
        else:
            self.family = MeanFieldWeights(blocks, width, diagonal)
        self.warm_start = warm_start
        self.group = min(blocks, max(1, round(warm_start_size / width)))
        self.block_solves = block_solves
        self.diagonal_rows = diagonal_rows
        self.site_passes = site_passes
        self.report: BlockReport | SiteReport | None = None
        # a tensor, so that steps read it without leaving the device
        self.register_buffer("num_data", torch.ones(()))
        # noise variance of the Gaussian sites that stand in for others where scales are closed form
        self.register_buffer("site_variance", torch.ones(()))

    @property
    def kernel(self) -> nn.Module:
        """Covariance function; the basis owns it."""
        return self.basis.kernel

    @property
    def anchor_blocks(self) -> int:
        """Leading blocks that exact solves have filled; 0 without any."""
        return 0 if self.report is None else self.report.visited

    @property
    def noise_variance(self) -> Tensor:
        """Noise variance of the likelihood, 0-d; of the stand-in for sites that have none."""
        if not isinstance(self.likelihood, Gaussian):
            return self.site_variance
        return self.likelihood.noise_variance

    def log_scales(self, blocks: Tensor, *, sparse: bool = False) -> Tensor:
        """log c (L, W) of the diagonal columns of ``blocks``."""
        precision = self.basis.precision_diagonal(self.basis.columns_of(blocks))
        return self.family.log_scale_of(
            blocks,
            column_square=self.num_data * self.basis.mean_column_square(),
            precision=precision.view(blocks.shape[0], -1),
            noise=self.noise_variance,
            sparse=sparse,
        )

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Exact warm start and block solves for the mean, closed form for the scales.

        Cost: O(n b^2 + b^3) for the warm start, O(diagonal_rows m) for the scales; O(n m^2 + m^3)
        for a full covariance.
        """
        with torch.no_grad():
            self.num_data.fill_(float(x.shape[0]))
            if isinstance(self.basis, GridFeatures):
                self.basis.place_and_select(x)
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

    def _start_full(self, family: FullWeights, x: Tensor, y: Tensor) -> None:
        """q at the exact posterior of the weights, where the bound is the log evidence."""
        blocks = torch.arange(self.basis.num_blocks, device=x.device)
        gram, moment = normal_equations(self.basis, blocks, x, y, dtype=torch.float64)
        noise = self.noise_variance.double()
        precision = gram / noise + torch.diag(self.basis.precision_diagonal().double())
        factor, _ = cholesky(precision, name=f"precision of {precision.shape[0]} basis functions")
        inverse = torch.cholesky_inverse(factor)
        root, _ = cholesky(inverse, name=f"covariance of {precision.shape[0]} basis functions")
        family.mean.copy_((inverse @ (moment / noise)).view_as(family.mean))
        family.set_root(root.to(family.mean))

    def _start_sites(self, x: Tensor, y: Tensor) -> None:
        """Site variance and scales in turn to their fixed point, then the mean given them."""

        def latent_variance() -> Tensor:
            blocks = torch.arange(self.basis.num_blocks, device=x.device)
            total = self.log_scales(blocks).mul_(2.0).exp_().sum(dtype=torch.float64)
            return (total * self.basis.mean_column_square()).to(x.dtype)

        self._start_scales(None)
        for _ in range(3):
            v = latent_variance().expand_as(y)
            precision = site_precision(self.likelihood, y, torch.zeros_like(y), v).mean()
            self.site_variance.copy_(1.0 / precision)
            self._start_scales(None)
        if self.warm_start or self.block_solves:
            self.report = ascend_sites(
                self.basis,
                self.family.mean.data,
                self.likelihood,
                x,
                y,
                latent_variance=latent_variance(),
                group=self.site_group(x.shape[0]),
                warm_start=self.warm_start,
                solves=self.block_solves,
                passes=self.site_passes,
            )
            self.site_variance.fill_(self.report.site_variance)
            logger.info(
                "%d block solves for %s sites: %d iterations, %s",
                self.report.solves,
                class_name(self.likelihood),
                self.report.iterations,
                "converged" if self.report.converged else "stopped early",
            )
            spread = self.report.spread
            if spread is not None:
                logger.info(
                    "start spread over all functions: %d passes, residual %.2g",
                    spread.passes,
                    spread.residual,
                )

    def site_group(self, num_data: int) -> int:
        """Blocks per solve for sites: no more functions than rows, which they would only repeat."""
        return min(self.group, max(1, round(num_data / self.basis.block_size)))

    def _start_scales(self, rows: Tensor | None) -> None:
        """Scales at their optimum; without ``rows`` columns have their expected squares."""
        ratio = torch.ones_like(self.family.mean)
        if rows is not None:
            expected = rows.shape[0] * self.basis.mean_column_square()
            for blocks in torch.arange(self.basis.num_blocks, device=rows.device).split(16):
                features = self.basis.block_features(rows, blocks)
                ratio[blocks] = (features.square().sum(0) / expected).view(blocks.shape[0], -1)
        column_square = self.num_data * self.basis.mean_column_square() * ratio
        noise = self.noise_variance
        precision = self.basis.precision_diagonal().view_as(ratio)
        log_scale = 0.5 * (noise.log() - torch.log(column_square + noise * precision))
        self.family.set_scales(log_scale, ratio)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: sparse tables of q; ``hyperparameters``: kernel and noise."""
        return {
            "variational": self.family.parameter_list(),
            "hyperparameters": [
                *self.basis.parameters(),
                *self.mean.parameters(),
                *self.likelihood.parameters(),
            ],
        }

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> QSGPPosterior:
        """The posterior process under q; q is a parameter, so the data are not needed."""
        blocks = torch.arange(self.basis.num_blocks, device=self.family.mean.device)
        scale = self.log_scales(blocks).exp() * self.family.is_diagonal_column(blocks)
        posterior = self.new_posterior()
        posterior.to(device=scale.device, dtype=scale.dtype)
        if isinstance(self.family, BlockDiagonalWeights):
            posterior.covariance = self.family.covariance.share()
        posterior.weight_mean.copy_(self.family.mean)
        posterior.scale.copy_(scale)
        posterior.dense.copy_(self.family.dense_of(blocks))
        return posterior

    def new_posterior(self) -> QSGPPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        if isinstance(self.family, BlockDiagonalWeights):
            storage = str(self.family.covariance.storage).removeprefix("torch.")
            return QSGPPosterior(self.basis, 0, self.family.cells, storage)
        return QSGPPosterior(self.basis, self.family.num_dense)
