"""Upper bounds on KL(q || posterior) for sets of inducing points of one problem."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.inference.auxiliary import AuxiliarySolver
from gpx.inference.nystrom import BlockStore, NystromSums, Whitener
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport

PRODUCTS_LIMIT = {"cpu": 20_000, "cuda": 200_000}
"""Training points up to which products with the kernel matrix are made, n^2 each."""

SHARE = 0.05
"""Of the tolerance: nats that conjugate gradients may leave open."""


@dataclass(frozen=True)
class KLCertifier:
    """What is certain of KL(q || posterior) in nats, rounding included; for float64.

    From the sums over the data alone first; where that is above the tolerance and products with
    the kernel matrix can decide, by conjugate gradients too: about half the points then suffice.

    Attributes:
        kernel, x (n, d): covariance and inputs.
        residual (n,): y - m(x).
        noise (): noise variance.
        tolerance: nats that are asked for.
        products: whether to make products; by ``PRODUCTS_LIMIT`` when None.

    Cost: one M x M eigendecomposition; n^2 per product, a few of them.
    Source: Burt thesis, sections 2.4.2 and 4.3.4.
    """

    kernel: Kernel
    x: Tensor
    residual: Tensor
    noise: Tensor
    tolerance: float
    products: bool | None = None

    @torch.no_grad()
    def bound(self, whitener: Whitener, sums: NystromSums, report: CholeskyReport) -> float:
        """Nats above the KL of the optimal q of these points.

        Args:
            whitener, report: of K_zz; the jitter is part of q.
            sums: with ``residual``.
        """
        # diagnostics takes models apart and cannot be loaded before them
        from gpx.inference.kl_bounds import kl_upper_bound, kl_upper_bound_cg
        from gpx.inference.rounding import factor_rounding

        noise = self.noise.detach().double()
        store = BlockStore(whitener, self.x)
        nystrom = NystromMatrix(store, sums, noise, report=report)
        found = float(kl_upper_bound(sums, noise, rounding=factor_rounding(nystrom)))
        undecided = found > self.tolerance >= float(least_kl_bound(sums.trace_error, noise))
        if not (undecided and self._products()):
            return found
        solver = AuxiliarySolver(epsilon=SHARE * self.tolerance, max_iterations=200)
        matrix = solver.matrix(self.kernel, self.x, noise)
        start = nystrom.shifted_solve(self.residual)
        solved = solver.solve(matrix, nystrom, self.residual, start)
        sharp = kl_upper_bound_cg(nystrom, self.residual, solved.vector, solved.residual)
        return min(found, float(sharp))

    def _products(self) -> bool:
        if self.products is not None:
            return self.products
        limit = PRODUCTS_LIMIT.get(self.x.device.type, PRODUCTS_LIMIT["cpu"])
        return self.x.shape[0] <= limit


def least_kl_bound(trace_error: Tensor, noise: Tensor) -> Tensor:
    """(T / s - log(1 + T / s)) / 2: no ``bound`` is ever less, whatever the targets."""
    ratio = trace_error / noise.double()
    return 0.5 * (ratio - ratio.log1p())
