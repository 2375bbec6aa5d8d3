"""Exact regression of several correlated outputs."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from gpx.constraints import positive_parameters, set_above_floor
from gpx.errors import ConfigError, DataError, NotPositiveDefinite, class_name
from gpx.kernels.algebra import Sum
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.kernels.own_covariance import computes_as
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.model import Hyperparameters, Model
from gpx.methods.coregional.covariance import Latent, latents_of, observed_log_density
from gpx.methods.coregional.posterior import CoregionalPosterior
from gpx.sampling.batches import some_rows

INDEPENDENT_SHARE = 0.1
"""Share of each output's initial variance that is uncorrelated with the other outputs."""

SHRINKAGE_ROWS = 5.0
"""Number of common rows at which the initial correlation of two outputs is shrunk by half."""


SPREADS = ((0.5, 2.0), (0.25, 1.0), (0.125, 1.0), (0.0625, 1.0), (0.03125, 1.0))
"""Initial lengthscales of latent processes with the same kernel that are tried: shortest and
longest, as multiples of those of a single latent process. A single kernel explains the rough
part of the targets as noise; each start is therefore also tried with the noise variance times
QUIETER."""
QUIETER = 0.1
TRIED_TARGETS = 1200
"""Most targets by which starts are compared; cost is cubic in it."""

AXES_SHARE = 0.5
"""Share of the variance along each principal axis of the targets that starts in one of several
latent processes alone; the rest starts in all of them alike."""


class LatentKernels(Sum):
    """The kernels of several latent processes; sums among them are not flattened."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        super().__init__(kernels)
        self.kernels = nn.ModuleList(kernels)


class CoregionalGP(Model):
    """Gaussian process regression of p outputs with covariance sum_q (B_q)_ij k_q(x, x').

    The linear model of coregionalisation ("multi-task" regression): y_j(x) = f_j(x) + e_j, where
    the functions f are mixtures of independent latent processes, each with a kernel k_q and with
    cov(f_i(x), f_j(x')) = (B_q)_ij k_q(x, x') of its own; B_q is learned, and so is a noise
    variance for each output. With one latent process, the default, it is the intrinsic model.
    Outputs with much noise or few targets borrow strength from correlated ones.

    Targets may be missing: NaN in y (n, p). If none are and there is one latent process, B and the
    noise are diagonalised once and the work is that of p exact Gaussian processes on n points
    (``CompleteOutputs``); otherwise it is that of one process on all N observed targets
    (``ObservedOutputs``).

    Args:
        kernel: k of the inputs; its outputscale, if it has one, multiplies B.
        mean: shared by the outputs.
        likelihood: ``GaussianOutputs``, which sets p.
        correlation: of any two outputs before ``initialise``.
        num_latents: latent processes, each with a copy of ``kernel`` whose hyperparameters are its
            own; "terms": one for every term of a sum, such as RBF() + Periodic().
        rank: of B without the variance that each output has by itself, B = A A^T + diag(kappa) with
            A (p, rank); None: any B.

    Attributes:
        kernel: k; with several latent processes the sum of their kernels.
        between: B, a ``Coregionalisation``; with several latent processes a list of them.

    Raises:
        ConfigError: another likelihood, a correlation outside [0, 1), a rank outside 1 ... p, or
            latent processes that are no number from 1 and not the terms of a sum.

    Source: Goovaerts 1997, section 4.2.3, and Alvarez, Rosasco and Lawrence 2012, section 4.2; the
    intrinsic model Bonilla, Chai and Williams 2008, section 2; for the joint diagonalisation of B
    and the noise, Rakitsch et al. 2013, section 2.2.
    """

    takes_missing_targets = True
    takes_row_noise = True
    takes_cell_noise = True
    kernel: Kernel
    mean: Mean
    likelihood: GaussianOutputs
    between: Coregionalisation | nn.ModuleList

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: GaussianOutputs,
        correlation: float = 0.5,
        num_latents: int | Literal["terms"] = 1,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(likelihood, GaussianOutputs):
            raise ConfigError(
                f"likelihood={class_name(likelihood)}: CoregionalGP models several outputs with "
                "Gaussian noise: take GaussianOutputs(num_outputs)"
            )
        if not 0.0 <= correlation < 1.0:
            raise ConfigError(f"correlation={correlation} must be at least 0 and below 1")
        self.num_latents = num_latents
        self.kernel, count = _kernel_of_latents(kernel, num_latents)
        self.mean = mean
        self.likelihood = likelihood
        each = [
            Coregionalisation(likelihood.num_outputs, [0], correlation, rank) for _ in range(count)
        ]
        self.between = each[0] if count == 1 else nn.ModuleList(each)

    @property
    def latents(self) -> list[Latent]:
        """The latent processes, whose covariances add up."""
        return latents_of(self.kernel, self.between)

    def hyperparameters(self) -> Hyperparameters:
        """As in ``Model``; of copies of one kernel the first, which ``initialise`` hands on."""
        kernel = self.kernel
        first = kernel.parts[0] if isinstance(kernel, LatentKernels) else kernel
        return Hyperparameters(first, self.mean, self.likelihood)

    @property
    def num_outputs(self) -> int:
        """As in ``Model``: that of the likelihood."""
        return self.likelihood.num_outputs

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Set B to the correlations of the targets, slightly shrunk towards the identity.

        Several latent processes share these, each with more of some principal axes. Copies of a
        kernel take the hyperparameters of the first, and among equal kernels lengthscales are
        spread (``SPREADS``), as processes that start alike would stay alike. What is not trained
        stays.
        """
        start = target_correlations(y)
        start = (1.0 - INDEPENDENT_SHARE) * start + INDEPENDENT_SHARE * torch.eye(len(start)).to(
            start
        )
        latents = self.latents
        for latent, own in zip(latents, shares_of_latents(start, len(latents)), strict=True):
            latent.between.start_at(own.to(latent.between.root))
        kernels = [each.kernel for each in latents]
        if isinstance(self.kernel, LatentKernels):
            for other in kernels[1:]:
                _take_trained(kernels[0], other)
        groups = _equal_kernels(kernels)
        if groups:
            rows = some_rows(x, min(len(x), max(2, TRIED_TARGETS // y.shape[1])), generator)
            known = None if self.row_noise is None else self.row_noise.of(rows).like(y)
            self._spread(groups, x[rows], y[rows], known)

    @torch.no_grad()
    def _spread(
        self, groups: list[list[Kernel]], x: Tensor, y: Tensor, known: RowNoise | None
    ) -> None:
        """Start at the lengthscales, and the noise, that have the largest evidence on these rows.

        Cost: ten factorisations of at most ``TRIED_TARGETS`` targets.
        """
        moving = [p for part in (self.kernel, self.likelihood) for p in part.parameters()]
        given = [parameter.clone() for parameter in moving]

        def start(shortest: float, longest: float, noise: float) -> None:
            for parameter, value in zip(moving, given, strict=True):
                parameter.copy_(value)
            for alike in groups:
                for place, kernel in enumerate(alike):
                    share = place / (len(alike) - 1)
                    _rescale(kernel, "lengthscale", shortest ** (1.0 - share) * longest**share)
            _rescale(self.likelihood, "noise_variance", noise)

        tried = [(*spread, noise) for spread in SPREADS for noise in (1.0, QUIETER)]
        found = []
        for factors in tried:
            start(*factors)
            found.append(self._log_density(x, y, known))
        start(*tried[max(range(len(tried)), key=found.__getitem__)])

    def _log_density(self, x: Tensor, y: Tensor, known: RowNoise | None) -> float:
        """Log evidence of a few rows; minus infinity where it cannot be computed."""
        noise, latents = self.likelihood.noise_variance.to(y), self.latents
        noise = noise if known is None else known.variances(noise)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a start that is not taken needs no warning
            try:
                terms, _, _ = observed_log_density(
                    [each.kernel for each in latents],
                    x,
                    y - self.mean(x)[:, None],
                    [each.between.matrix().to(y) for each in latents],
                    noise,
                    gradient=False,
                )
            except (NotPositiveDefinite, DataError):  # no targets of an output in these rows
                return -math.inf
        value = float(terms.total())
        return value if math.isfinite(value) else -math.inf

    def condition(self, x: Tensor, y: Tensor) -> CoregionalPosterior:
        """Posterior given x (n, d) and y (n, p), NaN where a target is missing.

        Cost: of one latent process without missing targets an eigendecomposition of k(x, x), about
        9 n^3 operations in four n x n arrays, one of which is kept; otherwise N^3/3 multiply-adds
        and an N x N array for N observed targets.

        Raises:
            DataError: infinite targets, or an output without any target.
            ConfigError: the arrays do not fit into free memory.
        """
        posterior = self.new_posterior()
        if self.row_noise is not None:
            posterior.know_noise(self.row_noise.like(x))
        posterior.condition_(x, y)
        return posterior

    def new_posterior(self) -> CoregionalPosterior:
        """As in ``Model``."""
        return CoregionalPosterior(self.kernel, self.mean, self.likelihood, self.between)


def target_correlations(y: Tensor) -> Tensor:
    """Correlation matrix (p, p) of targets y (n, p), positive semi-definite; NaN: missing.

    That of two outputs is taken over the m rows that have both, times m / (m + SHRINKAGE_ROWS).
    """
    present = (~y.isnan()).to(y)
    filled = (y - y.nanmean(0)).nan_to_num(0.0)  # centred, to avoid cancellation
    count = present.mT @ present
    divisor = count.clamp_min(1.0)
    total = filled.mT @ present  # [i, j]: sum of output i over the rows that have j
    squares = filled.square().mT @ present - total.square() / divisor
    products = filled.mT @ filled - total * total.mT / divisor
    scale = (squares.clamp_min(0.0) * squares.mT.clamp_min(0.0)).sqrt()
    found = torch.where(scale > 0.0, products / scale, 0.0) * count / (count + SHRINKAGE_ROWS)
    found.fill_diagonal_(1.0)
    values, vectors = torch.linalg.eigh(found)  # pairwise deletion may break definiteness
    positive = (vectors * values.clamp_min(0.0)) @ vectors.mT
    deviation = positive.diagonal().sqrt()
    return positive / (deviation * deviation[:, None])


def shares_of_latents(matrix: Tensor, count: int) -> list[Tensor]:
    """Positive definite matrices (p, p), ``count`` of them, that add up to ``matrix``.

    Each has an equal part of every principal axis, and AXES_SHARE of every ``count``-th one.
    """
    if count == 1:
        return [matrix]
    values, vectors = torch.linalg.eigh(matrix)
    turn = torch.arange(len(matrix), device=matrix.device).flip(0) % count  # from the largest on
    found = []
    for place in range(count):
        weights = (1.0 - AXES_SHARE) / count + AXES_SHARE * (turn == place)
        found.append((vectors * (values * weights)) @ vectors.mT)
    return found


def _kernel_of_latents(kernel: Kernel, num_latents: int | Literal["terms"]) -> tuple[Kernel, int]:
    """The kernel of a model with these latent processes, and their number; see CoregionalGP."""
    if num_latents == "terms":
        if not (isinstance(kernel, Sum) and computes_as(kernel, Sum)):
            raise ConfigError(
                f"num_latents=terms takes a sum of kernels, one term for each latent process, such "
                f"as RBF() + Periodic(), and got {class_name(kernel)}; num_latents=2 makes two "
                "latent processes with a copy of it each"
            )
        return kernel, len(kernel.parts)
    if not isinstance(num_latents, int) or isinstance(num_latents, bool) or num_latents < 1:
        raise ConfigError(
            f"num_latents={num_latents} must be a number of latent processes from 1, or terms: one "
            "for every term of a sum of kernels"
        )
    if num_latents == 1:
        return kernel, 1
    copies = [copy.deepcopy(kernel) for _ in range(num_latents - 1)]
    return LatentKernels([kernel, *copies]), num_latents


def _take_trained(source: Kernel, target: Kernel) -> None:
    """Copy the trained parameters of one kernel into those of a copy that are trained."""
    for given, own in zip(source.parameters(), target.parameters(), strict=True):
        if own.requires_grad:
            own.copy_(given)


def _equal_kernels(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Groups of two or more kernels that are alike: what they are made of, and all their values."""
    groups: list[list[Kernel]] = []
    for kernel in kernels:
        for group in groups:
            if _alike(group[0], kernel):
                group.append(kernel)
                break
        else:
            groups.append([kernel])
    return [group for group in groups if len(group) > 1]


def _alike(left: Kernel, right: Kernel) -> bool:
    kinds = [[type(part).__name__ for part in kernel.modules()] for kernel in (left, right)]
    states = left.state_dict(), right.state_dict()
    return (
        kinds[0] == kinds[1]
        and states[0].keys() == states[1].keys()
        and all(
            value.shape == states[1][name].shape and torch.allclose(value, states[1][name])
            for name, value in states[0].items()
        )
    )


def _rescale(module: nn.Module, name: str, factor: float) -> None:
    """Multiply the trained parameters of this name in a module and its parts by ``factor``."""
    for part in module.modules():
        for own in positive_parameters(part, below=False):
            if own.name == name and own.raw.requires_grad:
                set_above_floor(part, name, factor * cast(Tensor, getattr(part, name)))
