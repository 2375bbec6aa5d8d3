"""Interpolation weights of the data rows, or of fewer rows that replace them, with their sums."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gpx.linalg import Prepared, split_index
from gpx.methods.ski.band import BandRows
from gpx.methods.ski.cells import CellRows, CellSums, sums_of_residuals
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.pairs import weight_moments
from gpx.operators import Interpolation


@dataclass
class Gathered:
    """Interpolation weights of the data, or of fewer rows that replace them.

    Attributes:
        weights (n', m), total (q, q): rows in place of the data's, and the sum of w w^T.
        shape: points of each axis.
        inputs (n', d): of rows that are the data's own, without a graph; else empty.
        order (n',): which of the data's rows each row is; None: as they came, or gathered.
        by_cell: what made the rows of the data's; None where they are the data's own.
        place (n,), values (n, q): every data row's cell and weights, where gathered, and num_cells:
            k.
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
    _of_targets: Prepared = field(default_factory=Prepared, repr=False)

    @classmethod
    def of(cls, x: Tensor, grid: InterpolationGrid) -> Gathered:
        """Of inputs x (n, d): by cell where that leaves fewer rows; x itself where it has a graph.

        Rows that stay are put in the order of their cells: products with neighbours in memory take
        half to a third of the time.

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
        """Rows as they are, of inputs x (n, d) where those are at hand."""
        values = weights.values.detach()
        inputs = values[:0] if x is None else x.detach()
        return cls(weights, values.mT @ values, shape, inputs, order)

    @classmethod
    def of_sums(cls, sums: CellSums, shape: tuple[int, ...]) -> Gathered:
        """Of sums over rows that are no longer at hand; ``residuals`` has none of them."""
        rows, none = BandRows.of(sums) or sums.rows(), sums.projected.new_zeros(0)
        count = len(sums.cells)
        return cls(rows.weights, rows.total, shape, none, by_cell=rows, num_cells=count)

    @property
    def moments(self) -> Tensor:
        """``weight_moments`` of the rows, made when first asked for."""
        if self._moments is None:
            self._moments = weight_moments(self.weights, self.shape)
        return self._moments

    def grams_by_lag(self, blocks: int) -> list[Tensor]:
        """Sums of (W^T W)_uv over all pairs of grid points of each lag, shaped like the lags.

        Args:
            blocks: one, or one per axis: of the weights of every axis alone, where they lie side
                by side.
        """
        if blocks == 1:
            return [_gram_by_lag(self.total, self.shape)]
        width = len(self.total) // blocks
        starts = range(0, len(self.total), width)
        own = [self.total[i : i + width, i : i + width] for i in starts]
        return [_gram_by_lag(total, (m,)) for total, m in zip(own, self.shape, strict=True)]

    def residuals_from(self, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """``residuals`` of y - mean (n,), in float64; differentiable in the mean.

        Cost: n q, and n' where the mean is one number, expanded, and ``y`` was seen before: sums
        are linear, and those of y and of a constant are kept.
        """
        if self.by_cell is None or mean.stride() != (0,) or y.requires_grad:
            return self.residuals((y - mean).double())

        def sums() -> tuple[Tensor, ...]:
            centre = y.double().mean()  # so that squares do not cancel
            own = y.double() - centre
            ones = torch.ones_like(own)
            (seen, _), (flat, _) = self.residuals(own), self.residuals(ones)
            rest = own @ own - seen @ seen, own.sum() - seen @ flat, ones.sum() - flat @ flat
            return centre, seen, flat, torch.stack(rest)

        centre, seen, flat, rest = self._of_targets.get("sums", (y,), sums)
        level = mean[0].double() - centre
        left = rest[0] - level * (2.0 * rest[1] - level * rest[2])
        return seen - level * flat, left.clamp_min(0.0)

    def residuals(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """r' (n',) and what no function on the grid explains of r^T r; differentiable in r (n,)."""
        if self.by_cell is None:
            own = residual if self.order is None else residual[self.order]
            return own, residual.new_zeros(())
        assert self.values is not None
        assert self.place is not None
        sums = sums_of_residuals(self.values, self.place, self.num_cells, residual)
        return self.by_cell.residuals(*sums)


def _gram_by_lag(total: Tensor, shape: tuple[int, ...]) -> Tensor:
    """From the sum of w w^T by places in the stencil (q, q)."""
    width = round(len(total) ** (1.0 / len(shape)))
    every = torch.arange(len(total), device=total.device)
    places = torch.stack(split_index(every, (width,) * len(shape)), -1)
    apart = (places.unsqueeze(1) - places).abs()
    return total.new_zeros(shape).index_put_(tuple(apart.unbind(-1)), total, accumulate=True)
