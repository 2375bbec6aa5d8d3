"""Pivoted incomplete Cholesky factorisation of a kernel matrix that is never formed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite, ShapeError

MAX_BLOCK = 64
"""Largest number of rows fetched at once: bounds the work wasted on wrongly guessed pivots."""

MIN_BLOCK = 8
"""Smallest number of rows fetched at once: fewer save rows but cost more rounds."""

EXHAUSTED = {torch.float64: 1e-14, torch.float32: 1e-6}
"""The factorisation ends when the largest residual variance is below this, relative to the largest
diagonal entry: what is left is rounding."""


INDEFINITE = {torch.float64: 1e-4, torch.float32: 1e-1}
"""A residual variance more negative than this, relative to the largest diagonal entry, cannot be
rounding: the matrix is not positive semi-definite."""


@dataclass(frozen=True)
class PivotedCholesky:
    """Partial factorisation K ~ C^T C with greedily chosen pivots.

    Attributes:
        factor (m, n): C; row i vanishes at pivots 0 .. i - 1, and C[:, pivots] is upper triangular,
            so that K[pivots, pivots] = C[:, pivots]^T C[:, pivots] without a factorisation.
        pivots (m,): row indices in the order of selection.
        residual (n,): diag(K - C^T C), never negative; its sum is the trace error.
    """

    factor: Tensor
    pivots: Tensor
    residual: Tensor


def pivoted_cholesky(
    rows: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    rank: int,
    *,
    tolerance: float = 0.0,
    largest: float = 0.0,
) -> PivotedCholesky:
    """Factorise with the largest residual variance as the next pivot (ties: lowest index).

    The pivots are exactly those of the textbook algorithm, one at a time. Rows, however, are
    fetched and swept against the previous pivots for a whole block of likely next pivots at once
    (the points of largest residual now), which turns memory-bound matrix-vector products into a
    matrix product; a block ends early when the true next pivot was not guessed, and the block size
    adapts to how often the guess holds.

    Args:
        rows: indices (b,) -> K[indices, :] (b, n), b <= MAX_BLOCK.
        diagonal (n,): diag(K), non-negative.
        rank: most pivots to take.
        tolerance: stop once the trace error is at or below this, in the unit of K.
        largest: stop once no residual variance is above this, in the unit of K.

    Returns:
        The factorisation with m <= rank pivots: fewer when a tolerance is met or when the
        residual is exhausted to rounding (EXHAUSTED times the largest diagonal entry).

    Raises:
        NotPositiveDefinite: a negative diagonal entry, NaN or infinite values in the diagonal or
            the rows, a residual variance that is negative beyond all rounding.
        ShapeError: a diagonal that is not (n,), rows that are not (b, n).

    Cost: about n m^2 multiply-adds and n m kernel entries; memory n (m + MAX_BLOCK); two host
    synchronisations per pivot.
    Source: Burt thesis, section 3.1.2.
    """
    residual, scale = checked_diagonal(diagonal, rank)
    n = diagonal.shape[0]
    rank = min(rank, n)
    factor = residual.new_empty(rank, n)
    pivots = torch.empty(rank, dtype=torch.long, device=residual.device)
    floor = max(largest, EXHAUSTED.get(residual.dtype, 1e-3) * scale)
    block, taken = MIN_BLOCK, 0
    while taken < rank:
        guess = torch.topk(residual, min(block, rank - taken), sorted=False).indices
        # the true next pivot is always in the block, also when topk breaks ties differently
        first = torch.argmax(residual)
        if not bool((guess == first).any()):
            guess[0] = first
        swept = checked_rows(rows(guess), guess.shape[0], n)
        if taken:
            done = factor[:taken]
            swept = torch.addmm(swept, done[:, guess].T, done, alpha=-1.0)
        place = {index: i for i, index in enumerate(guess.tolist())}
        start = taken
        for _ in range(len(place)):
            pivot, variance, remaining = _largest(residual, with_sum=tolerance > 0.0)
            if not math.isfinite(variance):
                raise NotPositiveDefinite(
                    f"a residual variance became {variance} after {taken} pivots: the rows hold "
                    "NaN or infinite values; check the inputs and the kernel's hyperparameters"
                )
            if variance <= floor or (tolerance > 0.0 and remaining <= tolerance):
                clamp_residual(residual, scale)
                return PivotedCholesky(factor[:taken], pivots[:taken], residual)
            if pivot not in place:
                break
            row = swept[place[pivot]]
            if taken > start:
                inner = factor[start:taken]
                row = torch.addmv(row, inner.T, inner[:, pivot], alpha=-1.0)
            row = torch.div(row, variance**0.5, out=factor[taken])
            row[pivots[:taken]] = 0.0  # exact zeros keep C[:, pivots] triangular
            row[pivot] = variance**0.5
            residual.addcmul_(row, row, value=-1.0)
            pivots[taken] = pivot
            taken += 1
            residual[pivots[:taken]] = 0.0
        clamp_residual(residual, scale)
        used = taken - start
        hit = used == len(place)
        block = min(2 * block if hit else max(2 * used, MIN_BLOCK), MAX_BLOCK)
    return PivotedCholesky(factor, pivots, residual)


def checked_diagonal(diagonal: Tensor, rank: int) -> tuple[Tensor, float]:
    """Initial residual variances (n,), none negative, and the largest (zero where there are none).

    Raises: as ``pivoted_cholesky``.
    """
    if diagonal.ndim != 1:
        raise ShapeError(f"the diagonal must be (n,), got {tuple(diagonal.shape)}")
    if rank < 0:
        raise ConfigError(f"the rank must not be negative, got {rank}")
    residual = diagonal.detach().clone().clamp_(min=0.0)
    if min(rank, residual.shape[0]) == 0:
        return residual, 0.0
    scale, lowest = torch.stack([residual.max(), diagonal.detach().min()]).tolist()
    if not (math.isfinite(scale) and lowest >= -_rounding(residual.dtype) * scale):
        raise NotPositiveDefinite(
            f"the diagonal ranges from {lowest:.3g} to {scale:.3g}, a covariance's is finite and "
            "not negative; check the inputs and the kernel's hyperparameters"
        )
    return residual, scale


def checked_rows(found: Tensor, size: int, n: int) -> Tensor:
    """``found``, or ShapeError where its shape is not (size, n)."""
    if found.shape != (size, n):
        raise ShapeError(
            f"rows returned {tuple(found.shape)} for {size} indices; expected ({size}, {n})"
        )
    return found


def _largest(residual: Tensor, *, with_sum: bool) -> tuple[int, float, float]:
    """Place and value of the largest entry, and the sum of all (or nan): one synchronisation."""
    place = torch.argmax(residual)
    # residual[place] would synchronise to read the index
    found = [place.double(), residual.index_select(0, place[None])[0].double()]
    if with_sum:
        found.append(residual.sum().double())
    pivot, largest, *total = torch.stack(found).tolist()
    return int(pivot), largest, total[0] if total else math.nan


def clamp_residual(residual: Tensor, scale: float) -> None:
    """Set negative residual variances (n,) to zero, in place; see ``check_lowest``."""
    check_lowest(float(residual.min()), residual.dtype, scale)
    residual.clamp_(min=0.0)


def check_lowest(lowest: float, dtype: torch.dtype, scale: float, amplified: float = 1.0) -> None:
    """Raise NotPositiveDefinite where the smallest residual variance is too negative for rounding.

    Args:
        lowest: smallest residual variance.
        scale: largest entry of the diagonal.
        amplified: factor by which an error of the rows may be larger in the residual.
    """
    allowed = INDEFINITE.get(dtype, 1e-1) * scale * amplified
    if not lowest >= -allowed:  # also when it is NaN
        raise NotPositiveDefinite(
            f"a residual variance became {lowest:.3g} (largest variance {scale:.3g}): the matrix "
            "is indefinite, no covariance, or its rows hold NaN or infinite values; check that the "
            "rows and the diagonal belong together"
        )


def _rounding(dtype: torch.dtype) -> float:
    return 100.0 * torch.finfo(dtype).eps
