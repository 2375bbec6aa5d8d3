"""Data rows as a grid sees them: few rows in place of many, and sums of their weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpx.methods.ski.band import BandRows
from gpx.methods.ski.cells import CellRows, CellSums, sums_of_residuals
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.pairs import weight_moments
from gpx.operators import Interpolation


@dataclass
class Gathered:
    """The data as the grid sees them.

    Attributes:
        weights (n', m), total (q, q): rows in place of the data's, and the sum of w w^T.
        shape: points of each axis.
        by_cell: what made them of the data's rows; None where they are the data's own.
        inputs (n, d): of the data's rows, without a graph.
        place (n,), values (n, q): every data row's cell and weights.
        num_cells: k.
    """

    weights: Interpolation
    total: Tensor
    shape: tuple[int, ...]
    by_cell: CellRows | BandRows | None
    inputs: Tensor
    place: Tensor
    values: Tensor
    num_cells: int
    _moments: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(cls, x: Tensor, grid: InterpolationGrid) -> Gathered:
        """Of inputs x (n, d): by cell where that leaves fewer rows; x itself where it has a graph.

        Cost: O(n q^2), q = 4^d.
        """
        weights = grid.weights(x)
        values, first = weights.values, weights.indices[:, 0].contiguous()
        q = values.shape[1]
        cells = not values.requires_grad and grid.has_cells
        if not cells or len(torch.unique(first)) * q >= len(values):
            return cls.of_weights(weights, grid.shape, x)
        sums = CellSums.of(weights, values.new_zeros(len(values)))
        rows = BandRows.of(sums) or sums.rows()
        place = torch.searchsorted(sums.cells, first)
        return cls(
            rows.weights, rows.total, grid.shape, rows, x.detach(), place, values, len(sums.cells)
        )

    @classmethod
    def of_weights(
        cls, weights: Interpolation, shape: tuple[int, ...], x: Tensor | None = None
    ) -> Gathered:
        """Rows as they are, of inputs x (n, d) where those are at hand."""
        values, none = weights.values, weights.indices[:0, 0]
        with torch.no_grad():
            total = values.mT @ values
        inputs = values[:0] if x is None else x.detach()
        return cls(weights, total, shape, None, inputs, none, values[:0], 0)

    @classmethod
    def of_sums(cls, sums: CellSums, shape: tuple[int, ...]) -> Gathered:
        """Of sums over rows that are no longer at hand; ``residuals`` has none of them."""
        rows, none = BandRows.of(sums) or sums.rows(), sums.projected.new_zeros(0)
        return cls(
            rows.weights, rows.total, shape, rows, none, sums.cells[:0], none, len(sums.cells)
        )

    @property
    def moments(self) -> Tensor:
        """``weight_moments`` of the rows, made when first asked for."""
        if self._moments is None:
            self._moments = weight_moments(self.weights, self.shape)
        return self._moments

    def residuals(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """r' (n',) and what no function on the grid explains of r^T r; differentiable in r (n,)."""
        if self.by_cell is None:
            return residual, residual.new_zeros(())
        sums = sums_of_residuals(self.values, self.place, self.num_cells, residual)
        return self.by_cell.residuals(*sums)
