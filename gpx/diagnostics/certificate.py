"""Certified bounds on the inference of a trained Gaussian process regression at chosen points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.diagnostics.collapse import collapse_reason
from gpx.diagnostics.effective_dimension import effective_dimension_bounds
from gpx.diagnostics.event_probability import (
    exceedance_interval,
    exceedance_probability,
    probability_interval,
)
from gpx.diagnostics.evidence_bounds import (
    bounds_rounding,
    cg_lower_bound_value,
    cg_upper_bound,
    collapsed_bound_value,
    titsias_upper_bound,
)
from gpx.diagnostics.moment_bounds import MomentBounds, moment_bounds_from_kl
from gpx.diagnostics.nystrom_moments import nystrom_moment_bounds, solved_moment_bounds
from gpx.errors import ConfigError, DTypeError, NotPositiveDefinite, class_name
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.auxiliary import AuxiliarySolver
from gpx.inference.dense_factor import row_blocks
from gpx.inference.exact_posterior import ExactPosterior
from gpx.inference.exact_solver import require_finite
from gpx.inference.kl_bounds import kl_upper_bound, kl_upper_bound_cg
from gpx.inference.nystrom import BlockStore
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.inference.rounding import (
    condition_bound,
    entry_rounding,
    event_rounding,
    evidence_rounding,
    factor_rounding,
    moment_rounding,
)
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import SolveReport
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals
from gpx.methods.sparse.sgpr import SGPRPosterior


@dataclass(frozen=True)
class Certificate:
    """Certified bounds, in the unit of the given targets (nats for evidence and divergences).

    Attributes:
        num_data, num_inducing: n, M; M = 0 for exact inference.
        noise: noise variance.
        lower_bounds, upper_bounds: on the log marginal likelihood, by name; for exact inference
            both hold its value.
        rounding: bound in nats on the rounding error of these; ``lower`` and ``upper`` include it.
        kl: upper bound on KL(q || posterior) of the sparse posterior; 0 for exact inference.
        trace_error: T = tr(K_xx - Q_xx).
        jitter: on K_zz, relative to its mean diagonal.
        dimension_lower, dimension_upper: bounds on the effective dimension.
        moments: bounds on the exact posterior mean and variance of f at the chosen points.
        predicted: mean and variance of the model there.
        sparse: mean and variance of q there; None for exact inference.
        event_rounding: bound on the rounding error of a probability under q at these points.
        noise_share: noise variance divided by the variance of the targets.
        collapse: reason why the model explains the data as noise, otherwise "".
        report: of conjugate gradients; None if they did not run.
    """

    num_data: int
    num_inducing: int
    noise: float
    lower_bounds: dict[str, float]
    upper_bounds: dict[str, float]
    rounding: float
    kl: float
    trace_error: float
    jitter: float
    dimension_lower: float
    dimension_upper: float
    moments: MomentBounds
    predicted: Marginals
    sparse: Marginals | None
    event_rounding: float
    noise_share: float
    collapse: str
    report: SolveReport | None

    @property
    def lower(self) -> float:
        """The highest lower bound on the log marginal likelihood, minus rounding."""
        return max(self.lower_bounds.values()) - self.rounding

    @property
    def upper(self) -> float:
        """The lowest upper bound on the log marginal likelihood, plus rounding."""
        return min(self.upper_bounds.values()) + self.rounding

    @property
    def mean_error(self) -> Tensor:
        """Upper bound (t,) on the distance of a predicted mean from the exact one."""
        mean = self.predicted.mean
        return torch.maximum(self.moments.mean_upper - mean, mean - self.moments.mean_lower)

    @property
    def certain_mean_error(self) -> Tensor:
        """Lower bound (t,) on the distance of a predicted mean from the exact one."""
        mean = self.predicted.mean
        outside = torch.maximum(mean - self.moments.mean_upper, self.moments.mean_lower - mean)
        return outside.clamp(min=0.0)

    def probability_bounds(self, threshold: float) -> tuple[Tensor, Tensor]:
        """Bounds (t,), (t,) on the exact P(y >= threshold), from the moments and the divergence."""
        noise, level = self.predicted.mean.new_tensor([self.noise, threshold], dtype=torch.float64)
        lower, upper = exceedance_interval(self.moments, noise, level)
        if self.sparse is None:
            return lower, upper
        sparse = exceedance_probability(self.sparse.mean, self.sparse.variance, noise, level)
        kl_lower, kl_upper = probability_interval(sparse, noise.new_tensor(self.kl))
        lower = torch.maximum(lower, kl_lower - self.event_rounding)
        upper = torch.minimum(upper, kl_upper + self.event_rounding)
        return torch.minimum(lower, upper), torch.maximum(lower, upper)  # rounding may cross them


@torch.no_grad()
def certify(
    kernel: Kernel,
    mean: Mean,
    likelihood: Gaussian,
    z: Tensor,
    x: Tensor,
    y: Tensor,
    points: Tensor,
    predicted: Marginals | None = None,
    *,
    products: bool = True,
    jitter: float | None = None,
    nystrom: NystromMatrix | None = None,
    features: InducingFeatures = POINTS,
    solver: AuxiliarySolver | None = None,
) -> Certificate:
    """Bounds on the evidence, the divergence and the exact moments, from inducing points.

    Three kinds of interval are intersected: from KL(q || posterior) around q, from the Nystrom
    matrix, and, with ``products``, from conjugate gradients on K. A certificate is about inference
    at the given hyperparameters, not about the quality of these.

    Args:
        kernel, mean, likelihood: trained, in float64.
        z (M, d): inducing inputs; bounds hold for any, and are tighter for better ones.
        x (n, d), y (n,): training data.
        points (t, d): points at which to certify moments.
        predicted: the model's predictions there; None: the sparse posterior of z.
        products: whether products with the kernel matrix may be used (n^2 each).
        jitter: on K_zz; use that of the run, so that the divergence is that of its q.
        nystrom: Q of z and y - m(x), if it has been computed.
        features: inducing features of z, used if ``nystrom`` is None.
        solver: accuracy in nats and steps of conjugate gradients; default 1e-6 nats, 200 steps.

    Raises:
        ConfigError: a likelihood that is not Gaussian.
        DTypeError: data that are not float64.
        DataError: targets that are not finite.
        NotPositiveDefinite: K_zz at every jitter.

    Cost: n M^2; with products one product per step for the evidence, and one with 64 columns per
    step and 64 points; memory n M within the solver's budget, beyond that linear in n.
    Source: Burt thesis, sections 2.4 and 4.2 to 4.3.
    """
    _check(likelihood, x)
    solver = AuxiliarySolver(epsilon=1e-6, max_iterations=200) if solver is None else solver
    target, noise = y - mean(x), likelihood.noise_variance.detach()
    require_finite(target)
    if nystrom is None:
        nystrom = NystromMatrix.of(
            kernel,
            x,
            z,
            target,
            noise,
            jitter=jitter,
            memory_budget=solver.budget,
            features=features,
        )
    whitener = nystrom.store.whitener
    posterior = SGPRPosterior(kernel, mean, whitener.features)
    posterior.fill(whitener, nystrom.inner.factor, nystrom.inner.weights)
    sparse = posterior.predict(points)
    prior, prior_mean = kernel.diagonal(points), mean(points)

    lowers = {"collapsed bound": float(collapsed_bound_value(nystrom, target))}
    uppers = {"refined Titsias bound": float(titsias_upper_bound(nystrom, target))}
    factor = factor_rounding(nystrom)
    kl = float(kl_upper_bound(nystrom.sums, noise, rounding=factor))
    vector = residual = report = None
    if products:
        matrix = solver.matrix(kernel, x, noise)
        found = solver.solve(matrix, nystrom, target, nystrom.shifted_solve(target))
        vector, residual, report = found.vector, found.residual, found.report
        parts = (nystrom, target, vector, residual)
        lowers["conjugate gradient lower bound"] = float(cg_lower_bound_value(*parts))
        uppers["conjugate gradient upper bound"] = float(cg_upper_bound(*parts))
        kl = min(kl, float(kl_upper_bound_cg(*parts)))
    moments = nystrom_moment_bounds(
        kernel, nystrom, target, points, vector=vector, residual=residual
    )
    if vector is not None and residual is not None:
        moments = moments.intersect(
            solved_moment_bounds(
                kernel,
                matrix,
                nystrom,
                target,
                points,
                vector=vector,
                residual=residual,
                max_iterations=solver.max_iterations,
            )
        )
    by_kl = moment_bounds_from_kl(
        y.new_tensor(kl), sparse.mean - prior_mean, sparse.variance, moments.variance_upper
    )
    quadratic = torch.dot(target, nystrom.solve(target))
    rounding = moment_rounding(
        condition_bound(nystrom),
        prior,
        quadratic,
        entry=entry_rounding(kernel, torch.cat([points, x])),
        factor=factor / nystrom.noise,
    )
    moments = moments.intersect(by_kl).widen(*rounding)
    moments = moments._replace(
        mean_lower=moments.mean_lower + prior_mean,
        mean_upper=moments.mean_upper + prior_mean,
        variance_upper=torch.minimum(moments.variance_upper, prior),
    )
    low, high = effective_dimension_bounds(nystrom)
    return Certificate(
        num_data=x.shape[0],
        num_inducing=nystrom.store.whitener.z.shape[0],
        noise=float(noise),
        lower_bounds=lowers,
        upper_bounds=uppers,
        rounding=float(bounds_rounding(nystrom, target)),
        kl=kl,
        trace_error=float(nystrom.sums.trace_error),
        jitter=nystrom.report.relative,
        dimension_lower=float(low),
        dimension_upper=min(float(high), float(x.shape[0])),
        moments=moments,
        predicted=sparse if predicted is None else predicted,
        sparse=sparse,
        event_rounding=float(event_rounding(*rounding, nystrom.noise)),
        noise_share=float(likelihood.noise_variance / y.var(correction=0)),
        collapse=collapse_reason(float(noise), y, _fitted_values(nystrom) + mean(x)),
        report=report,
    )


@torch.no_grad()
def certify_exact(
    kernel: Kernel,
    mean: Mean,
    likelihood: Gaussian,
    x: Tensor,
    y: Tensor,
    points: Tensor,
    predicted: Marginals | None = None,
) -> Certificate:
    """``certify`` by a Cholesky factorisation: intervals are as narrow as rounding allows.

    Args: as for ``certify``.

    Raises: as ``certify``, and ConfigError if the n x n matrix does not fit into memory.

    Cost: n^3 / 3 and n^2 per point; memory n^2.
    """
    _check(likelihood, x)
    target, noise = y - mean(x), float(likelihood.noise_variance)
    require_finite(target)
    posterior = ExactPosterior(kernel, mean, likelihood)
    jitter = posterior.condition_(x, y).relative
    if jitter:
        raise NotPositiveDefinite(
            f"exact inference needed a jitter of {jitter:.0e} and is not exact: the noise variance "
            f"{noise:.2e} is lost in rounding; set a larger one"
        )
    exact, factor = posterior.predict(points), posterior.factor
    assert factor is not None
    whitened = torch.linalg.solve_triangular(factor.mT, target[:, None], upper=False)[:, 0]
    value = -0.5 * float(whitened.square().sum()) - 0.5 * len(y) * LOG_TWO_PI
    value -= float(factor.diagonal().log().sum())
    dimension = len(y) - noise * _inverse_trace(factor)
    prior = kernel.diagonal(points)
    size, quadratic = kernel.diagonal(x).sum(), whitened.square().sum()
    entry = entry_rounding(kernel, torch.cat([points, x]))
    rounding = moment_rounding(size / noise + 1.0, prior, quadratic, entry=entry)
    moments = MomentBounds(exact.mean, exact.mean, exact.variance, exact.variance)
    fitted = target - noise * posterior.alpha
    return Certificate(
        num_data=len(y),
        num_inducing=0,
        noise=noise,
        lower_bounds={"log marginal likelihood": value},
        upper_bounds={"log marginal likelihood": value},
        rounding=float(
            evidence_rounding(len(y), size, likelihood.noise_variance, quadratic, entry=entry)
        ),
        kl=0.0,
        trace_error=0.0,
        jitter=0.0,
        dimension_lower=dimension,
        dimension_upper=dimension,
        moments=moments.widen(*rounding),
        predicted=exact if predicted is None else predicted,
        sparse=None,
        event_rounding=0.0,
        noise_share=float(likelihood.noise_variance / y.var(correction=0)),
        collapse=collapse_reason(noise, y, fitted + mean(x)),
        report=None,
    )


def _inverse_trace(factor: Tensor) -> float:
    """tr(K^{-1}) for K = factor^T factor (n, n), in blocks of columns."""
    n, total = factor.shape[0], 0.0
    for rows in row_blocks(n, n, factor):
        unit = factor.new_zeros(n, rows.stop - rows.start)
        unit[rows] = torch.eye(rows.stop - rows.start).to(factor)
        total += float(torch.linalg.solve_triangular(factor.mT, unit, upper=False).square().sum())
    return total


def _fitted_values(nystrom: NystromMatrix) -> Tensor:
    """Sparse posterior mean minus the prior mean at the training inputs."""
    out = nystrom.store.x.new_empty(nystrom.store.x.shape[0])
    for rows, block in BlockStore(nystrom.store.whitener, nystrom.store.x):
        out[rows] = block @ nystrom.inner.weights
    return out


def _check(likelihood: Gaussian, x: Tensor) -> None:
    if not isinstance(likelihood, Gaussian):
        raise ConfigError(f"certificates need a Gaussian likelihood, not {class_name(likelihood)}")
    if x.dtype != torch.float64:
        raise DTypeError(f"certificates are computed in float64, got {x.dtype}")
