"""The whitened strategy: u = f(Z) = mean(Z) + L v, so that the prior of v is N(0, I)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport, cholesky
from gpx.linalg.triangular import inverse_lower
from gpx.methods.sparse.variational.distribution import WhitenedGaussian
from gpx.methods.sparse.variational.moments import project

TOP_JITTER = 1e-4
"""Largest relative jitter tried before the factorisation is given up."""


class Whitening(NamedTuple):
    """Factorised K_zz.

    Attributes:
        k_zz (M, M): kernel matrix of the inducing points plus jitter in float64, with its gradient
            graph: jitter is a share of the mean diagonal and follows the kernel's parameters.
        cholesky (M, M): its factor L in float64, without a gradient graph.
        report: jitter used, in the unit of the kernel.
    """

    k_zz: Tensor
    cholesky: Tensor
    report: CholeskyReport


def whitening(kernel: Kernel, inducing: Tensor, jitter: float) -> Whitening:
    """Evaluate and factorise K_zz in float64, whatever the dtype of the model.

    K_zz has no noise on its diagonal: rounding its entries to float32 alone moves eigenvalues by
    more than a useful jitter. One evaluation and one factorisation of M x M in float64 cost a few
    milliseconds at M = 512 and make every step succeed at the first attempt.

    Args:
        kernel: at its current hyperparameters.
        inducing (M, d): Z.
        jitter: relative to the mean diagonal; ten times more is tried up to 1e-4, and reported.

    Raises:
        NotPositiveDefinite: no jitter was enough.
    """
    z = inducing.double()
    k_zz = kernel.evaluate(z, z)
    ladder = [jitter]
    # 10 * 10 * 1e-6 is less than 1e-4 in floating point: without the tolerance, 1e-3 would follow
    while ladder[-1] < 0.99 * TOP_JITTER:
        ladder.append(min(max(10.0 * ladder[-1], 1e-12), TOP_JITTER))
    with torch.no_grad():
        factor, report = cholesky(
            k_zz.detach(),
            name=f"K_zz of {z.shape[0]} inducing points",
            ladder=tuple(ladder),
            hint="fewer inducing points, or a higher approx.jitter",
        )
    if report.relative:
        shift = report.relative * k_zz.diagonal().mean()
        k_zz = k_zz + torch.diag_embed(shift.expand(z.shape[0]))
    return Whitening(k_zz, factor, report)


def whitened_marginals(
    kernel: Kernel, inducing: Tensor, q: WhitenedGaussian, root: Tensor, x: Tensor, jitter: float
) -> tuple[Tensor, Tensor, CholeskyReport]:
    """Marginals of the zero-mean latent functions at x under q.

    mean = A^T m, variance = k(x, x) - diag(A^T A) + diag(A^T S S^T A), A = L^{-1} K_zx.

    Args:
        kernel: shared by the p latent functions.
        inducing (M, d): shared as well.
        q: over the whitened inducing variables.
        root: ``q.root()``, which the caller may need for ``q.kl`` as well.
        x (B, d).
        jitter: relative jitter of K_zz.

    Returns:
        mean (p, B) and variance (p, B), differentiable in everything, and the report of K_zz.
        Rounding can make variances slightly negative; they are clamped at zero.

    Cost: O(M^3 + p M^2 B) time, O(p M^2 + p M B) memory.
    Source: Burt thesis, sections 2.1 and 2.2.
    """
    white = whitening(kernel, inducing, jitter)
    with torch.no_grad():
        inverse = inverse_lower(white.cholesky).to(x.dtype)
    projection = project(white.k_zz, kernel.evaluate(inducing, x), inverse)
    mean, excess = q.moments(projection, root)
    variance = (kernel.diagonal(x) + excess).clamp_min(0.0)
    return mean, variance, white.report
