"""Interpolation weights of the data rows, or of fewer rows that replace them, with their sums."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.linalg import Prepared, split_index
from gpx.methods.ski.band import BandRows
from gpx.methods.ski.cells import CellRows, CellSums, sums_of_residuals
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.pairs import weight_moments
from gpx.methods.ski.waves import transformed_diagonals, wave_products
from gpx.operators import Interpolation

LEAST_WAVES = 16
"""Waves of the smallest table of their products."""
MOST_MISSING = 4
"""A table is used if it has at most so many times the wanted waves."""
MOMENT_ENTRIES = 1 << 22
"""Entries of a working array over some of the rows."""
BLOCK = 256
"""Rows and columns of a block of a matrix whose transpose is added."""


@dataclass
class Gathered:
    """Interpolation weights of the data, or of fewer rows that replace them.

    Attributes:
        weights (n', m), total (q, q): the rows, and the sum of w w^T.
        shape: points of each axis.
        inputs (n', d): inputs of data rows that are not replaced, without a graph; otherwise empty.
        order (n',): indices of these data rows; None: in the given order, or replaced.
        by_cell: the replacing rows; None if data rows are not replaced.
        place (n,), values (n, q), num_cells: cell index and weights of every data row, and number
            of cells, if data rows are replaced.
    """

    weights: Interpolation
    total: Tensor
    shape: tuple[int, ...]
    inputs: Tensor
    order: Tensor | None = None
    by_cell: CellRows | BandRows | None = None
    place: Tensor | None = None
    values: Tensor | None = None
    num_cells: int = 0
    _moments: Tensor | None = field(default=None, repr=False)
    _second_moment: Tensor | None = field(default=None, repr=False)
    _target_sums: Prepared = field(default_factory=Prepared, repr=False)
    _transformed: Prepared = field(default_factory=Prepared, repr=False)
    _products: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, x: Tensor, grid: InterpolationGrid) -> Gathered:
        """Rows for inputs x (n, d), replaced by cell if that gives fewer rows and x has no graph.

        Rows that are not replaced are sorted by cell, which makes products two to three times
        faster.

        Cost: O(n q^2 + n log n), q = 4^d.
        """
        if not grid.has_cells:
            return cls.of_weights(grid.weights(x), grid.shape, x)
        if not x.requires_grad:
            weights = grid.weights(x)
            located = torch.unique(weights.indices[:, 0], return_inverse=True)
            if len(located[0]) * weights.values.shape[1] < len(x):
                sums = CellSums.of(weights, weights.values.new_zeros(len(x)), located)
                made = cls.of_sums(sums, grid.shape)
                return replace(made, place=located[1], values=weights.values)
        order = grid.first_points(x).argsort(stable=True)
        return cls.of_weights(grid.weights(x[order]), grid.shape, x[order], order)

    @classmethod
    def of_weights(
        cls,
        weights: Interpolation,
        shape: tuple[int, ...],
        x: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Gathered:
        """Rows that are not replaced, with their inputs x (n, d) if available."""
        values = weights.values.detach()
        inputs = values[:0] if x is None else x.detach()
        return cls(weights, values.mT @ values, shape, inputs, order)

    @classmethod
    def of_sums(cls, sums: CellSums, shape: tuple[int, ...]) -> Gathered:
        """Rows from sums over data rows that are not stored; ``residuals`` cannot be used."""
        rows, none = BandRows.of(sums) or sums.rows(), sums.projected.new_zeros(0)
        count = len(sums.cells)
        return cls(rows.weights, rows.total, shape, none, by_cell=rows, num_cells=count)

    @property
    def moments(self) -> Tensor:
        """``weight_moments`` of the rows; cached."""
        if self._moments is None:
            self._moments = weight_moments(self.weights, self.shape)
        return self._moments

    def second_moment_times(self, columns: Tensor, most_bytes: int) -> Tensor:
        """W^T W times columns (m, r): (m, r), without a graph and without W times the columns.

        Args:
            most_bytes: largest W^T W that is formed as an array, and kept, as it depends on the
                data alone; instead of a larger one rows are summed in chunks.

        Cost: m^2 r multiply-adds, and once n' q^2 / 2 additions; or 2 n' q r.
        """
        values, indices = self.weights.values.detach(), self.weights.indices
        points = self.weights.num_columns
        if 8 * points**2 <= most_bytes:
            if self._second_moment is None:
                self._second_moment = _second_moment(values, indices, points)
            return self._second_moment @ columns
        found = torch.zeros_like(columns)
        for rows in row_slices(len(values), max(1, MOMENT_ENTRIES // columns.shape[1])):
            w = Interpolation(values[rows], indices[rows], num_columns=points)
            found += w.mT.matmul(w.matmul(columns))
        return found

    def products_of_waves(self, waves: Tensor, period: int) -> Tensor:
        """``wave_products`` (2 f, 2 f) of W^T W on one axis.

        They depend on the data alone. Those of the 16, 32, 64 ... lowest waves are kept, so that
        steps of an optimisation look theirs up; in tables of fixed sizes, so that a resumed run has
        the same rounding. On a GPU, where the highest wave would have to be read back, and for rows
        that change with every step, they are computed.
        """
        seen = self._transformed_moments(period)
        if self.by_cell is None or not waves.is_cpu:
            return wave_products(waves, seen)
        count = int(waves.max()) + 1
        kept = min(period // 2 + 1, max(LEAST_WAVES, 1 << (count - 1).bit_length()))
        if kept > MOST_MISSING * len(waves) + LEAST_WAVES:
            return wave_products(waves, seen)
        if (period, kept) not in self._products:
            self._products[period, kept] = wave_products(torch.arange(kept), seen)
        rows = torch.cat([waves, waves + kept])
        return self._products[period, kept][rows.unsqueeze(1), rows]

    def _transformed_moments(self, period: int) -> Tensor:
        return self._transformed.get(
            str(period),
            (self.moments,),
            lambda: transformed_diagonals(self.moments, self.shape[0], period),
        )

    def grams_by_lag(self, blocks: int) -> list[Tensor]:
        """Sums of (W^T W)_uv over all pairs of grid points of each lag, shaped like the lags.

        Args:
            blocks: 1, or the number of axes for the concatenated weights of additive grids.
        """
        if blocks == 1:
            return [_gram_by_lag(self.total, self.shape)]
        width = len(self.total) // blocks
        starts = range(0, len(self.total), width)
        own = [self.total[i : i + width, i : i + width] for i in starts]
        return [_gram_by_lag(total, (m,)) for total, m in zip(own, self.shape, strict=True)]

    def residuals_from(self, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """``residuals`` of y - mean (n,), in float64; differentiable in the mean.

        Cost: n q; only n' for a constant (expanded) mean and the same ``y`` as before, since sums
        are linear and those of y and of a constant are cached.
        """
        if self.by_cell is None or mean.stride() != (0,) or y.requires_grad:
            return self.residuals((y - mean).double())

        def sums() -> tuple[Tensor, ...]:
            centre = y.double().mean()  # avoids cancellation between squares
            own = y.double() - centre
            ones = torch.ones_like(own)
            (seen, _), (flat, _) = self.residuals(own), self.residuals(ones)
            rest = own @ own - seen @ seen, own.sum() - seen @ flat, ones.sum() - flat @ flat
            return centre, seen, flat, torch.stack(rest)

        centre, seen, flat, rest = self._target_sums.get("sums", (y,), sums)
        level = mean[0].double() - centre
        left = rest[0] - level * (2.0 * rest[1] - level * rest[2])
        return seen - level * flat, left.clamp_min(0.0)

    def residuals(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """r' (n',), and the part of r^T r outside the range of W; differentiable in r (n,)."""
        if self.by_cell is None:
            own = residual if self.order is None else residual[self.order]
            return own, residual.new_zeros(())
        assert self.values is not None
        assert self.place is not None
        sums = sums_of_residuals(self.values, self.place, self.num_cells, residual)
        return self.by_cell.residuals(*sums)


def _second_moment(values: Tensor, indices: Tensor, points: int) -> Tensor:
    """W^T W (m, m) as an array, from the entries of W (n, q) and their columns."""
    width = values.shape[1]
    found = values.new_zeros(points * points)
    for rows in row_slices(len(values), max(1, MOMENT_ENTRIES // width)):
        w, place = values[rows].mT.contiguous(), indices[rows].mT.contiguous()
        for i in range(width):  # of one axis each, whose block of W^T W is a small one
            for j in range(i, width):
                found.index_add_(0, place[i] * points + place[j], w[i] * w[j])
    # pairs of different positions were added once, in one of both orders
    found = _add_transpose(found.view(points, points))
    own = found.new_zeros(points).index_add_(0, indices.flatten(), values.square().flatten())
    found.diagonal().sub_(own)
    return found


def _add_transpose(matrix: Tensor) -> Tensor:
    """M + M^T for M (m, m), in its place; by blocks that fit into a cache."""
    blocks = [slice(first, first + BLOCK) for first in range(0, len(matrix), BLOCK)]
    for i, rows in enumerate(blocks):
        for columns in blocks[i:]:
            both = matrix[rows, columns] + matrix[columns, rows].mT
            matrix[rows, columns], matrix[columns, rows] = both, both.mT
    return matrix


def _gram_by_lag(total: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sums by lag from the sum of w w^T (q, q) by positions in the stencil."""
    width = round(len(total) ** (1.0 / len(shape)))
    every = torch.arange(len(total), device=total.device)
    places = torch.stack(split_index(every, (width,) * len(shape)), -1)
    apart = (places.unsqueeze(1) - places).abs()
    return total.new_zeros(shape).index_put_(tuple(apart.unbind(-1)), total, accumulate=True)
