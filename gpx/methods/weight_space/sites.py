"""Non-Gaussian likelihoods in weight space: checks, and an exact start of the weight mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gpx.bases.base import Basis
from gpx.errors import ConfigError, class_name
from gpx.inference.variational import SiteLikelihood, expected_curvature
from gpx.likelihoods.base import Likelihood
from gpx.methods.base.required_likelihood import require_one_latent
from gpx.methods.weight_space.block_ascent import solve_order
from gpx.methods.weight_space.group_solves import (
    ROW_CHUNK,
    WeightGroup,
    fitted_values,
    group_system,
)
from gpx.methods.weight_space.representer import (
    FewFunctionsPreconditioner,
    RepresenterReport,
    representer_passes,
    stepping_back,
)

MAX_ITERATIONS = 200
"""Most L-BFGS iterations per group; far fewer are needed for log-concave sites."""
TOLERANCE = 1e-5
"""Tolerance for the largest entry of the whitened gradient, relative to sqrt(n)."""
MIN_SITE_PRECISION = 1e-8
"""Lower bound of the mean precision of sites; it is negligible beside the prior."""


def check_site(likelihood: Likelihood) -> None:
    """Raise ConfigError unless every factor p(y | f) is a log-concave function of one latent f.

    The bound on a sampled sum of basis functions is Jensen's inequality, which needs concavity
    (QSGP paper, section on non-Gaussian likelihoods).
    """
    require_one_latent(likelihood, "model=QSGP()")
    if not likelihood.log_concave:
        raise ConfigError(
            "model=QSGP() needs a likelihood whose log-density is concave in f, and "
            f"{class_name(likelihood)} is not: its bound is Jensen's inequality; choose "
            "likelihood=Gaussian(), Bernoulli(), Laplace(), Poisson(), NegativeBinomial() or "
            "Gamma(), or model=SVGP()"
        )


class AtLevel(NamedTuple):
    """p(y | f) with f = phi^T w + level, of which the latent is the first part.

    Attributes:
        likelihood: p(y | f).
        level ().
    """

    likelihood: Likelihood
    level: Tensor

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """As in ``Likelihood``, given the mean and variance of phi^T w."""
        return self.likelihood.expected_log_prob(y, mean + self.level.to(mean.dtype), variance)


def sites_of(model: Any) -> SiteLikelihood:
    """The likelihood of phi^T w: that of a model, or what is left of it beside its ``level``."""
    level = getattr(model, "level", None)
    return model.likelihood if level is None else AtLevel(model.likelihood, level.constant)


@dataclass(frozen=True)
class SiteReport:
    """Result of the exact start of the mean.

    Attributes:
        solves: number of groups solved.
        visited: number of leading blocks solved; 0 if passes then set the weights of all blocks.
        iterations: of L-BFGS, in all groups together.
        converged: whether every group met the tolerance.
        site_variance: 1 / mean precision of the sites afterwards.
        representer: report of the passes over all functions; None: there were none.
    """

    solves: int
    visited: int
    iterations: int
    converged: bool
    site_variance: float
    representer: RepresenterReport | None = None


@torch.no_grad()
def ascend_sites(
    basis: Basis,
    mean: Tensor,
    likelihood: SiteLikelihood,
    x: Tensor,
    y: Tensor,
    *,
    latent_variance: Tensor,
    group: int,
    warm_start: bool,
    solves: int,
    passes: int = 0,
) -> SiteReport:
    """Maximise the evidence bound over the weight mean, one group of blocks at a time, in place.

    The bound given the latent variances v is sum_l E log p(y_l | N(phi_l mu, v_l)) - mu^T S mu / 2,
    concave for log-concave sites. Each group is maximised by L-BFGS in coordinates that whiten
    precision * Phi_B^T Phi_B + S_BB, so that few iterations suffice. Warm start and order of the
    groups are those of ``block_ascent.ascend``.

    Args:
        basis: phi with S diagonal.
        mean (B, W): weight means, changed in place.
        likelihood: with log-concave sites.
        x (n, d), y (n,): all training data.
        latent_variance (): v, the same for all rows.
        group: blocks per solve.
        warm_start: solve the first group as if it were the whole basis, first.
        solves: further solves of one group each, at the true prior.
        passes: over all features after the warm start, which extend it to all functions
            (``representer``); ignored without a warm start.

    Cost per group of b functions: O(n b^2 + b^3) once and O(n b + b^2) per iteration; O(n b + b^2)
    memory.
    """
    lists = torch.arange(basis.num_blocks, device=x.device).split(group)
    parts = ((WeightGroup.of_blocks(basis, b), mean[b].reshape(-1)) for b in lists)
    latent = fitted_values(parts, x).to(y.dtype)
    share = lists[0].shape[0] / basis.num_blocks

    def bound(fitted: Tensor, table: Tensor = mean) -> float:
        """The bound up to a constant, given the fitted values (n,) of the weights (B, W)."""
        variance = latent_variance.double().expand_as(y)
        fit = likelihood.expected_log_prob(y.double(), fitted.double(), variance).sum()
        prior = basis.precision_diagonal().double().view_as(table)
        return float(fit - 0.5 * (prior * table.double().square()).sum())

    order = solve_order(len(lists), warm_start=warm_start, solves=solves, share=share)
    iterations, converged, report = 0, True, None
    for index, prior_scale in order:
        blocks = lists[index]
        weights = mean[blocks].reshape(-1).to(x.dtype)
        phi = _features(basis, x, blocks)
        others = latent - phi @ weights
        precision = prior_scale * basis.block_precision(blocks).double()
        curvature = mean_precision(likelihood, y, latent, latent_variance)
        root = _normal_root(basis, blocks, x, y, curvature, precision)
        new, count, done = _maximise(
            likelihood, phi, y, others, latent_variance, precision, root, weights.double()
        )
        iterations, converged = iterations + count, converged and done
        mean[blocks] = new.to(mean.dtype).view(-1, basis.block_size)
        latent = others + phi @ new.to(x.dtype)
        if warm_start and passes and report is None:
            few = mean.clone()
            report = representer_passes(
                basis,
                mean,
                likelihood,
                x,
                y,
                latent=latent,
                latent_variance=latent_variance,
                preconditioner=FewFunctionsPreconditioner(phi, root, curvature),
                passes=passes,
            )
            if report.converged or bound(report.fitted) >= bound(latent, few):
                latent = report.fitted.to(x.dtype)
            else:  # counts so large that the slopes are far off: the few functions fit better
                mean.copy_(few)
                report, passes = None, 0
    final = mean_precision(likelihood, y, latent, latent_variance)
    visited = 0 if report else sum(blocks.shape[0] for blocks in lists[: len(order)])
    return SiteReport(len(order), visited, iterations, converged, 1.0 / final, report)


@torch.no_grad()
def improve_sites(
    basis: Basis,
    mean: Tensor,
    likelihood: SiteLikelihood,
    x: Tensor,
    y: Tensor,
    *,
    latent: Tensor,
    latent_variance: Tensor,
    alpha: Tensor,
    group: int,
    passes: int,
) -> RepresenterReport:
    """Improve the current weights of all functions in place; the bound never falls.

    Args:
        basis, mean, likelihood, x, y, latent_variance, passes: as for ``ascend_sites``.
        latent (n,): Phi mean.
        alpha (n,): from the last passes.
        group: number of leading blocks used for preconditioning.

    Cost: O(n m d) per pass, and O(n b^2 + b^3) for the b functions of the group.
    """
    blocks = torch.arange(group, device=x.device)
    precision = basis.block_precision(blocks).double()
    curvature = mean_precision(likelihood, y, latent.to(y.dtype), latent_variance)
    share = group / basis.num_blocks
    root = _normal_root(basis, blocks, x, y, curvature, share * precision)
    return representer_passes(
        basis,
        mean,
        likelihood,
        x,
        y,
        latent=latent,
        latent_variance=latent_variance,
        preconditioner=FewFunctionsPreconditioner(_features(basis, x, blocks), root, curvature),
        passes=passes,
        alpha=alpha,
    )


def mean_precision(
    likelihood: SiteLikelihood, y: Tensor, latent: Tensor, latent_variance: Tensor
) -> float:
    """Mean precision of the sites, for one latent variance () that all rows share.

    At least ``MIN_SITE_PRECISION``, since sites that are linear around their latent means (Laplace,
    far from the targets) have precision zero.
    """
    found = expected_curvature(likelihood, y, latent, latent_variance.expand_as(y)).precision.mean()
    return max(float(found), MIN_SITE_PRECISION)


def _normal_root(
    basis: Basis, blocks: Tensor, x: Tensor, y: Tensor, curvature: float, precision: Tensor
) -> Tensor:
    """Lower Cholesky root of curvature * Phi_B^T Phi_B + diag(precision), (b, b) float64."""
    group = WeightGroup.of_blocks(basis, blocks)
    return group_system(group, x, y, weight=curvature, prior=precision).factor


def _features(basis: Basis, x: Tensor, blocks: Tensor) -> Tensor:
    """Phi_B (n, b), in x's dtype."""
    return torch.cat([basis.block_features(rows, blocks) for rows in x.split(ROW_CHUNK)])


def _maximise(
    likelihood: SiteLikelihood,
    phi: Tensor,
    y: Tensor,
    others: Tensor,
    latent_variance: Tensor,
    precision: Tensor,
    root: Tensor,
    start: Tensor,
) -> tuple[Tensor, int, bool]:
    """Maximise by L-BFGS over u = root^T mu; returns mu (b,), iterations and convergence."""
    # in float64, as counts overflow float32 where a line search tries large latent values
    targets, variance = y.double(), latent_variance.double().expand_as(y)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        u = torch.from_numpy(flat).to(root)
        mu = torch.linalg.solve_triangular(root.mT, u[:, None], upper=True)[:, 0]
        latent = (others + phi @ mu.to(phi.dtype)).double()
        with torch.enable_grad():
            latent.requires_grad_()
            fit = likelihood.expected_log_prob(targets, latent, variance).sum()
            (slope,) = torch.autograd.grad(fit, latent)
        gradient = precision * mu - (slope.to(phi.dtype) @ phi).double()
        value = 0.5 * (precision * mu.square()).sum() - fit.detach()
        whitened = torch.linalg.solve_triangular(root, gradient[:, None], upper=False)[:, 0]
        return float(value), whitened.cpu().numpy()

    first = (root.mT @ start).cpu().numpy()
    # the whitened gradient of a fit to n points is of order sqrt(n) at the start
    tolerance = TOLERANCE * len(y) ** 0.5
    # a line search cannot resolve changes below the rounding error of the latent means
    flat = 100.0 * torch.finfo(y.dtype).eps
    options = {"maxiter": MAX_ITERATIONS, "gtol": tolerance, "ftol": flat, "maxcor": 20}
    found = minimize(stepping_back(loss), first, jac=True, method="L-BFGS-B", options=options)
    u = torch.from_numpy(found.x).to(root)
    mu = torch.linalg.solve_triangular(root.mT, u[:, None], upper=True)[:, 0]
    return mu, int(found.nit), bool(found.success)
