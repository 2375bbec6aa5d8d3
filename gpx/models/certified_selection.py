"""The fewest greedy inducing points that certify a small KL(q || posterior)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.inducing import GreedyConditionalVariance
from gpx.kernels.base import Kernel
from gpx.models.nystrom import BlockStore, NystromSums, factorise, longest_prefix, nystrom_sums

FIRST = 64
"""Points of the first attempt; every further one has twice as many."""

SLACK = 0.02
"""Share of the points that bisection may leave above the smallest number that certifies."""


@dataclass(frozen=True)
class CertifiedSelection:
    """Inducing points and what is certain of them.

    Attributes:
        points (M, d): in the order of greedy selection.
        kl: nats; upper bound on KL(q || posterior) at these points.
        tolerance: nats that were asked for.
        limit: what kept M from growing, in words; empty where the tolerance is met.
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


def certified_kl(sums: NystromSums, noise: Tensor) -> float:
    """``gpx.diagnostics.kl_upper_bound``, in nats."""
    # diagnostics takes models apart and cannot be loaded before them
    from gpx.diagnostics.kl_bounds import kl_upper_bound

    return float(kl_upper_bound(sums, noise))


def least_kl_bound(trace_error: Tensor, noise: Tensor) -> Tensor:
    """(T / s - log(1 + T / s)) / 2: ``kl_upper_bound`` is never less, whatever the targets."""
    ratio = trace_error / noise.double()
    return 0.5 * (ratio - ratio.log1p())


def prefix_sums(sums: NystromSums, size: int) -> NystromSums:
    """Sums of the first ``size`` inducing points, from those of all of them.

    L is lower triangular, so the first rows of A are those of the first points alone, and what the
    later rows explain goes back to the trace error.
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
    kernel: Kernel,
    x: Tensor,
    residual: Tensor,
    noise: Tensor,
    *,
    tolerance: float,
    max_points: int,
    jitter: float | None = None,
    generator: torch.Generator | None = None,
) -> CertifiedSelection:
    """Grow a greedy set until the a-posteriori bound on the KL is within ``tolerance``.

    Sets are nested, so one factorisation certifies every size up to its own; sizes double, and the
    smallest that suffices is found by bisection (within ``SLACK``). K_zz is factorised with the
    smallest jitter alone: where that ends, the set ends.

    Args:
        kernel, x (n, d), residual (n,), noise (): covariance, inputs, y - m(x), noise variance;
            float64.
        tolerance: nats.
        max_points: most inducing points.
        jitter: smallest jitter, see ``factorise``.
        generator: thins very large data before the greedy selection.

    Cost: at most about 8 n M^2 multiply-adds for the M that is returned, and some M x M
    eigendecompositions; memory n times up to 2 M.
    Source: Burt thesis, sections 2.4 and 5.1.
    """
    most = min(max_points, x.shape[0])
    size, too_few = min(FIRST, most), 0
    while True:
        greedy = GreedyConditionalVariance().select(x, kernel, size, generator=generator)
        z = longest_prefix(kernel, greedy.points[: greedy.informative or 1], jitter)
        whitener, _ = factorise(kernel, z, jitter, escalate=False)
        sums = nystrom_sums(BlockStore(whitener, x), residual)
        last = len(z) < size or size == most
        if last or float(least_kl_bound(sums.trace_error, noise)) <= tolerance:
            kl = certified_kl(sums, noise)
            if kl <= tolerance:
                break
            if last:
                return CertifiedSelection(z, kl, tolerance, _limit(len(z) < size, max_points, x))
        size, too_few = min(2 * size, most), size
    enough = len(z)
    # T of the first 1, 2, ... points, and what no targets can make small enough
    freed = sums.gram.diagonal().flip(0).cumsum(0).flip(0)[1:]
    hopeless = least_kl_bound(sums.trace_error + freed, noise) > tolerance
    too_few = max(too_few, int(hopeless.sum()))
    while enough - too_few > max(1.0, SLACK * enough):
        middle = (enough + too_few) // 2
        found = certified_kl(prefix_sums(sums, middle), noise)
        if found <= tolerance:
            enough, kl = middle, found
        else:
            too_few = middle
    return CertifiedSelection(z[:enough].clone(), kl, tolerance)


def _limit(exhausted: bool, max_points: int, x: Tensor) -> str:
    """Why the set grows no further."""
    if exhausted:
        return "further points add nothing in the precision of the kernel matrix"
    if max_points < x.shape[0]:
        return f"approx.max_inducing={max_points} is the limit set"
    return "that is all of the training data"
