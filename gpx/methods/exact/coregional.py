"""Exact regression of several correlated outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.exact.coregional_posterior import CoregionalPosterior

INDEPENDENT_SHARE = 0.1
"""Share of each output's initial variance that is uncorrelated with the other outputs."""

SHRINKAGE_ROWS = 5.0
"""Number of common rows at which the initial correlation of two outputs is shrunk by half."""


class CoregionalGP(Model):
    """Gaussian process regression of p outputs with covariance B_ij k(x, x') between them.

    The intrinsic model of coregionalisation ("multi-task" regression): y_j(x) = f_j(x) + e_j with
    cov(f_i(x), f_j(x')) = B_ij k(x, x'), B learned without restrictions, and one noise variance per
    output. Outputs with much noise or few targets borrow strength from correlated ones.

    Targets may be missing: NaN in y (n, p). If none are, B and the noise are diagonalised once and
    the work is that of p exact Gaussian processes on n points (``CompleteOutputs``); otherwise it
    is that of one process on all N observed targets (``ObservedOutputs``).

    Args:
        kernel: k of the inputs; its outputscale, if it has one, multiplies B.
        mean: shared by the outputs.
        likelihood: ``GaussianOutputs``, which sets p.
        correlation: of any two outputs before ``initialise``.

    Attributes:
        between: B (p, p), stored as its lower-triangular root.

    Raises:
        ConfigError: another likelihood, or a correlation outside [0, 1).

    Source: Bonilla, Chai and Williams 2008, section 2; for the joint diagonalisation of B and the
    noise, Rakitsch et al. 2013, section 2.2.
    """

    takes_missing_targets = True
    kernel: Kernel
    mean: Mean
    likelihood: GaussianOutputs

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: GaussianOutputs,
        correlation: float = 0.5,
    ) -> None:
        super().__init__()
        if not isinstance(likelihood, GaussianOutputs):
            raise ConfigError(
                f"likelihood={class_name(likelihood)}: CoregionalGP models several outputs with "
                "Gaussian noise: take GaussianOutputs(num_outputs)"
            )
        if not 0.0 <= correlation < 1.0:
            raise ConfigError(f"correlation={correlation} must be at least 0 and below 1")
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.between = Coregionalisation(likelihood.num_outputs, [0], correlation)

    @property
    def num_outputs(self) -> int:
        """As in ``Model``: that of the likelihood."""
        return self.likelihood.num_outputs

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Set B to the correlations of the targets, slightly shrunk towards the identity.

        A B that is not trained (``between.root``) stays as it is.
        """
        if not self.between.root.requires_grad:
            return
        start = target_correlations(y).to(self.between.root)
        start = (1.0 - INDEPENDENT_SHARE) * start + INDEPENDENT_SHARE * torch.eye(len(start)).to(
            start
        )
        self.between.root.copy_(torch.linalg.cholesky(start))

    def condition(self, x: Tensor, y: Tensor) -> CoregionalPosterior:
        """Posterior given x (n, d) and y (n, p), NaN where a target is missing.

        Cost: without missing targets an eigendecomposition of k(x, x), about 9 n^3 operations in
        four n x n arrays, one of which is kept; otherwise N^3/3 multiply-adds and an N x N array
        for N observed targets.

        Raises:
            DataError: infinite targets, or an output without any target.
            ConfigError: the arrays do not fit into free memory.
        """
        posterior = self.new_posterior()
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
