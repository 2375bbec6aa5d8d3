"""Bounds on exact posterior moments from Q <= K <= Q + T I and from residuals of linear solves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gpx.diagnostics.moment_bounds import MomentBounds
from gpx.inference.kl_bounds import ROUNDING
from gpx.inference.noisy_kernel import NoisyKernel
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels.base import Kernel
from gpx.linalg import EvidenceBound, cholesky, conjugate_gradients

TEST_COLUMNS = 64
"""Test points per block; memory is a few arrays of n by this many."""


def nystrom_moment_bounds(
    kernel: Kernel,
    nystrom: NystromMatrix,
    target: Tensor,
    x: Tensor,
    *,
    vector: Tensor | None = None,
    residual: Tensor | None = None,
) -> MomentBounds:
    """Bounds on the exact mean (minus the prior mean) and variance of f at x (t, d), from Q.

    k_** - k_*^T Q^{-1} k_* <= variance <= k_** - k_*^T (Q + T I)^{-1} k_*. With r = y - K v and
    D = Q^{-1} - K^{-1}, where 0 <= D <= Q^{-1} - (Q + T I)^{-1}, the mean is
    k_*^T v + k_*^T Q^{-1} r - k_*^T D r, and |k_*^T D r| is at most the smaller of

        sqrt(k_*^T D k_* r^T D r), each factor with the upper bound on D, and
        T ||Q^{-1} k_*|| ||r|| / s.

    Also |mean - k_*^T v| <= sqrt(k_*^T K^{-1} k_* r^T Q^{-1} r), where k_*^T K^{-1} k_* is at most
    k_** and at most k_*^T Q^{-1} k_*.

    Args:
        kernel, nystrom: covariance function; Q at the training inputs.
        target (n,): y - m(x).
        x (t, d): test points.
        vector, residual (n,): v near K^{-1} y and y - K v; None: v = 0, without a product with K.

    Cost: n (t kernel entries + 4 M t) operations; memory a few n x 64.
    Source: Burt thesis, sections 2.4.1 and 4.2.1; the first bound on |k_*^T D r| is derived.
    """
    v = torch.zeros_like(target) if vector is None else vector
    r = target if residual is None else residual
    solved = nystrom.solve(r)
    squared = torch.dot(r, solved)
    # r^T D r, k_*^T D k_* and T ||r|| / s of the docstring
    r_gap = (squared - torch.dot(r, nystrom.shifted_solve(r))).clamp(min=0.0) + ROUNDING * squared
    scaled_norm = nystrom.sums.trace_error / nystrom.noise * torch.linalg.vector_norm(r)
    parts = [_empty(target)]
    for cross, prior in _columns(kernel, nystrom.store.x, x):
        inverse = nystrom.solve(cross)
        largest = torch.linalg.vecdot(cross, inverse, dim=0)
        smallest = torch.linalg.vecdot(cross, nystrom.shifted_solve(cross), dim=0)
        cross_gap = (largest - smallest).clamp(min=0.0) + ROUNDING * largest
        by_vector = cross.mT @ v
        centre = by_vector + inverse.mT @ r
        half = torch.minimum(
            (cross_gap * r_gap).sqrt(), scaled_norm * torch.linalg.vector_norm(inverse, dim=0)
        )
        plain = (torch.minimum(prior, largest) * squared).sqrt()
        lower, upper = (prior - largest).clamp(min=0.0), (prior - smallest).clamp(min=0.0)
        bounds = MomentBounds(centre - half, centre + half, lower, upper)
        plain_bounds = MomentBounds(by_vector - plain, by_vector + plain, lower, upper)
        parts.append(bounds.intersect(plain_bounds))
    return _join(parts)


def solved_moment_bounds(
    kernel: Kernel,
    matrix: NoisyKernel,
    nystrom: NystromMatrix,
    target: Tensor,
    x: Tensor,
    *,
    vector: Tensor,
    residual: Tensor,
    tolerance: float = 1e-2,
    max_iterations: int = 100,
) -> MomentBounds:
    """Bounds on the exact mean (minus the prior mean) and variance of f at x, by linear solves.

    With any s near K^{-1} k_*, its residual p = k_* - K s and r = y - K v:
    k_*^T K^{-1} k_* lies in s^T (k_* + p) + [0, p^T Q^{-1} p], and the mean within
    sqrt(p^T Q^{-1} p r^T Q^{-1} r) of s^T y + p^T v. Solves that have not converged give wider but
    valid intervals.

    Args:
        kernel, matrix, nystrom: covariance function, K, Q.
        target, vector, residual (n,): y - m(x), v, y - K v.
        x (t, d): test points.
        tolerance: accuracy of the variances, relative to the noise variance.
        max_iterations: most steps.

    Cost: a product of K with 64 columns per step and 64 points; memory 8 n x 64.
    Source: Burt thesis, sections 4.2.1 and 4.2.2; the quadratic certificate is derived.
    """
    squared = torch.dot(residual, nystrom.solve(residual))
    stop = EvidenceBound(0.5 * tolerance * float(nystrom.noise))
    parts = [_empty(target)]
    for cross, prior in _columns(kernel, nystrom.store.x, x):
        found = conjugate_gradients(
            matrix,
            cross,
            preconditioner=nystrom,
            stop=stop,
            max_iterations=max_iterations,
            on_failure="return",
        )
        s, p = found.solution, found.residual
        smallest = torch.linalg.vecdot(s, cross + p, dim=0)
        width = torch.linalg.vecdot(p, nystrom.solve(p), dim=0).clamp(min=0.0)
        centre = s.mT @ target + p.mT @ vector
        half = (width * squared).sqrt()
        upper = (prior - smallest).clamp(min=0.0)
        parts.append(
            MomentBounds(centre - half, centre + half, (upper - width).clamp(min=0.0), upper)
        )
    return _join(parts)


def davies_variance_bounds(
    kernel: Kernel, inputs: Tensor, subset: Tensor, noise: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Bounds on the exact variance of f at x (t, d) from a subset of the data.

    With k_* split into the subset z and the rest w, and K_z = K_zz + s I, it is at most
    k_** - k_z*^T K_z^{-1} k_z*, and at least that minus ||k_w* - K_wz K_z^{-1} k_z*||^2 / s. The
    lower bound tightens slowly if the data are strongly correlated.

    Args:
        kernel, inputs (n, d), noise (): covariance function, training inputs, s.
        subset (m,): rows of the inputs.
        x (t, d): where.

    Cost: n m (t + m); memory n (64 + m) numbers.
    Source: Davies (2005); Burt thesis, section 2.4.1.
    """
    rest = torch.ones(inputs.shape[0], dtype=torch.bool, device=inputs.device)
    rest[subset] = False
    inside, outside = inputs[subset], inputs[rest]
    square = kernel.evaluate(inside)
    square.diagonal().add_(noise)
    factor, _ = cholesky(square, name=f"the kernel matrix of {len(subset)} points plus noise")
    between = kernel.evaluate(outside, inside)
    lowers, uppers = [x.new_empty(0)], [x.new_empty(0)]
    for start in range(0, x.shape[0], TEST_COLUMNS):
        rows = x[start : start + TEST_COLUMNS]
        near = kernel.evaluate(inside, rows)
        weights = torch.cholesky_solve(near, factor)
        upper = kernel.diagonal(rows) - torch.linalg.vecdot(near, weights, dim=0)
        missed = kernel.evaluate(outside, rows) - between @ weights
        uppers.append(upper.clamp(min=0.0))
        lowers.append((upper - missed.square().sum(0) / noise).clamp(min=0.0))
    return torch.cat(lowers), torch.cat(uppers)


def _columns(kernel: Kernel, inputs: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """k_* (n, c) and k_** (c,) for blocks of test points."""
    for start in range(0, x.shape[0], TEST_COLUMNS):
        rows = x[start : start + TEST_COLUMNS]
        yield kernel.evaluate(inputs, rows), kernel.diagonal(rows)


def _empty(like: Tensor) -> MomentBounds:
    return MomentBounds(*(like.new_empty(0) for _ in range(4)))


def _join(parts: list[MomentBounds]) -> MomentBounds:
    return MomentBounds(*(torch.cat(ends) for ends in zip(*parts, strict=True)))
