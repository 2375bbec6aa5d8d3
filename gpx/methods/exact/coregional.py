"""Exact regression of several outputs that share what they have in common."""

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

OWN_SHARE = 0.1
"""Of an output's variance at the start that no other output says anything of."""


FEW_ROWS = 5.0
"""Rows that two outputs share, of which their correlation is halved at the start."""


class CoregionalGP(Model):
    """Gaussian process regression of p outputs with covariance B_ij k(x, x') between them.

    The intrinsic model of coregionalisation ("multi-task" regression): y_j(x) = f_j(x) + e_j with
    cov(f_i(x), f_j(x')) = B_ij k(x, x'), B free and learned, and a noise variance of its own for
    every output. An output with much noise, or with few targets, leans on those that it goes with.

    A target may be missing: NaN in y (n, p). Without any, B and the noise are diagonalised once
    and the work is that of p exact Gaussian processes on n points (``CompleteOutputs``); with some,
    it is that of one on all N observed targets (``ObservedOutputs``).

    Args:
        kernel: k of the inputs; its outputscale, where it has one, multiplies B.
        mean: shared by the outputs.
        likelihood: ``GaussianOutputs``, which says p.
        correlation: of any two outputs before ``initialise`` has seen the data.

    Attributes:
        between: B (p, p), by its lower-triangular root.

    Raises:
        ConfigError: another likelihood, or a correlation outside [0, 1).

    Source: Bonilla, Chai and Williams 2008, section 2; Rakitsch et al. 2013, section 2.2, for the
    diagonalisation under noise of several variances.
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
        """As many as the likelihood has."""
        return self.likelihood.num_outputs

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Start B at the correlations of the targets, over rows that have both; shrunk a little."""
        start = target_correlations(y).to(self.between.root)
        start = (1.0 - OWN_SHARE) * start + OWN_SHARE * torch.eye(len(start)).to(start)
        self.between.root.copy_(torch.linalg.cholesky(start))

    def condition(self, x: Tensor, y: Tensor) -> CoregionalPosterior:
        """Posterior given x (n, d) and y (n, p), NaN where a target is missing.

        Cost: without missing targets an eigendecomposition of k(x, x), some 9 n^3 operations in
        four n x n arrays, one of which is kept; with some, N^3/3 multiply-adds and an N x N array
        for N observed ones.

        Raises:
            DataError: infinite targets, or none at all.
            ConfigError: the arrays do not fit into the memory that is left.
        """
        posterior = self.new_posterior()
        posterior.condition_(x, y)
        return posterior

    def new_posterior(self) -> CoregionalPosterior:
        """As in ``Model``."""
        return CoregionalPosterior(self.kernel, self.mean, self.likelihood, self.between)


def target_correlations(y: Tensor) -> Tensor:
    """Correlations (p, p) of targets y (n, p) over the rows that have both; positive semi-definite.

    Ones on the diagonal. Those of m rows are shrunk to m / (m + FEW_ROWS) of themselves.
    """
    share = (~y.isnan()).to(y)
    filled = (y - y.nanmean(0)).nan_to_num(0.0)  # large means would leave differences no digits
    count = share.mT @ share
    some = count.clamp_min(1.0)
    total = filled.mT @ share  # [i, j]: of output i, over the rows that have j
    squares = filled.square().mT @ share - total.square() / some
    products = filled.mT @ filled - total * total.mT / some
    scale = (squares.clamp_min(0.0) * squares.mT.clamp_min(0.0)).sqrt()
    found = torch.where(scale > 0.0, products / scale, 0.0) * count / (count + FEW_ROWS)
    found.fill_diagonal_(1.0)
    values, vectors = torch.linalg.eigh(found)  # pairwise rows: not always positive semi-definite
    positive = (vectors * values.clamp_min(0.0)) @ vectors.mT
    deviation = positive.diagonal().sqrt()
    return positive / (deviation * deviation[:, None])
