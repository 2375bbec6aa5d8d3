"""What rounding may have done to a certificate: allowances by which reported ends are moved out.

Notation as in ``evidence_bounds``; e is the unit of float64. Two things are not exact: entries and
sums, which perturb K by at most e ||K_xx||_F (measured on thousands of random problems: a twentieth
of that); and the triangular factor of K_zz + jitter I, which is that of K_zz + jitter I + E with
||E|| about sqrt(M) e max diag(K_zz), of which we allow four times as much. With C the computed
K_zz^{-1} K_zx, the joint matrix of x and z being positive definite gives

    K_xx - Q_xx >= C^T (jitter I + E) C,   so   K + r I >= Q   with   r = ||C||_F^2 (||E|| - jitter)

or r = 0 where the jitter is above ||E||. This needs no word on the condition of K_zz: a factor that
barely exists has a large C and is not trusted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels.base import Kernel

UNIT = torch.finfo(torch.float64).eps

FACTOR = 4.0
"""Safety factor on the usual rounding error of a triangular factor and of a solve with it."""

SAMPLE = 32
"""Number of rows whose kernel entries are compared with entries computed from differences of
inputs."""

SHIFTS = (0.0, 1e-6, 1e-3)
"""Relative shifts of a row: each makes a partner that nearly coincides with it, where rounding of
distances is worst."""


def entry_rounding(kernel: Kernel, x: Tensor) -> Tensor:
    """Largest error (), four times as measured, of kernel entries among inputs x (n, d).

    Entries as in a matrix against ``Kernel.pairs``, which takes differences where a kernel can; one
    that cannot counts as exact here. Cost: 3 SAMPLE^2 kernel entries.
    """
    if len(x) == 0:
        return x.new_zeros(())
    rows = x[torch.linspace(0, len(x) - 1, min(SAMPLE, len(x))).round().long()]
    left = rows.repeat_interleave(len(rows), 0)
    worst = x.new_zeros(())
    for shift in SHIFTS:
        others = rows * (1.0 + shift)
        apart = kernel.pairs(left, others.repeat(len(rows), 1)).reshape(len(rows), -1)
        worst = torch.maximum(worst, (kernel.evaluate(rows, others) - apart).abs().max())
    return 4.0 * worst


def factor_rounding(nystrom: NystromMatrix) -> Tensor:
    """r (): trace norm of what the factor of K_zz may have added to Q_xx, in the kernel's unit.

    Cost: two triangular solves with M x M.
    Source: derived; backward error of Cholesky factors: Higham (2002), theorem 10.3, with the
    square root of M of random rounding (Higham and Mary, 2019).
    """
    factor = nystrom.store.whitener.factor.double()
    diagonal = factor.square().sum(1)
    room = nystrom.report.relative * diagonal.mean()
    error = (FACTOR * factor.shape[0] ** 0.5 * UNIT * diagonal.max() - room).clamp(min=0.0)
    # tr(L^{-T} A A^T L^{-1}) = ||C||_F^2
    left = torch.linalg.solve_triangular(factor.mT, nystrom.sums.gram, upper=True)
    both = torch.linalg.solve_triangular(factor.mT, left.mT, upper=True)
    return error * both.trace().clamp(min=0.0)


def kernel_size(nystrom: NystromMatrix) -> Tensor:
    """At least ||K_xx||_F: ||Q_xx||_F + T. Cost: M^2."""
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
    """Nats that rounding may move the log marginal likelihood or a bound on it.

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
    logs = UNIT * n * (s.log().abs() + 2.0)
    change = UNIT * size + root * entry
    matrix = (change * (root + quadratic) + factor * (1.0 + quadratic)) / s
    return 0.5 * (matrix + logs + UNIT * quadratic)


def moment_rounding(
    condition: Tensor,
    prior: Tensor,
    quadratic: Tensor,
    *,
    entry: Tensor | float,
    factor: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """What rounding may cost a mean and a variance (t,) computed with K in float64.

    c k_** for a variance and c sqrt(k_** y^T K^{-1} y) for a mean, where c is
    e (10 kappa(K) + 1000) + entry sqrt(kappa(K)) / max k_** + factor.

    Args:
        condition (): at least kappa(K).
        prior (t,): k_**.
        quadratic (): at least y^T K^{-1} y.
        entry, factor (): of ``entry_rounding``, and of ``factor_rounding`` over the noise variance.
    """
    largest = prior.amax() if len(prior) else prior.new_ones(())
    share = UNIT * (10.0 * condition + 1000.0) + entry * condition.sqrt() / largest + factor
    return share * (prior * quadratic).sqrt(), share * prior


def event_rounding(mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """What ``moment_rounding`` (t,) may cost any P(f + e >= threshold), e of variance ``noise``.

    The slopes of ndtr(a / sqrt(v)) are at most 0.4 / sqrt(v) and 0.13 / v.
    """
    return (0.4 * mean / noise.sqrt() + 0.13 * variance / noise).amax(0) if len(mean) else noise * 0


def condition_bound(nystrom: NystromMatrix) -> Tensor:
    """(lambda_1(Q_xx) + T + s) / s, at least the condition number of K."""
    s = nystrom.noise
    return (nystrom.largest_eigenvalue() + nystrom.sums.trace_error + s) / s
