"""Lower and upper bounds on the log marginal likelihood from a Nystrom matrix and any vector v.

Notation: K = K_xx + s I, Q = Q_xx + s I <= K, T = tr(K_xx - Q_xx), r = y - K v. Every bound is
-1/2 (quadratic + log determinant) - n/2 log 2 pi, with bounds on the quadratic form and on the log
determinant; all in float64 nats. Do not maximise upper bounds: optimisation would exploit their
looseness.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.auxiliary import AuxiliarySolver, quadratic_lower, quadratic_upper
from gpx.inference.exact_solver import require_finite
from gpx.inference.noisy_kernel import NoisyKernel
from gpx.inference.nystrom_matrix import NystromMatrix, tight_gap
from gpx.inference.rounding import entry_rounding, evidence_rounding, factor_rounding, kernel_size
from gpx.kernels.base import Kernel
from gpx.linalg import SolveReport


def evidence_from(n: int, quadratic: Tensor, logdet: Tensor) -> Tensor:
    """-1/2 (quadratic + logdet) - n/2 log 2 pi; a lower bound if both are upper bounds."""
    return -0.5 * (quadratic + logdet + n * LOG_TWO_PI)


# -- log det K ------------------------------------------------------------------------------------


def logdet_lower(nystrom: NystromMatrix, *, refined: bool = True) -> Tensor:
    """log det Q, plus log(1 + T / (lambda_1(Q_xx) + s)) if ``refined``; <= log det K.

    Cost: one M x M eigendecomposition if refined.
    Source: Burt thesis, section 2.4.2.
    """
    value = nystrom.logdet()
    if refined:
        top = nystrom.largest_eigenvalue() + nystrom.noise
        value = value + (nystrom.sums.trace_error / top).log1p()
    return value


def logdet_upper(nystrom: NystromMatrix, *, variational: bool = False) -> Tensor:
    """log det Q + n log(1 + T / (n s)), or with T / s (``variational``); >= log det K.

    Source: Burt thesis, sections 2.4.2 and 4.3.2.
    """
    n, ratio = nystrom.shape[0], nystrom.sums.trace_error / nystrom.noise
    return nystrom.logdet() + (ratio if variational else n * (ratio / n).log1p())


def logdet_upper_tight(
    matrix: NoisyKernel, nystrom: NystromMatrix, diagonal: Tensor, *, linear: bool = False
) -> Tensor:
    """log det Q + n log(tr(Q^{-1} K) / n), or with tr(Q^{-1} K) - n (``linear``); >= log det K.

    Args:
        matrix, nystrom: K and Q.
        diagonal (n,): k(x_n, x_n).

    Cost: n^2 M multiply-adds; memory 2 n M.
    Source: Burt thesis, section 4.3.2.
    """
    n = nystrom.shape[0]
    half_log = tight_gap(matrix, nystrom, diagonal).value
    if linear:
        return nystrom.logdet() + n * torch.expm1(-2.0 * half_log / n)
    return nystrom.logdet() - 2.0 * half_log


# -- y^T K^{-1} y ---------------------------------------------------------------------------------


def titsias_quadratic(nystrom: NystromMatrix, target: Tensor) -> Tensor:
    """y^T (Q + T I)^{-1} y <= y^T K^{-1} y. Source: Burt thesis, sections 2.4.2 and 4.3.1."""
    return torch.dot(target, nystrom.shifted_solve(target)).double()


# -- bounds on the evidence -----------------------------------------------------------------------


def titsias_upper_bound(nystrom: NystromMatrix, target: Tensor, *, refined: bool = True) -> Tensor:
    """Upper bound without a product with K (Titsias 2014; refined by Burt).

    Cost: n M, given the Nystrom matrix. Source: Burt thesis, section 4.3.4.
    """
    quadratic = titsias_quadratic(nystrom, target)
    return evidence_from(len(target), quadratic, logdet_lower(nystrom, refined=refined))


def cg_upper_bound(
    nystrom: NystromMatrix,
    target: Tensor,
    vector: Tensor,
    residual: Tensor,
    *,
    refined: bool = True,
) -> Tensor:
    """Upper bound at any v (Kim and Teh 2018; refined by Burt), tightest at v = K^{-1} y.

    Cost: n, given the Nystrom matrix and the residual. Source: Burt thesis, section 4.3.4.
    """
    quadratic = quadratic_lower(target, vector, residual)
    return evidence_from(len(target), quadratic, logdet_lower(nystrom, refined=refined))


def cg_lower_bound_value(
    nystrom: NystromMatrix, target: Tensor, vector: Tensor, residual: Tensor
) -> Tensor:
    """The value of ``CGLowerBound`` at any v, a lower bound on the evidence.

    At v = 0 and at the solution of conjugate gradients it is at least ``collapsed_bound_value``;
    at other v it may be lower.

    Source: Burt thesis, section 4.3.3.
    """
    quadratic = quadratic_upper(nystrom, target, vector, residual)
    return evidence_from(len(target), quadratic, logdet_upper(nystrom))


def collapsed_bound_value(nystrom: NystromMatrix, target: Tensor) -> Tensor:
    """Titsias's lower bound. Source: Burt thesis, section 2.3."""
    quadratic = torch.dot(target, nystrom.solve(target)).double()
    return evidence_from(len(target), quadratic, logdet_upper(nystrom, variational=True))


def davies_lower_bound(
    k_zz: Tensor,
    k_zx: Tensor,
    diagonal: Tensor,
    noise: Tensor,
    target: Tensor,
    vector: Tensor,
    residual: Tensor,
) -> Tensor:
    """Davies's (2005) lower bound from a subset z of the inputs; not exact at z = x.

    Args:
        k_zz (m, m), k_zx (m, n), diagonal (n,): kernel at the subset, with the data, and k(x, x).
        noise (): s.
        target, vector, residual (n,): y - m(x), v, y - m(x) - K v.

    Cost: n m^2. Source: Burt thesis, section 4.3.
    """
    n, m = len(target), k_zz.shape[0]
    factor = torch.linalg.cholesky(k_zz + noise * torch.eye(m, dtype=k_zz.dtype).to(k_zz))
    explained = torch.linalg.solve_triangular(factor, k_zx, upper=False).square().sum()
    logdet = 2.0 * factor.diagonal().log().sum() + (n - m) * noise.log()
    logdet = logdet + (diagonal.sum() - explained) / noise
    quadratic = quadratic_lower(target, vector, residual) + residual.square().sum() / noise
    return evidence_from(n, quadratic, logdet)


def bounds_rounding(nystrom: NystromMatrix, target: Tensor) -> Tensor:
    """Bound in nats on the rounding error of any bound from this matrix. Cost: n M + M^3."""
    quadratic = torch.dot(target, nystrom.solve(target)).double()
    return evidence_rounding(
        len(target),
        kernel_size(nystrom),
        nystrom.noise,
        quadratic,
        entry=entry_rounding(nystrom.store.whitener.kernel, nystrom.store.x),
        factor=factor_rounding(nystrom),
    )


@dataclass(frozen=True)
class EvidenceBounds:
    """Bounds on a log marginal likelihood in nats.

    Attributes:
        collapsed: Titsias's lower bound (the evidence lower bound of SGPR).
        cg_lower: conjugate gradient lower bound; at most 2 epsilon below ``collapsed``.
        cg_upper: refined Kim-Teh upper bound.
        titsias_refined, titsias: upper bounds without products with K.
        trace_error: T.
        gap: remaining uncertainty of the quadratic term in nats, 1/2 r^T Q^{-1} r.
        rounding: bound in nats on the rounding error; ``lower`` and ``upper`` include it.
        report: of the solve for v.
    """

    collapsed: float
    cg_lower: float
    cg_upper: float
    titsias_refined: float
    titsias: float
    trace_error: float
    gap: float
    rounding: float
    report: SolveReport

    @property
    def lower(self) -> float:
        """The higher of the lower bounds, minus rounding."""
        return max(self.collapsed, self.cg_lower) - self.rounding

    @property
    def upper(self) -> float:
        """The lowest of the upper bounds, plus rounding."""
        return min(self.cg_upper, self.titsias_refined) + self.rounding


@torch.no_grad()
def evidence_bounds(
    kernel: Kernel,
    x: Tensor,
    z: Tensor,
    target: Tensor,
    noise: Tensor,
    solver: AuxiliarySolver,
    *,
    start: Tensor | None = None,
    jitter: float | None = None,
) -> EvidenceBounds:
    """Bracket log N(target; 0, k(x, x) + noise I) from both sides.

    Unless ``start`` is given, conjugate gradients start at (Q + T I)^{-1} y, where the upper bound
    is at most Titsias's.

    Args:
        kernel, x (n, d), z (M, d), target (n,), noise (): covariance, inputs, inducing inputs,
            y - m(x), noise variance; use float64 for reliable bounds.
        solver: accuracy in nats, steps, memory.
        start (n,): an approximation of K^{-1} target.
        jitter: on K_zz; see ``gpx.inference.nystrom.factorise``.

    Raises:
        DataError: targets that are not finite.
        NotPositiveDefinite: K_zz at every jitter.

    Cost: n M^2 and one product with the kernel matrix per step; memory linear in n.
    Source: Burt thesis, sections 2.4.2 and 4.3.
    """
    require_finite(target)
    nystrom = NystromMatrix.of(
        kernel, x, z, target, noise, jitter=jitter, memory_budget=solver.budget
    )
    matrix = solver.matrix(kernel, x, noise)
    begin = nystrom.shifted_solve(target) if start is None else start
    found = solver.solve(matrix, nystrom, target, begin)
    v, r = found.vector, found.residual
    return EvidenceBounds(
        collapsed=float(collapsed_bound_value(nystrom, target)),
        cg_lower=float(cg_lower_bound_value(nystrom, target, v, r)),
        cg_upper=float(cg_upper_bound(nystrom, target, v, r)),
        titsias_refined=float(titsias_upper_bound(nystrom, target)),
        titsias=float(titsias_upper_bound(nystrom, target, refined=False)),
        trace_error=float(nystrom.sums.trace_error),
        gap=found.gap,
        rounding=float(bounds_rounding(nystrom, target)),
        report=found.report,
    )
