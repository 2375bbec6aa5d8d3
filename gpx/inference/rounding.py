"""Allowances for rounding, by which the ends of certified intervals are moved outwards.

Notation as in ``evidence_bounds``; e is the rounding unit of float64. Two sources are covered.
Errors of entries and sums perturb K by at most e ||K_xx||_F (on thousands of random problems a
twentieth of that). The triangular factor of K_zz + jitter I is exact for K_zz + jitter I + E with
||E|| about sqrt(M) e max diag(K_zz), of which four times as much is allowed. With C the computed
K_zz^{-1} K_zx, the joint matrix of x and z being positive definite gives

    K_xx - Q_xx >= C^T (jitter I + E) C,   so   K + r I >= Q   with   r = ||C||_F^2 (||E|| - jitter)

or r = 0 where the jitter is above ||E||. No condition number of K_zz is needed: a nearly singular
factor has a large C, hence a large allowance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import DataError
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels.base import Kernel

EPS = torch.finfo(torch.float64).eps

SAFETY_FACTOR = 4.0
"""Safety factor on the usual rounding error of a triangular factor and of a solve with it."""

SAMPLE_ROWS = 32
"""Number of rows whose kernel entries are checked against entries from differences of inputs."""

RELATIVE_SHIFTS = (0.0, 1e-6, 1e-3)
"""The check pairs rows with copies shifted by these relative amounts: rounding of distances is
worst where inputs nearly coincide."""


def entry_rounding(kernel: Kernel, x: Tensor) -> Tensor:
    """Estimated largest error () of kernel entries among inputs x (n, d): four times the sampled.

    Compares matrix entries with ``Kernel.pairs``, which uses differences of inputs where the kernel
    allows it (otherwise the result is zero). Columns of whole numbers are not shifted for a kernel
    that refuses other numbers. Cost: 3 SAMPLE_ROWS^2 kernel entries.
    """
    if len(x) == 0:
        return x.new_zeros(())
    count = min(SAMPLE_ROWS, len(x))
    rows = x[torch.linspace(0, len(x) - 1, count, dtype=torch.float64).round().long()]
    left = rows.repeat_interleave(len(rows), 0)
    whole = (rows == rows.round()).all(0)

    def error(others: Tensor) -> Tensor:
        apart = kernel.pairs(left, others.repeat(len(rows), 1)).reshape(len(rows), -1)
        return (kernel.evaluate(rows, others) - apart).abs().max()

    worst = x.new_zeros(())
    for shift in RELATIVE_SHIFTS:
        others = rows * (1.0 + shift)
        try:
            found = error(others)
        except DataError:  # such as of the number of an output
            found = error(torch.where(whole, rows, others))
        worst = torch.maximum(worst, found)
    return 4.0 * worst


def factor_rounding(nystrom: NystromMatrix) -> Tensor:
    """r (): trace norm of the error of Q_xx from the factor of K_zz, in the kernel's unit.

    Cost: two triangular solves with M x M.
    Source: derived; backward error of Cholesky factors: Higham (2002), theorem 10.3, with the
    square root of M of random rounding (Higham and Mary, 2019).
    """
    factor = nystrom.store.whitener.factor.double()
    diagonal = factor.square().sum(1)
    room = nystrom.report.relative * diagonal.mean()
    error = (SAFETY_FACTOR * factor.shape[0] ** 0.5 * EPS * diagonal.max() - room).clamp(min=0.0)
    # tr(L^{-T} A A^T L^{-1}) = ||C||_F^2
    left = torch.linalg.solve_triangular(factor.mT, nystrom.sums.gram, upper=True)
    both = torch.linalg.solve_triangular(factor.mT, left.mT, upper=True)
    return error * both.trace().clamp(min=0.0)


def kernel_size(nystrom: NystromMatrix) -> Tensor:
    """An upper bound of ||K_xx||_F: ||Q_xx||_F + T. Cost: M^2."""
    return torch.linalg.matrix_norm(nystrom.sums.gram) + nystrom.sums.trace_error


def evidence_rounding(
    n: int,
    size: Tensor,
    noise: Tensor,
    quadratic: Tensor,
    *,
    entry: Tensor | float,
    factor: Tensor | float = 0.0,
) -> Tensor:
    """Rounding error, in nats, of the log marginal likelihood or a bound on it.

    dL = 1/2 (a^T dK a - tr(K^{-1} dK)) with a = K^{-1} y, ||dK||_F <= e size + sqrt(n) entry for
    entries and sums, and dK of trace norm ``factor``; ||a||^2 <= y^T K^{-1} y / s and
    ||K^{-1}||_F <= sqrt(n) / s.

    Args:
        n: data points.
        size (): at least ||K||_F.
        noise (): s.
        quadratic (): y^T K^{-1} y, or anything above it.
        entry, factor (): of ``entry_rounding`` and ``factor_rounding``.
    """
    s, root = noise.double(), n**0.5
    logs = EPS * n * (s.log().abs() + 2.0)
    change = EPS * size + root * entry
    matrix = (change * (root + quadratic) + factor * (1.0 + quadratic)) / s
    return 0.5 * (matrix + logs + EPS * quadratic)


def moment_rounding(
    condition: Tensor,
    prior: Tensor,
    quadratic: Tensor,
    *,
    entry: Tensor | float,
    factor: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Rounding errors of a predictive mean and variance (t,) computed with K in float64.

    c k_** for a variance and c sqrt(k_** y^T K^{-1} y) for a mean, where c is
    e (10 kappa(K) + 1000) + entry sqrt(kappa(K)) / max k_** + factor.

    Args:
        condition (): at least kappa(K).
        prior (t,): k_**.
        quadratic (): at least y^T K^{-1} y.
        entry, factor (): of ``entry_rounding``, and of ``factor_rounding`` over the noise variance.
    """
    largest = prior.amax() if len(prior) else prior.new_ones(())
    share = EPS * (10.0 * condition + 1000.0) + entry * condition.sqrt() / largest + factor
    return share * (prior * quadratic).sqrt(), share * prior


def event_rounding(mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """Error of any P(f + e >= threshold), e of variance ``noise``, from ``moment_rounding`` (t,).

    The slopes of ndtr(a / sqrt(v)) are at most 0.4 / sqrt(v) and 0.13 / v.
    """
    return (0.4 * mean / noise.sqrt() + 0.13 * variance / noise).amax(0) if len(mean) else noise * 0


def condition_bound(nystrom: NystromMatrix) -> Tensor:
    """(lambda_1(Q_xx) + T + s) / s, at least the condition number of K."""
    s = nystrom.noise
    return (nystrom.largest_eigenvalue() + nystrom.sums.trace_error + s) / s
