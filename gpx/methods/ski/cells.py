"""Replaces the data rows in a grid cell by at most as many rows as the cell has grid points.

All rows in a cell have weights w on the same q grid points. A Gaussian likelihood depends on them
only through sum w w^T (q, q), sum w r (q,) and sum r^2, so that at most q rows with the same sums
can replace them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.errors import ConfigError
from gpx.operators import Interpolation

CHUNK_ENTRIES = 1 << 24
"""Entries of outer products of weights in memory at a time."""


class CellSums(NamedTuple):
    """Sums over data rows by cell; sums of disjoint rows on the same grid can be added.

    Attributes:
        cells (k,): cells with data, by their first grid point, ascending.
        indices (k, q): grid points of each cell.
        gram (k, q, q): sum w w^T.
        projected (k, q), squared (): sum w r and sum r^2.
        num_data: n.
        num_columns: m.
    """

    cells: Tensor
    indices: Tensor
    gram: Tensor
    projected: Tensor
    squared: Tensor
    num_data: int
    num_columns: int

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        weights: Interpolation,
        residual: Tensor,
        located: tuple[Tensor, Tensor] | None = None,
    ) -> CellSums:
        """Sums over the rows of W (n, m) with residuals r (n,).

        Args:
            located: cells with data (k,) and the index of every row's cell (n,), if known.

        Cost: O(n q^2).
        """
        values, indices = weights.values, weights.indices
        if located is None:
            located = torch.unique(indices[:, 0], return_inverse=True)
        cells, place = located
        q = indices.shape[1]
        found = indices.new_empty(len(cells), q)
        found[place] = indices
        gram = values.new_zeros(len(cells), q, q)
        for rows in row_slices(len(values), max(1, CHUNK_ENTRIES // q**2)):
            w = values[rows]
            gram.index_add_(0, place[rows], w.unsqueeze(2) * w.unsqueeze(1))
        projected, squared = sums_of_residuals(values, place, len(cells), residual)
        return cls(cells, found, gram, projected, squared, len(values), weights.num_columns)

    def __add__(self, other: object) -> CellSums:
        """Sums over the rows of both, which must be on the same grid (not checked in full).

        Raises:
            ConfigError: the grids have different numbers of points.
        """
        if not isinstance(other, CellSums):
            return NotImplemented
        if (other.num_columns, other.indices.shape[1]) != (self.num_columns, self.indices.shape[1]):
            raise ConfigError(
                f"sums on grids of {self.num_columns} and {other.num_columns} points cannot be "
                "added: build the grid once, over all inputs that are to come"
            )
        cells, place = torch.unique(torch.cat([self.cells, other.cells]), return_inverse=True)

        def joined(mine: Tensor, others: Tensor) -> Tensor:
            total = mine.new_zeros(len(cells), *mine.shape[1:])
            return total.index_add_(0, place, torch.cat([mine, others]))

        indices = self.indices.new_empty(len(cells), self.indices.shape[1])
        indices[place] = torch.cat([self.indices, other.indices])
        return CellSums(
            cells,
            indices,
            joined(self.gram, other.gram),
            joined(self.projected, other.projected),
            self.squared + other.squared,
            self.num_data + other.num_data,
            self.num_columns,
        )

    @torch.no_grad()
    def rows(self) -> CellRows:
        """Rows with the same sums, at most q per cell; exact up to rounding."""
        values, vectors = torch.linalg.eigh(self.gram)
        q = values.shape[1]
        kept = values > q * torch.finfo(values.dtype).eps * values[:, -1:]
        scale = torch.where(kept, values.clamp_min(0.0).rsqrt(), 0.0)
        weights = (vectors * torch.where(kept, values, 0.0).sqrt().unsqueeze(1)).mT
        indices = self.indices.unsqueeze(1).expand(-1, q, -1)
        interpolation = Interpolation(weights[kept], indices[kept], num_columns=self.num_columns)
        return CellRows(interpolation, self.gram.sum(0), self.num_data, vectors, scale)


class CellRows(NamedTuple):
    """n' rows that replace n data rows under Gaussian noise.

    Attributes:
        weights (n', m): W' with W'^T W' = W^T W.
        total (q, q): sum of w w^T over all rows, by place in the stencil.
        num_data: n.
        vectors (k, q, q), scale (k, q): eigenvectors of each cell's sum w w^T and inverse roots of
            its eigenvalues (0 for directions that no row has).
    """

    weights: Interpolation
    total: Tensor
    num_data: int
    vectors: Tensor
    scale: Tensor

    def residuals(self, projected: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
        """r' (n',) with W'^T r' = W^T r, and r^T r - r'^T r', from sums of w r and r^2.

        Differentiable in the sums. The second is the part of r outside the range of W.
        """
        rotated = torch.einsum("kpq,kp->kq", self.vectors, projected) * self.scale
        found = rotated[self.scale > 0.0]
        return found, (squared - found.square().sum()).clamp_min(0.0)


def sums_of_residuals(
    values: Tensor, place: Tensor, num_cells: int, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums of w r per cell (k, q), and of r^2 (); differentiable in r (n,).

    Args:
        values (n, q): weights.
        place (n,): index of every row's cell.
        num_cells: k.
        residual (n,): r.
    """
    total = values.new_zeros(num_cells, values.shape[1])
    total = total.index_add(0, place, values * residual.unsqueeze(1))
    return total, residual.square().sum()
