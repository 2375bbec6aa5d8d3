"""Randomly pivoted partial Cholesky factorisation of a kernel matrix that is never formed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpx.linalg.pivoted_cholesky import (
    EXHAUSTED,
    MAX_BLOCK,
    MIN_BLOCK,
    PivotedCholesky,
    check_lowest,
    checked_diagonal,
    checked_rows,
)
from gpx.linalg.running_sum import running_sum


def randomly_pivoted_cholesky(
    rows: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    rank: int,
    *,
    tolerance: float = 0.0,
    generator: torch.Generator | None = None,
) -> PivotedCholesky:
    """Factorise with pivots drawn in proportion to their residual variances.

    The pivots are distributed exactly as in the algorithm that draws one at a time: a block is
    proposed from the variances at its beginning, and each proposal is kept with probability equal
    to the share of its variance that remains after the proposals kept before it.

    Args:
        rows: indices (b,) -> K[indices, :] (b, n), b <= MAX_BLOCK; indices may repeat.
        diagonal (n,): diag(K), non-negative.
        rank: most pivots to take.
        tolerance: stop once the trace error is at or below this, in the unit of K; checked between
            blocks.
        generator: source of randomness on the device of the diagonal.

    Returns:
        The factorisation with m <= rank pivots, as of ``pivoted_cholesky``: fewer when the residual
        is exhausted to rounding.

    Raises:
        NotPositiveDefinite, ShapeError, ConfigError: as ``pivoted_cholesky``.

    Cost: about n m^2 multiply-adds and n m kernel entries, times the proposals per kept one; memory
    n (m + MAX_BLOCK); one host synchronisation per block, and two more.
    Source: Chen, Epperly, Tropp and Webber 2023, algorithm 2.1; Epperly, Tropp and Webber 2024,
    algorithm 2.1 (rejection in blocks).
    """
    residual, scale = checked_diagonal(diagonal, rank)
    n = diagonal.shape[0]
    rank = min(rank, n)
    factor = residual.new_empty(rank, n)
    pivots = torch.empty(rank, dtype=torch.long, device=residual.device)
    floor = EXHAUSTED.get(residual.dtype, 1e-3) * scale
    block, taken, smallest, amplified = MIN_BLOCK, 0, scale, 1.0
    lowest = residual.new_zeros(1)  # smallest residual variance before clamping at zero
    while taken < rank:
        # variances that are only rounding carry no information and would be drawn for ever
        mass = running_sum(torch.where(residual > floor, residual, 0.0).double())
        if mass.is_cpu and not float(mass[-1]) > tolerance:
            break  # on a GPU checked below, with one transfer, at the cost of one block's rows
        size = min(block, rank - taken)
        draws = torch.rand(2, size, generator=generator, device=mass.device, dtype=torch.float64)
        proposed = torch.searchsorted(mass, draws[0] * mass[-1], right=True).clamp_(max=n - 1)
        swept = checked_rows(rows(proposed), size, n)
        done = factor[:taken]
        swept = torch.addmm(swept, done[:, proposed].mT, done, alpha=-1.0)
        host = _to_host(swept[:, proposed], draws[1] * residual[proposed], mass[-1:], lowest)
        check_lowest(host.lowest, residual.dtype, scale, amplified)
        if not host.mass > tolerance:
            break
        kept, root = _accept_proposals(host.gram, host.levels, floor)
        if not kept:  # the first proposal's variance was rounding, or NaN
            check_lowest(float(host.gram[0, 0]), residual.dtype, scale)
            residual.index_fill_(0, proposed[:1], 0.0)
            continue
        places = torch.tensor(kept, device=residual.device)
        chosen, lower = proposed[places], torch.from_numpy(root).to(residual)
        new = torch.linalg.solve_triangular(lower, swept[places], upper=False)
        new[:, pivots[:taken]] = 0.0  # exact zeros keep C[:, pivots] triangular
        new[:, chosen] = lower.mT
        stop = taken + len(kept)
        factor[taken:stop] = new
        pivots[taken:stop] = chosen
        residual -= new.square().sum(0)
        residual[pivots[:stop]] = 0.0
        # an error e of rows with entries up to sqrt(v scale) becomes 2 e sqrt(scale / v): pivots of
        # small variance v, which greedy pivots never have, amplify rounding
        smallest = min(smallest, float(root.diagonal().min()) ** 2)
        amplified = 2.0 * (scale / smallest) ** 0.5
        lowest = residual.min().reshape(1)
        residual.clamp_(min=0.0)
        block = min(max(2 * len(kept), MIN_BLOCK), MAX_BLOCK)
        taken = stop
    check_lowest(float(lowest), residual.dtype, scale, amplified)
    return PivotedCholesky(factor[:taken], pivots[:taken], residual)


class _HostValues(NamedTuple):
    """Values of a block that the host needs, in float64.

    Attributes:
        gram (b, b): residual covariances of the proposals at the beginning of the block.
        levels (b,): uniform draws times the proposals' variances; a proposal is kept where its
            remaining variance is above its level.
        mass: sum of all residual variances.
        lowest: smallest residual variance after the previous block.
    """

    gram: np.ndarray
    levels: list[float]
    mass: float
    lowest: float


def _to_host(gram: Tensor, levels: Tensor, mass: Tensor, lowest: Tensor) -> _HostValues:
    """Fetch them in one transfer."""
    size = len(gram)
    parts = (gram.reshape(-1), levels, mass, lowest)
    found = torch.cat([part.double() for part in parts]).cpu().numpy()
    tail = found[size * size :].tolist()
    return _HostValues(found[: size * size].reshape(size, size), tail[:size], *tail[size:])


def _accept_proposals(
    gram: np.ndarray, levels: list[float], floor: float
) -> tuple[list[int], np.ndarray]:
    """Places of the proposals that are kept, and the Cholesky factor of their covariances.

    Args:
        gram, levels: see ``_HostValues``.
        floor: variance at or below which a proposal carries no information.
    """
    left = gram.copy()
    kept: list[int] = []
    columns: list[np.ndarray] = []
    for i, level in enumerate(levels):
        variance = float(left[i, i])
        # nothing has been subtracted from the first yet: a difference there is rounding
        if variance > floor and (i == 0 or level < variance):
            column = left[:, i] / math.sqrt(variance)
            left -= np.outer(column, column)
            kept.append(i)
            columns.append(column)
    if not kept:
        return kept, gram[:0, :0]
    return kept, np.tril(np.stack(columns, 1)[kept])
