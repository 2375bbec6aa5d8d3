"""The Nystrom approximation of a kernel matrix, streamed over blocks of data.

Notation: L = chol(K_zz), A = L^{-1} K_zx (M, n), Q_xx = A^T A. Blocks
hold A^T, data points in rows. Products over data are in the data's dtype, sums over data and all
M x M algebra in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport, cholesky
from gpx.linalg.cholesky import LADDER
from gpx.linalg.memory import working_memory
from gpx.linalg.processes import Processes
from gpx.linalg.triangular import add_lower_product

BLOCK_BYTES = {"cpu": 2**22}
"""Bytes of one block of A^T on a CPU: it stays in the cache between the passes over it. Elsewhere a
block takes an eighth of ``working_memory``."""

GRAM_BYTES = 2**21
"""Bytes of the rows of A^T added to A A^T at once on a CPU: they stay in a core's cache."""


class Whitener:
    """L = chol(K_zz) and the products A^T = K_xz L^{-T} with it.

    Attributes:
        kernel, z (M, d): covariance function and inducing inputs.
        factor (M, M): L.
        features: the inducing features that z defines; default inducing points.
    """

    def __init__(
        self, kernel: Kernel, z: Tensor, factor: Tensor, features: InducingFeatures = POINTS
    ) -> None:
        self.kernel = kernel
        self.z = z.detach()
        self.factor = factor
        self.features = features
        self._solvers = {factor.dtype: factor, z.dtype: factor.to(z.dtype)}

    def cross(self, x: Tensor) -> Tensor:
        """K_xz (b, M) for the rows x (b, d)."""
        return self.features.cross(self.kernel, x, self.z)

    def block(self, x: Tensor, out: Tensor) -> Tensor:
        """``whiten`` of ``cross``: A^T for the rows x (b, d)."""
        return self.whiten(self.cross(x), out)

    def whiten(self, cross: Tensor, out: Tensor) -> Tensor:
        """A^T for rows of K_xz (b, M), written into out (b, M), float64 or of the dtype of z.

        Cost: b M^2 / 2 multiply-adds.
        """
        out.copy_(cross)
        column = out.mT  # LAPACK's layout: solved in place, without a copy
        torch.linalg.solve_triangular(self._solvers[out.dtype], column, upper=False, out=column)
        return out


def factorise(
    kernel: Kernel,
    z: Tensor,
    jitter: float | None = None,
    *,
    escalate: bool = True,
    features: InducingFeatures = POINTS,
    gram: Tensor | None = None,
) -> tuple[Whitener, CholeskyReport]:
    """Factorise K_zz in float64 and report the jitter used.

    Args:
        kernel, z (M, d): covariance function and inducing inputs.
        jitter: smallest jitter to try, relative to the mean diagonal; None: 0 in float64 and 1e-6
            in float32, where rounding of the kernel entries alone makes K_zz indefinite.
        escalate: whether larger ones are tried where it does not suffice.
        features: the inducing features that z defines.
        gram (M, M): K_zz, detached, if already computed.

    Raises:
        NotPositiveDefinite: when the whole ladder of jitters fails.
    """
    z = z.detach()
    gram = features.gram(kernel, z).detach() if gram is None else gram
    smallest = _smallest_jitter(z, jitter)
    factor, report = factorise_gram(gram.double(), smallest, escalate=escalate)
    return Whitener(kernel, z, factor, features), report


def factorise_gram(
    gram: Tensor, smallest: float, *, escalate: bool = True
) -> tuple[Tensor, CholeskyReport]:
    """L (M, M) of K_zz in float64, and the jitter used; see ``factorise``.

    Args:
        gram (M, M): K_zz, float64, detached.
        smallest: jitter to try first, relative to the mean diagonal.
        escalate: whether larger ones are tried where it does not suffice.
    """
    larger = tuple(j for j in LADDER[torch.float64] if j > smallest) if escalate else ()
    return cholesky(
        gram,
        name=f"K_zz of {gram.shape[0]} inducing points",
        ladder=(smallest, *larger),
        hint="fewer inducing points or shorter lengthscales",
    )


def _smallest_jitter(z: Tensor, jitter: float | None) -> float:
    if jitter is not None:
        return jitter
    return 0.0 if z.dtype == torch.float64 else 1e-6


@torch.no_grad()
def longest_prefix(
    kernel: Kernel, z: Tensor, jitter: float | None = None, features: InducingFeatures = POINTS
) -> Tensor:
    """The first rows of z (M, d) whose K_zz has a Cholesky factor at the smallest jitter.

    All of z where K_zz has one; at least one row. The prefix ends before a repeated point, or one
    whose pivot is of the size of rounding: whether such a pivot is positive may change with the
    next evaluation of K_zz.

    Raises: NotPositiveDefinite where even k(z_1, z_1) is not positive.
    """
    gram = features.gram(kernel, z).double()
    gram.diagonal().add_(_smallest_jitter(z, jitter) * gram.diagonal().mean())
    factor, info = torch.linalg.cholesky_ex(gram)
    failed = int(info)  # order of the first leading block that is not positive definite
    if failed == 1:
        factorise(kernel, z[:1], jitter, escalate=False, features=features)  # raises
    kept = z.shape[0] if failed == 0 else failed - 1
    # a pivot that is only rounding may be positive by chance
    rounding = kept * torch.finfo(torch.float64).eps * gram.diagonal()[:kept]
    lost = factor.diagonal()[:kept].square() <= rounding
    return z[: int(lost.int().argmax())] if bool(lost.any()) else z[:kept]


class BlockStore:
    """Blocks of A^T, stored as far as a budget allows and otherwise recomputed at every pass.

    Args:
        whitener: computes the blocks.
        x (n, d): data inputs.
        memory_budget: bytes that may be kept between passes; 0 keeps nothing.
        dtype: of A; float64, or that of x (None). Kernel entries are evaluated in that of x.
        bounds: where blocks begin and end, 0 first and n last; None: blocks of about
            ``BLOCK_BYTES``.
        scale (n,): factors of the rows of A^T, such as roots of the rows' noise precisions; then A
            here and in ``NystromSums`` stands for A diag(scale). None: ones.
    """

    def __init__(
        self,
        whitener: Whitener,
        x: Tensor,
        memory_budget: int = 0,
        *,
        dtype: torch.dtype | None = None,
        bounds: Sequence[int] | None = None,
        scale: Tensor | None = None,
    ) -> None:
        self.whitener, self.x = whitener, x.detach()
        self.scale = scale
        n, m = x.shape[0], whitener.z.shape[0]
        # None, not a bound method, which would be a reference cycle that delays freeing the blocks
        self._held: Callable[[slice], Tensor] | None = None
        self._kept = x.new_empty(0, m, dtype=dtype)
        self.dtype = self._kept.dtype
        row = m * self._kept.element_size()
        if bounds is None:
            of_block = BLOCK_BYTES["cpu"] if x.is_cpu else working_memory(x.device) // 8
            self.rows = list(row_slices(n, max(1, of_block // row)))
        else:
            self.rows = [slice(start, stop) for start, stop in pairwise(bounds)]
        room = memory_budget // row
        self.num_kept = max((rows.stop for rows in self.rows if rows.stop <= room), default=0)
        largest = max((r.stop - r.start for r in self.rows if r.stop > self.num_kept), default=0)
        self._kept = self._kept.new_empty(self.num_kept, m)
        self._work = self._kept.new_empty(largest, m)
        self._filled = 0

    def hold(self, cross: Callable[[slice], Tensor], memory_budget: int) -> None:
        """Evaluate K_xz by ``cross``, which keeps it with its graph, where A and both fit.

        Not for several blocks on a CPU, where recomputing a block in the cache is faster.
        """
        one = len(self.rows) == 1 or self.x.device.type != "cpu"
        if one and self.num_kept == len(self.x) and 3 * self.kept_bytes <= memory_budget:
            self._held = cross

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks kept between passes."""
        return self._kept.numel() * self._kept.element_size()

    @property
    def whole(self) -> Tensor | None:
        """All of A^T (n, M) after the first pass; None when the budget does not hold it."""
        return self._kept if 0 < self.x.shape[0] == self._filled else None

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their block of A^T, valid until the next iteration."""
        for rows in self.rows:
            keep = rows.stop <= self.num_kept
            block = self._kept[rows] if keep else self._work[: rows.stop - rows.start]
            if not keep or rows.stop > self._filled:
                cross = self._cross if self._held is None else self._held
                self.whitener.whiten(cross(rows), block)
                if self.scale is not None:
                    block.mul_(self.scale[rows].to(block).unsqueeze(1))
                if keep:
                    self._filled = rows.stop
            yield rows, block

    def diagonal(self, rows: slice) -> Tensor:
        """k(x_n, x_n) of some rows, times their squared scales."""
        found = self.whitener.kernel.diagonal(self.x[rows])
        return found if self.scale is None else found * self.scale[rows].to(found).square()

    def cross_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their block of K_xz, evaluated anew."""
        for rows in self.rows:
            yield rows, self._cross(rows)

    def _cross(self, rows: slice) -> Tensor:
        return self.whitener.cross(self.x[rows]).detach()


@dataclass(frozen=True)
class NystromSums:
    """Sums over the data that the collapsed bound and its posterior need, in float64.

    Attributes:
        gram (M, M): A A^T.
        projected (M,) or (M, p): A r, of one residual r or of those of p outputs.
        trace_error (): T = sum_n t_n with t_n = max(0, k(x_n, x_n) - [Q_xx]_nn) per point.
        squared_residual () or (p,): r^T r.
        clamped (n,): where t_n was negative by rounding and counts as the constant zero; empty
            after ``plus``.
    """

    gram: Tensor
    projected: Tensor
    trace_error: Tensor
    squared_residual: Tensor
    clamped: Tensor

    @classmethod
    def of_features(cls, sums: SufficientStatistics) -> NystromSums:
        """Sums of features A^T that are the whole model: there is no error of a trace."""
        none = sums.squared.new_zeros(0)
        return cls(sums.gram, sums.projected, none.sum(), sums.squared, none.bool())

    def summed_over(self, processes: Processes) -> NystromSums:
        """The sums over the data of all processes; ``clamped`` stays this process's."""
        processes.all_sum(self.gram, self.projected, self.trace_error, self.squared_residual)
        return self

    def plus(self, further: NystromSums) -> NystromSums:
        """The sums over both data sets, without ``clamped``."""
        return NystromSums(
            self.gram + further.gram,
            self.projected + further.projected,
            self.trace_error + further.trace_error,
            self.squared_residual + further.squared_residual,
            self.clamped[:0],
        )

    def outputs(self) -> list[NystromSums]:
        """The sums of each of the p outputs."""
        if self.projected.ndim == 1:
            return [self]
        columns = zip(self.projected.unbind(1), self.squared_residual, strict=True)
        return [replace(self, projected=a, squared_residual=r) for a, r in columns]


class GramSum:
    """Sum over blocks of left^T right, a symmetric (M, M): float64 sums of products in ``dtype``.

    Args:
        zeros (M, M): float64; the sum is made in place.
        dtype: of the blocks.
    """

    def __init__(self, zeros: Tensor, dtype: torch.dtype) -> None:
        self._total = zeros
        self._products = zeros if dtype == zeros.dtype else torch.zeros_like(zeros, dtype=dtype)

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add left^T right of a block, (b, M) both. Fastest where ``left is right``."""
        m = len(self._total)
        rows = GRAM_BYTES // (m * left.element_size()) if left.is_cpu else len(left)
        for part in row_slices(len(left), max(1, rows)):
            add_lower_product(self._products, left[part].mT, right[part])
        if self._products is not self._total:
            self._total += self._products
            self._products.zero_()

    def matrix(self) -> Tensor:
        """The sum (M, M), float64."""
        return self._total.tril() + self._total.tril(-1).mT


def nystrom_sums(store: BlockStore, residual: Tensor) -> NystromSums:
    """One pass over the data: n M^2 / 2 (triangular solve) + n M^2 / 2 (Gram) multiply-adds.

    Args:
        store: blocks of A^T; filled by this pass.
        residual (n,) or (n, p): r = y - m(x), of one or of p outputs.
    """
    x, m = store.x, store.whitener.z.shape[0]
    gram = GramSum(torch.zeros(m, m, dtype=torch.float64, device=x.device), store.dtype)
    residual = residual.to(store.dtype)
    projected = torch.zeros(m, *residual.shape[1:], dtype=torch.float64, device=x.device)
    trace_error: Tensor | None = None
    clamped = torch.empty(x.shape[0], dtype=torch.bool, device=x.device)
    for rows, block in store:
        gram.add(block, block)
        if block.dtype == projected.dtype and projected.ndim == 1:
            projected.addmv_(block.mT, residual[rows])
        else:
            projected += block.mT @ residual[rows]
        gap = store.diagonal(rows) - torch.linalg.vecdot(block, block)
        torch.lt(gap, 0.0, out=clamped[rows])
        error = gap.clamp_(min=0.0).double().sum()
        trace_error = error if trace_error is None else trace_error + error
    if trace_error is None:
        trace_error = torch.zeros((), dtype=torch.float64, device=x.device)
    squared = residual.double().square().sum(0)
    return NystromSums(gram.matrix(), projected, trace_error, squared, clamped)
