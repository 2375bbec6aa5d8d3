"""Dense covariances of a grid's observed cells, or of what its gaps miss, where they are small."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from gpx.linalg import split_index
from gpx.methods.grid.axes import GriddedRows
from gpx.methods.grid.system import GridSystem

DENSE_POINTS = 1500
"""Observed cells up to which "auto" factorises their covariance."""

DENSE_WORK = 10**7
"""Gaps times cells up to which "auto" factorises over the gaps."""

BLOCK_NUMBERS = 2**24
"""Numbers in one block of columns over the grid."""


def dense_is_cheap(num_observed: int, num_gaps: int) -> bool:
    """Whether a Cholesky factor over the observed cells or over the gaps costs next to nothing."""
    return num_observed <= DENSE_POINTS or num_gaps * (num_gaps + num_observed) <= DENSE_WORK


def over_observed(num_observed: int, num_gaps: int) -> bool:
    """Whether a dense route factorises K_XX itself rather than F."""
    return num_observed <= max(num_gaps, 1) or num_observed <= DENSE_POINTS


def observed_covariance(factors: Sequence[Tensor], rows: GriddedRows) -> Tensor:
    """K_XX (N, N) between observed cells, differentiable in the factors.

    Args:
        factors (m_l, m_l), or (m_l,): the first column of a circulant one.

    Cost: d N^2 operations, as many numbers for a gradient.
    """
    return reduce(torch.mul, map(_between, factors, split_index(rows.cells, rows.grid.shape)))


def _between(factor: Tensor, index: Tensor) -> Tensor:
    """The entries of a factor, or of the circulant with that first column, between points."""
    if factor.ndim == 2:
        return factor[index][:, index]
    return factor[(index.unsqueeze(1) - index).remainder_(factor.shape[0])]


def missing_matrix(system: GridSystem) -> Tensor:
    """F = C[Z, Z] (L, L), by columns. Cost: 2 L Kronecker products, L^2 numbers."""
    count = system.num_gaps
    eye = torch.eye(count, dtype=system.shifted.dtype, device=system.shifted.device)
    columns = [system.missing(eye[:, block]) for block in blocks(count, system.size)]
    whole = torch.cat(columns, 1)
    return 0.5 * (whole + whole.mT)


def blocks(count: int, size: int) -> list[slice]:
    """``count`` columns over ``size`` cells in blocks of ``BLOCK_NUMBERS`` numbers at most."""
    step = max(1, BLOCK_NUMBERS // size)
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]
