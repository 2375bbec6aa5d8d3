"""A Nystrom matrix without jitter: inducing points that add nothing to rounding are left out."""

from __future__ import annotations

from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport
from gpx.linalg.pivoted_cholesky import pivoted_cholesky
from gpx.models.inner_factor import InnerFactor
from gpx.models.nystrom import BlockStore, Whitener, nystrom_sums
from gpx.models.nystrom_matrix import NystromMatrix


def nystrom_without_jitter(
    kernel: Kernel,
    x: Tensor,
    z: Tensor,
    target: Tensor,
    noise: Tensor,
    *,
    memory_budget: int = 2**30,
) -> NystromMatrix:
    """Q of the inducing points z by a rank-revealing factorisation of K_zz.

    Jitter keeps every bound valid but costs nats of evidence: a relative one of 1e-10 can hold the
    divergence near one however many points there are. A pivoted Cholesky factorisation needs none;
    it stops where the residual variance is rounding, and fewer inducing points are still inducing
    points.

    Args:
        kernel, x (n, d), z (M, d), target (n,), noise (), memory_budget: as for ``NystromMatrix``;
            z may hold duplicates.

    Returns:
        The matrix, with the points used in ``store.whitener.z``, in the order of the pivots.

    Cost: that of ``NystromMatrix``.
    Source: Burt thesis, section 2.6.
    """
    z = z.detach()
    square = kernel.evaluate(z, z).detach().double()
    done = pivoted_cholesky(lambda rows: square[rows], square.diagonal(), z.shape[0])
    factor = done.factor[:, done.pivots].mT.contiguous()
    store = BlockStore(Whitener(kernel, z[done.pivots], factor), x, memory_budget)
    sums = nystrom_sums(store, target.detach())
    inner = InnerFactor(sums, noise.detach().double())
    made = NystromMatrix.of_factors(store, sums, inner, noise)
    made.report = CholeskyReport(0.0, ())
    return made
