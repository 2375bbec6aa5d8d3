"""Upper bounds on KL(q || posterior) of sparse regression, in nats, without exact inference.

q is the optimal posterior process for the given inducing points; KL is the log marginal likelihood
minus the collapsed bound. Notation: K = K_xx + s I, Q = Q_xx + s I <= K, T = tr(K_xx - Q_xx), y the
targets minus their prior mean. KL <= ``kl_upper_bound_cg`` <= ``kl_upper_bound`` <=
``kl_upper_bound_trace`` where conjugate gradients start at (Q + T I)^{-1} y.

Every bound holds for any inducing points and any jitter on K_zz (then for the q with that jitter),
at the given hyperparameters: a small KL does not mean that these are good.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.auxiliary import quadratic_lower
from gpx.inference.nystrom import NystromSums
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.inference.rounding import entry_rounding, evidence_rounding, factor_rounding, kernel_size

ZERO_EIGENVALUE = 1e-13
"""Eigenvalues of A A^T below this times the largest count as zero. Their part of y is treated as
outside the span, which only loosens the bound."""

ROUNDING = 4.0 * torch.finfo(torch.float64).eps
"""Allowance for rounding in sums over the data, relative to the sum of the terms' magnitudes."""


class QuadraticGap(NamedTuple):
    """y^T (Q^{-1} - (Q + T I)^{-1}) y and the quantities it was computed from.

    Attributes:
        value (): T y^T Q^{-1} (Q + T I)^{-1} y; y^T K^{-1} y is at most this below y^T Q^{-1} y.
        largest (): lambda_1(Q_xx).
        trace_error (): T with its allowance for rounding.
    """

    value: Tensor
    largest: Tensor
    trace_error: Tensor


def trace_error_bound(sums: NystromSums, rounding: Tensor | float = 0.0) -> Tensor:
    """T plus its possible rounding error, float64, in the kernel's unit."""
    return sums.trace_error + ROUNDING * (sums.gram.trace() + sums.trace_error) + rounding


def quadratic_gap(
    sums: NystromSums, noise: Tensor, *, rounding: Tensor | float = 0.0
) -> QuadraticGap:
    """Largest error of the quadratic form with Q in place of K, without cancellation.

    With A A^T = V diag(g) V^T and h = V^T A y it is T [sum_m h_m^2 / g_m / ((s + g_m)(s + g_m + T))
    + (y^T y - sum_m h_m^2 / g_m) / (s (s + T))].

    Args:
        sums: of ``gpx.inference.nystrom.nystrom_sums``.
        noise (): s.
        rounding (): added to T; ``gpx.inference.rounding.factor_rounding``.

    Cost: one M x M eigendecomposition.
    """
    s = noise.double()
    values, modes = torch.linalg.eigh(sums.gram)
    trace_error = trace_error_bound(sums, rounding)
    largest = values[-1].clamp(min=0.0)
    keep = values > ZERO_EIGENVALUE * largest
    safe = torch.where(keep, values, torch.ones_like(values))
    energy = torch.where(keep, (modes.mT @ sums.projected).square() / safe, 0.0)
    rest = (sums.squared_residual - energy.sum()).clamp(min=0.0)
    rest = rest + ROUNDING * sums.squared_residual
    inside = (energy / ((s + safe) * (s + safe + trace_error))).sum()
    value = trace_error * (inside + rest / (s * (s + trace_error)))
    return QuadraticGap(value, largest, trace_error)


def kl_upper_bound(sums: NystromSums, noise: Tensor, *, rounding: Tensor | float = 0.0) -> Tensor:
    """1/2 [T / s - log(1 + T / (lambda_1(Q_xx) + s)) + T y^T Q^{-1} (Q + T I)^{-1} y] >= KL.

    Never negative; tends to zero as the inducing points come to explain the data's inputs.

    Args:
        sums, noise, rounding: as for ``quadratic_gap``.

    Cost: one M x M eigendecomposition; no product with the kernel matrix.
    Source: Burt thesis, sections 2.4.2 and 3.1.1; evaluated without cancellation.
    """
    gap = quadratic_gap(sums, noise, rounding=rounding)
    return 0.5 * (_trace_part(gap, noise.double()) + gap.value)


def kl_upper_bound_trace(
    sums: NystromSums, noise: Tensor, *, largest_error: Tensor | None = None
) -> Tensor:
    """1/2 (T + e y^T y / (e + s)) / s >= KL: cheapest and loosest.

    Args:
        sums, noise: as for ``quadratic_gap``.
        largest_error (): e, the largest eigenvalue of K_xx - Q_xx or anything above it; None: T.

    Source: Burt thesis, section 3.1.1.
    """
    s = noise.double()
    trace_error = trace_error_bound(sums)
    error = trace_error if largest_error is None else largest_error.double()
    return 0.5 * (trace_error + error * sums.squared_residual / (error + s)) / s


def kl_upper_bound_cg(
    nystrom: NystromMatrix, target: Tensor, vector: Tensor, residual: Tensor
) -> Tensor:
    """Refined conjugate gradient upper bound on the evidence minus the collapsed bound; >= KL.

    Args:
        nystrom: Q of the inducing points.
        target, vector, residual (n,): y, any v, y - K v.

    Cost: n M beside the Nystrom matrix and the residual.
    Source: Burt thesis, sections 2.4.2 and 4.3.4.
    """
    factor = factor_rounding(nystrom)
    gap = quadratic_gap(nystrom.sums, nystrom.noise, rounding=factor)
    weights = nystrom.inner.weights
    above = (nystrom.sums.squared_residual - torch.dot(nystrom.sums.projected, weights)) / (
        nystrom.noise
    )
    below = quadratic_lower(target, vector, residual)
    excess = (above - below).clamp(min=0.0)
    size = ROUNDING * (nystrom.sums.squared_residual / nystrom.noise + vector.abs() @ target.abs())
    store = nystrom.store
    entry = entry_rounding(store.whitener.kernel, store.x)
    lost = evidence_rounding(
        len(target), kernel_size(nystrom), nystrom.noise, above, entry=entry, factor=factor
    )
    return 0.5 * (_trace_part(gap, nystrom.noise) + excess + size) + lost


def _trace_part(gap: QuadraticGap, s: Tensor) -> Tensor:
    """T / s - log(1 + T / (lambda_1 + s)), at least zero."""
    return gap.trace_error / s - (gap.trace_error / (gap.largest + s)).log1p()


def total_variation_bound(kl: float) -> float:
    """Bound on the difference in the probability of any event: the smaller of two, below one.

    sqrt(KL / 2) (Pinsker), sqrt(1 - exp(-KL)) (Bretagnolle and Huber; below one for every KL).
    """
    return min(math.sqrt(0.5 * kl), math.sqrt(-math.expm1(-kl)))
