"""Certified bounds on KL(q || posterior), and the fewest greedy points that meet a tolerance."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.inducing import GreedyConditionalVariance, Selector
from gpx.inference.auxiliary import AuxiliarySolver
from gpx.inference.exact_solver import require_finite
from gpx.inference.kl_bounds import kl_upper_bound, kl_upper_bound_cg
from gpx.inference.nystrom import (
    BlockStore,
    NystromSums,
    Whitener,
    factorise,
    longest_prefix,
    nystrom_sums,
)
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.inference.rounding import factor_rounding
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport, running_sum

INITIAL_POINTS = 64
"""Points of the first attempt; every further attempt doubles them."""

BISECTION_SLACK = 0.02
"""Relative accuracy of the bisection for the smallest certified number of points."""

MAX_ROWS_FOR_PRODUCTS = {"cpu": 20_000, "cuda": 200_000}
"""Most training points for which products with the kernel matrix (n^2 each) are used."""

SOLVER_SHARE = 0.05
"""Accuracy of conjugate gradients, as a fraction of the tolerance."""


@dataclass(frozen=True)
class KLCertifier:
    """Certified upper bounds on KL(q || posterior) in nats, rounding included; for float64.

    The bound uses sums over the data alone. If it is above the tolerance, a sharper one by
    conjugate gradients with the kernel matrix is tried, which needs about half the points.

    Attributes:
        kernel, x (n, d): covariance function and inputs.
        residual (n,): y - m(x).
        noise (): noise variance.
        tolerance: in nats.
        products: whether to use products with the kernel matrix; None: for at most
            ``MAX_ROWS_FOR_PRODUCTS`` rows.

    Cost: one M x M eigendecomposition; a few products of n^2.
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
        """Upper bound on KL(q || posterior) in nats, for the optimal q of these points.

        Args:
            whitener, report: of the factorisation of K_zz, whose jitter is part of q.
            sums: over the data, with ``residual``.
        """
        noise = self.noise.detach().double()
        store = BlockStore(whitener, self.x)
        nystrom = NystromMatrix(store, sums, noise, report=report)
        found = float(kl_upper_bound(sums, noise, rounding=factor_rounding(nystrom)))
        undecided = found > self.tolerance >= float(least_kl_bound(sums.trace_error, noise))
        if not (undecided and self._products()):
            return found
        solver = AuxiliarySolver(epsilon=SOLVER_SHARE * self.tolerance, max_iterations=200)
        matrix = solver.matrix(self.kernel, self.x, noise)
        start = nystrom.shifted_solve(self.residual)
        solved = solver.solve(matrix, nystrom, self.residual, start)
        sharp = kl_upper_bound_cg(nystrom, self.residual, solved.vector, solved.residual)
        return min(found, float(sharp))

    def _products(self) -> bool:
        if self.products is not None:
            return self.products
        limit = MAX_ROWS_FOR_PRODUCTS.get(self.x.device.type, MAX_ROWS_FOR_PRODUCTS["cpu"])
        return self.x.shape[0] <= limit


def least_kl_bound(trace_error: Tensor, noise: Tensor) -> Tensor:
    """(T / s - log(1 + T / s)) / 2, a lower bound of ``KLCertifier.bound`` for any targets."""
    ratio = trace_error / noise.double()
    return 0.5 * (ratio - ratio.log1p())


@dataclass(frozen=True)
class CertifiedSelection:
    """Inducing points with their certificate.

    Attributes:
        points (M, d): in the order of greedy selection.
        kl: upper bound on KL(q || posterior) at these points, in nats.
        tolerance: in nats.
        limit: why there are no more points, in words; empty if the tolerance is met.
    """

    points: Tensor
    kl: float
    tolerance: float
    limit: str = ""

    @property
    def met(self) -> bool:
        """Whether the certificate is within the tolerance."""
        return self.kl <= self.tolerance

    def __str__(self) -> str:
        text = f"{self.points.shape[0]} inducing points, KL(q || posterior) <= {self.kl:.3g} nats"
        if self.met:
            return text
        return f"{text}, above the {self.tolerance:g} asked for: {self.limit}"


def prefix_sums(sums: NystromSums, size: int) -> NystromSums:
    """Sums for the first ``size`` inducing points, from those for all of them.

    L is lower triangular, so the first rows of A belong to the first points alone; the variance
    that later points explain is added to the trace error.
    """
    gram = sums.gram[:size, :size]
    freed = sums.gram.diagonal()[size:].sum()
    return dataclasses.replace(
        sums,
        gram=gram,
        projected=sums.projected[:size],
        trace_error=sums.trace_error + freed,
    )


@torch.no_grad()
def certified_selection(
    certifier: KLCertifier,
    *,
    max_points: int,
    jitter: float | None = None,
    generator: torch.Generator | None = None,
    selector: Selector | None = None,
) -> CertifiedSelection:
    """Grow a greedy set until the a-posteriori bound on the KL is within the tolerance.

    Sizes double until the bound is met; as the sets are nested, one factorisation serves all
    smaller sizes, and bisection finds the smallest that suffices (within ``BISECTION_SLACK``). The
    set ends where K_zz has no Cholesky factor at the smallest jitter.

    Args:
        certifier: for the data, hyperparameters and tolerance.
        max_points: most inducing points.
        jitter: smallest jitter, see ``factorise``.
        generator: for subsampling very large data before the greedy selection.
        selector: of nested sets; None: ``GreedyConditionalVariance()``.

    Cost: at most about 8 n M^2 multiply-adds for the M that is returned, and about ten times that
    of the certifier; memory n times up to 2 M.
    Raises: DataError: targets that are not finite.
    Source: Burt thesis, sections 2.4 and 5.1.
    """
    require_finite(certifier.residual)
    kernel, x, noise = certifier.kernel, certifier.x, certifier.noise
    tolerance, most = certifier.tolerance, min(max_points, certifier.x.shape[0])
    size, too_few = min(INITIAL_POINTS, most), 0
    selector = GreedyConditionalVariance() if selector is None else selector
    while True:
        greedy = selector.select(x, kernel, size, generator=generator)
        z = longest_prefix(kernel, greedy.points[: greedy.informative or 1], jitter)
        whitener, report = factorise(kernel, z, jitter, escalate=False)
        sums = nystrom_sums(BlockStore(whitener, x), certifier.residual)
        last = len(z) < size or size == most
        if last or float(least_kl_bound(sums.trace_error, noise)) <= tolerance:
            kl = certifier.bound(whitener, sums, report)
            if kl <= tolerance:
                break
            if last:
                return CertifiedSelection(z, kl, tolerance, _limit(len(z) < size, max_points, x))
        size, too_few = min(2 * size, most), size
    enough = len(z)
    # trace errors of the first 1, 2, ... points rule out sizes, whatever the targets
    freed = running_sum(sums.gram.diagonal().flip(0)).flip(0)[1:]
    impossible = least_kl_bound(sums.trace_error + freed, noise) > tolerance
    too_few = max(too_few, int(impossible.sum()))
    while enough - too_few > max(1.0, BISECTION_SLACK * enough):
        m = (enough + too_few) // 2
        part = Whitener(kernel, z[:m], whitener.factor[:m, :m])
        found = certifier.bound(part, prefix_sums(sums, m), report)
        if found <= tolerance:
            enough, kl = m, found
        else:
            too_few = m
    return CertifiedSelection(z[:enough].clone(), kl, tolerance)


def _limit(exhausted: bool, max_points: int, x: Tensor) -> str:
    """Why no further points are added, for messages."""
    if exhausted:
        return "further points add nothing in the precision of the kernel matrix"
    if max_points < x.shape[0]:
        return f"max_inducing={max_points} is the limit set"
    return "that is all of the training data"
