"""Preconditioners for solves with gaps: eigenpairs of the grid, or the prior on long gaps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import budget_in_bytes, missing_grid_preconditioner, observed_grid_preconditioner
from gpx.linalg.preconditioners import Preconditioner
from gpx.methods.grid.system import GridSystem
from gpx.operators import Selection

MAX_DENSE_FACTOR_BYTES = 2**30
"""Most bytes of a stored preconditioner factor; larger ones are applied as Kronecker products."""

MAX_DEFAULT_RANK = 1000
"""Largest default rank of a preconditioner."""

LONG_GAP_CELLS = 64
"""Consecutive cells without data that count as a long gap, where the prior dominates."""


def ignore_preconditioner(
    system: GridSystem, rank: int | None, memory_budget: int | str | None = None
) -> Preconditioner | None:
    """Leading eigenpairs of the whole grid at the observed cells, for K_XX + sigma^2 I.

    Args:
        rank: p; None: the number of eigenvalues above the noise variance, at most
            ``MAX_DEFAULT_RANK``.
        memory_budget: of the factor, see ``budget_in_bytes``; at most (and with None)
            ``MAX_DENSE_FACTOR_BYTES``.

    Returns:
        None for rank 0, and for grids with circles if no rank is given.

    Raises:
        ConfigError: a rank is given for a grid with circles.

    Cost: min(N, L) p^2 and p^3; memory N p, or O(M) if that exceeds the budget. The system keeps
    the last one, for the next solve.
    """
    if system.circular:
        refuse_eigenpairs(rank or 0)
        return None
    if rank is None:
        above = int((system.spectrum.shifted > 2.0 * system.noise).sum())
        rank = min(max(above, 1), MAX_DEFAULT_RANK, system.num_observed)
    if rank == 0:
        return None
    form = _form(system, system.num_observed * rank, memory_budget)
    kept = system.last_preconditioner
    if kept is not None and kept[0] == (rank, form):
        return kept[1]
    found = observed_grid_preconditioner(
        [q for q in system.spectrum.vectors if isinstance(q, Tensor)],
        system.spectrum.values,
        system.rows.cells,
        rank,
        system.noise,
        form=form,
    )
    system.last_preconditioner = (rank, form), found
    return found


def refuse_eigenpairs(rank: int, variance: bool = False) -> None:
    """Raise ConfigError for options that need eigenpairs, on a grid with FFT products."""
    if not rank and not variance:
        return
    option = "variance=rank_reduced" if variance else f"precondition_rank={rank}"
    raise ConfigError(
        f"{option} takes eigenpairs of the grid, and an axis that goes by FFT has none to select; "
        "leave precondition_rank=None and variance=auto, or set fft_points=None"
    )


def fill_preconditioner(
    system: GridSystem, rank: int | None, memory_budget: int | str | None = None
) -> Callable[[Tensor], Tensor] | None:
    """The ``rank`` smallest eigenpairs with a spectral shift, for F = C[Z, Z]; rarely useful.

    Args:
        memory_budget: as for ``ignore_preconditioner``.

    Returns:
        Without a rank ``LongGaps`` for grids with circles, else None.

    Raises:
        ConfigError: a rank is given for a grid with circles.
    """
    if not rank:
        return LongGaps(system) if system.circular else None
    if system.circular:
        refuse_eigenpairs(rank)
    return missing_grid_preconditioner(
        [q for q in system.spectrum.vectors if isinstance(q, Tensor)],
        system.spectrum.values,
        system.rows.gaps,
        rank,
        system.noise,
        form=_form(system, system.num_gaps * rank, memory_budget),
    )


def _form(
    system: GridSystem, entries: int, memory_budget: int | str | None
) -> Literal["dense", "kronecker"]:
    """Whether to store a factor of so many entries, or apply it as a Kronecker product."""
    most = MAX_DENSE_FACTOR_BYTES
    if memory_budget is not None:
        most = min(most, budget_in_bytes(memory_budget))
    return "dense" if entries * system.spectrum.shifted.element_size() <= most else "kronecker"


class LongGaps:
    """An approximate inverse of F = C[Z, Z]: K + sigma^2 I on long gaps, elsewhere sigma^2 I.

    F^{-1} is the covariance of the gaps' targets given the data: close to the prior inside long
    gaps, such as the cells that close an axis to a circle, and to the noise variance at scattered
    gaps. It reduces hundreds of solver steps to tens.

    Args:
        system: with at least one circle; gaps are measured along circles.

    Cost: one Kronecker product per application; memory O(L).
    """

    def __init__(self, system: GridSystem) -> None:
        self.noise = system.noise
        long = torch.zeros(system.size, dtype=torch.bool, device=system.spectrum.shifted.device)
        observed = torch.zeros_like(long)
        observed[system.rows.cells] = True
        shape = system.rows.grid.shape
        for axis in range(len(shape)):
            if system.rows.grid.circular(axis):
                outside = shape[axis] - system.rows.grid.inner_shape[axis]
                long |= _runs(~observed, shape, axis, min(LONG_GAP_CELLS, outside))
        self.inside = long[system.rows.gaps].nonzero().squeeze(1)
        cells = system.rows.gaps[self.inside]
        self.covariance = Selection(system.kronecker, rows=cells, columns=cells).unchecked_product()

    def __call__(self, vectors: Tensor) -> Tensor:
        """The approximate inverse times vectors (L,) or (L, c)."""
        out = vectors * self.noise
        out[self.inside] += self.covariance(vectors[self.inside])
        return out


def _runs(flags: Tensor, shape: tuple[int, ...], axis: int, least: int) -> Tensor:
    """Flags (M,) that are part of at least ``least`` consecutive ones along a circular axis."""
    m = shape[axis]
    rows = flags.view(math.prod(shape[:axis]), m, -1)
    starts = _windows(rows, least) == least  # a run begins here, going forwards
    found = _windows(starts.flip(1), least).flip(1) > 0
    return found.reshape(-1)


def _windows(flags: Tensor, width: int) -> Tensor:
    """Number of true flags (b, m, r) among the next ``width`` along the circular middle axis."""
    total = torch.cat([flags, flags[:, : width - 1]], 1).to(torch.int32).cumsum(1)
    before = torch.cat([torch.zeros_like(total[:, :1]), total[:, : flags.shape[1] - 1]], 1)
    return total[:, width - 1 :] - before
