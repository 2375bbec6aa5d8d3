"""Randomly pivoted partial Cholesky factorisation of a kernel matrix that is never formed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.linalg.pivoted_cholesky import (
    EXHAUSTED,
    MAX_BLOCK,
    MIN_BLOCK,
    PivotedCholesky,
    checked_diagonal,
    checked_rows,
    clamp_residual,
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

    The pivots are distributed exactly as those of the algorithm that draws one at a time: a block
    is proposed from the variances at its beginning, and each proposal is kept with the share of its
    variance that the ones kept before it have left.

    Args:
        rows: indices (b,) -> K[indices, :] (b, n), b <= MAX_BLOCK; indices may repeat.
        diagonal (n,): diag(K), non-negative.
        rank: most pivots to take.
        tolerance: stop once the trace error is at or below this, in the unit of K; looked at
            between blocks.
        generator: source of randomness on the device of the diagonal.

    Returns:
        The factorisation with m <= rank pivots, as of ``pivoted_cholesky``: fewer when the residual
        is exhausted to rounding.

    Raises:
        NotPositiveDefinite, ShapeError, ConfigError: as ``pivoted_cholesky``.

    Cost: about n m^2 multiply-adds and n m kernel entries, times the proposals per kept one; memory
    n (m + MAX_BLOCK); some host synchronisations per block.
    Source: Chen, Epperly, Tropp and Webber 2023, algorithm 2.1; Epperly, Tropp and Webber 2024,
    algorithm 2.1 (rejection in blocks).
    """
    residual, scale = checked_diagonal(diagonal, rank)
    n = diagonal.shape[0]
    rank = min(rank, n)
    factor = residual.new_empty(rank, n)
    pivots = torch.empty(rank, dtype=torch.long, device=residual.device)
    floor = EXHAUSTED.get(residual.dtype, 1e-3) * scale
    block, taken, smallest = MIN_BLOCK, 0, scale
    while taken < rank:
        # what rounding has left carries no information and would be drawn for ever
        mass = running_sum(torch.where(residual > floor, residual, 0.0).double())
        if not float(mass[-1]) > tolerance:
            break
        size = min(block, rank - taken)
        draws = torch.rand(2, size, generator=generator, device=mass.device, dtype=torch.float64)
        proposed = torch.searchsorted(mass, draws[0] * mass[-1], right=True).clamp_(max=n - 1)
        swept = checked_rows(rows(proposed), size, n)
        done = factor[:taken]
        swept = torch.addmm(swept, done[:, proposed].mT, done, alpha=-1.0)
        kept, lower = _kept(swept[:, proposed], residual[proposed], draws[1], floor)
        chosen = proposed[kept]
        if not len(kept):  # the first proposal's variance was rounding, or no number
            clamp_residual(swept[0, proposed[:1]].clone(), scale)
            residual[proposed[0]] = 0.0
            continue
        new = torch.linalg.solve_triangular(lower, swept[kept], upper=False)
        new[:, pivots[:taken]] = 0.0  # exact zeros keep C[:, pivots] triangular
        new[:, chosen] = lower.mT
        stop = taken + len(kept)
        factor[taken:stop] = new
        pivots[taken:stop] = chosen
        residual -= new.square().sum(0)
        residual[pivots[:stop]] = 0.0
        # an error e of rows with entries up to sqrt(v scale) becomes 2 e sqrt(scale / v): pivots of
        # small variance v, which greedy ones never are, enlarge what rounding has done
        smallest = min(smallest, float(lower.diagonal().min()) ** 2)
        clamp_residual(residual, scale, 2.0 * (scale / smallest) ** 0.5)
        block = min(max(2 * len(kept), MIN_BLOCK), MAX_BLOCK)
        taken = stop
    return PivotedCholesky(factor[:taken], pivots[:taken], residual)


def _kept(gram: Tensor, before: Tensor, draws: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Places of the proposals that are kept, and the Cholesky factor of their covariances.

    Args:
        gram (b, b): residual covariances of the proposals at the beginning of the block.
        before (b,): variances they were proposed with; draws (b,): uniform in [0, 1).
        floor: variance at or below which a proposal carries no information.
    """
    left = gram.double().cpu().clone()
    levels = (draws * before.double()).tolist()
    kept: list[int] = []
    columns: list[Tensor] = []
    for i, level in enumerate(levels):
        variance = float(left[i, i])
        # the first has lost nothing yet: a difference there is rounding
        if variance > floor and (i == 0 or level < variance):
            column = left[:, i] / variance**0.5
            left.addr_(column, column, alpha=-1.0)
            kept.append(i)
            columns.append(column)
    places = torch.tensor(kept, dtype=torch.long, device=gram.device)
    if not kept:
        return places, gram[:0, :0]
    return places, torch.stack(columns, 1)[kept].tril().to(gram)
