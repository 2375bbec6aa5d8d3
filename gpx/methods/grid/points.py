"""Covariances between any points and a whole grid, as products over the axes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.linalg import flatten_index, kronecker_matmul
from gpx.methods.grid.axes import CartesianGrid
from gpx.methods.grid.circle import MAX_STEP_DEVIATION
from gpx.methods.grid.factors import AxisKernels
from gpx.operators import Circulant, KhatriRao
from gpx.operators.circulant import FourierVectors

NEGLIGIBLE_CORRELATION = 1e-8
"""Correlation with the nearest point of an axis below which a point does not reach it."""

ZERO_CORRELATION = 1e-20
"""Correlation below which covariances are set to zero without evaluation."""

BLOCK_NUMBERS = 2**21
"""Most entries of a block of rows that is evaluated or contracted."""


class GridPoints:
    """Covariances g(x) = k(grid, x) of points with a grid, Kronecker products of small vectors.

    Points that share coordinates (another grid, held-out cells) are contracted together, as a
    rectangular Kronecker product over their distinct coordinates, if that is less work.

    Args:
        grid, kernels: of the model.
        x (t, d): inputs, on the grid, between its points or beyond it.

    Attributes:
        cross (q_l, m_l): per axis, covariances of the distinct coordinates with the axis; for
            circles rows are computed on demand.
        place (t,): per axis, index of the coordinate of each point.
        prior (t,): k(x, x).
        within (t,): whether a point is within half the circle of all points of every axis that is a
            circle. If not, its covariances with all cells of the circle are not positive
            semi-definite.
        reached (t,): whether the covariances with the data along such axes are not negligible.

    Source: Evans thesis, section 3.4.
    """

    def __init__(self, grid: CartesianGrid, kernels: AxisKernels, x: Tensor) -> None:
        distinct, self.place = [], []
        for columns in grid.groups:
            found, inverse = torch.unique(x[:, list(columns)], dim=0, return_inverse=True)
            distinct.append(found)
            self.place.append(inverse)
        with torch.no_grad():
            self.cross = cross_factors(grid, kernels, distinct)
            parts = kernels.diagonals(grid, distinct)
            self.prior = math.prod(
                (d[i] for d, i in zip(parts, self.place, strict=True)), start=x.new_ones(())
            )
        assert isinstance(self.prior, Tensor)
        self.within = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
        self.reached = self.within.clone()
        for g, i in zip(self.cross, self.place, strict=True):
            if isinstance(g, CircleRows):
                self.within &= g.within[i]
                self.reached &= g.reached[i]
        self._grid_size = grid.size

    def squared(self, vectors: Sequence[Tensor | FourierVectors]) -> GridPoints:
        """The same points with elementwise squares of cross_l Q_l in place of cross_l.

        For contractions with functions of the eigenvalues.
        """
        found: list[CrossFactor] = []
        for g, q in zip(self.cross, vectors, strict=True):
            if isinstance(g, CircleRows):
                found.append(SquaredCircleRows(g))
            else:
                assert isinstance(g, Tensor)
                assert isinstance(q, Tensor)
                found.append((g @ q).square())
        other = copy.copy(self)
        other.cross = found
        return other

    def covariance(self, rows: slice) -> KhatriRao:
        """k(x, grid) of some points, (rows, M), as an operator."""
        return KhatriRao(*[g[i[rows]] for g, i in zip(self.cross, self.place, strict=True)])

    def observed(self, rows: slice, cells: Tensor) -> Tensor:
        """k(x, cells) of some points, (rows, N).

        Cost: d rows (N + m_l) operations and memory.
        """
        return self.covariance(rows)[:, cells].to_dense()

    def contract(self, vectors: Tensor) -> Tensor:
        """g(x)^T vectors, (t,) or (t, c), for vectors over the grid, (M,) or (M, c).

        Cost per vector: a product over the distinct coordinates, or t M. Memory: a few times that
        of ``vectors``.
        """
        count = self.place[0].shape[0]
        if not count:
            return vectors.new_zeros(0, *vectors.shape[1:])
        sizes = [g.shape[0] for g in self.cross]
        if math.prod(sizes) <= 4 * (self._grid_size + count):
            columns = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
            found = kronecker_matmul(self.cross, columns)[flatten_index(self.place, sizes)]
            return found.squeeze(1) if vectors.ndim == 1 else found
        longest = max(g.shape[1] for g in self.cross)
        blocks = row_slices(count, max(1, BLOCK_NUMBERS // longest))
        return torch.cat([self.covariance(rows) @ vectors for rows in blocks])


class CircleRows:
    """k(points, axis) (q, a) for an axis that is a circle, as an operator.

    Points of the axis have rows of the circulant covariance, others are evaluated. For a point
    within half the circle of all points of the original axis, covariances are those of the shorter
    distance on the circle; for points further away, those of the distance on the line.

    Args:
        axis (a,): points of the circle, ascending.
        points (q,): any points.
        kernels, grid, number: the kernel over the axes, the grid, and the index of this axis.
        scale: factor of the covariances; None: one.

    Attributes:
        circulant: k(axis, axis).
        within (q,): whether all points of the original axis are within half the circle.
        reached (q,): whether the covariance with the nearest of them is not negligible.
        place (q,), on (q,): the nearest point of the circle, and whether it equals the point (False
            if not ``within``).

    Cost: a product with (a, c) takes two FFTs per column for all points of the axis, and 2 a c
    operations for every other point. Memory O(a c).
    """

    def __init__(
        self,
        axis: Tensor,
        points: Tensor,
        kernels: AxisKernels,
        grid: CartesianGrid,
        number: int,
        scale: Tensor | None,
    ) -> None:
        self.shape = torch.Size((points.shape[0], axis.shape[0]))
        self.axis, self.points = axis, points
        self._kernels, self._grid, self._number, self._scale = kernels, grid, number, scale
        column = kernels.circulant(grid, number)
        self.circulant = Circulant(column if scale is None else scale * column)
        nearest = torch.searchsorted(axis, points).clamp_(max=axis.shape[0] - 1)
        before = (nearest - 1).clamp_(min=0)
        closer = (points - axis[before]).abs() < (points - axis[nearest]).abs()
        self.place = torch.where(closer, before, nearest)
        size, inner = axis.shape[0], grid.inner[number]
        step = float(axis[-1].double() - axis[0].double()) / (size - 1)
        first = (size - inner) // 2
        self._around = size * step
        reach = (0.5 * size + MAX_STEP_DEVIATION) * step
        self.within = (points - axis[first] <= reach) & (axis[first + inner - 1] - points <= reach)
        nearest_end = torch.maximum(axis[first] - points, points - axis[first + inner - 1])
        alive = (column[: size // 2 + 1].abs() > ZERO_CORRELATION * column[0]).nonzero().max()
        width = min(2 * int(alive) + 5, size)  # one more on both sides, for points between cells
        self._near = torch.arange(width, device=axis.device) - width // 2
        lags = torch.cat([points.new_zeros(1), nearest_end.clamp_(min=0.0)])
        near = kernels.covariance_at_lags(grid, number, lags)
        self.reached = ~(near[1:].abs() <= NEGLIGIBLE_CORRELATION * near[0])
        self.on = self.within & ((points - axis[self.place]).abs() <= MAX_STEP_DEVIATION * step)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows (k, a) of a few points, dense."""
        size, points = self.shape[1], self.points[index].unsqueeze(1)
        cells = (self.place[index].unsqueeze(1) + self._near) % size
        lags = (points - self.axis[cells]).abs_()
        shorter = torch.minimum(lags, (self._around - lags).abs())
        lags = torch.where(self.within[index].unsqueeze(1), shorter, lags)
        near = self._kernels.covariance_at_lags(self._grid, self._number, lags.reshape(-1)).view(
            lags.shape
        )
        found = near.new_zeros(len(points), size).scatter_(1, cells, near)
        return found if self._scale is None else self._scale * found

    def matmul(self, right: Tensor) -> Tensor:
        """The product with (a, c): (q, c)."""
        return self._by_parts(
            right,
            lambda: self.circulant.matmul(right)[self.place[self.on]],
            lambda rows: rows @ right,
        )

    def _by_parts(
        self, right: Tensor, on_axis: Callable[[], Tensor], elsewhere: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """A product from ``on_axis`` for points of the axis and ``elsewhere`` for others."""
        found = right.new_empty(self.shape[0], right.shape[1])
        if bool(self.on.any()):
            found[self.on] = on_axis()
        away = (~self.on).nonzero().squeeze(1)
        for part in away.split(max(1, BLOCK_NUMBERS // self.shape[1])) if len(away) else ():
            found[part] = elsewhere(self[part])
        return found


class SquaredCircleRows:
    """The elementwise square of k(points, axis) Q, for products with functions of eigenvalues.

    The cosine and the sine of a frequency have the same eigenvalue and thus the same weight, and
    their squares add to a constant: at points of the axis all rows are squared eigenvalues over a.
    """

    def __init__(self, rows: CircleRows) -> None:
        self._source, self.shape = rows, rows.shape
        self._values, self._vectors = rows.circulant.eigh()

    def matmul(self, right: Tensor) -> Tensor:
        """The product with (a, c): (q, c)."""
        on_axis = self._values.square() @ right / self.shape[1]

        def elsewhere(rows: Tensor) -> Tensor:
            return self._of_rows(rows) @ right

        return self._source._by_parts(right, lambda: on_axis, elsewhere)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows (k, a) of a few points, dense."""
        return self._of_rows(self._source[index])

    def _of_rows(self, rows: Tensor) -> Tensor:
        half = torch.fft.rfft(rows, norm="ortho")
        return self._vectors.per_eigenvector(half.real.square() + half.imag.square())


CrossFactor: TypeAlias = Tensor | CircleRows | SquaredCircleRows
"""Covariances of points with one axis."""


def cross_factors(
    grid: CartesianGrid, kernels: AxisKernels, points: Sequence[Tensor]
) -> list[CrossFactor]:
    """Per axis k_l(points_l, axis_l) (q_l, m_l), dense or lazy; the first includes the scale."""
    found: list[CrossFactor] = []
    for number, place in enumerate(points):
        axis = grid.axes[number]
        scale = None if number else kernels.scale(axis)
        if grid.circular(number):
            cross = CircleRows(axis.squeeze(1), place.squeeze(1), kernels, grid, number, scale)
            found.append(cross)
        else:
            matrix = _rows_by_blocks(grid, kernels, number, place)
            found.append(matrix if scale is None else scale * matrix)
    return found


def _rows_by_blocks(
    grid: CartesianGrid, kernels: AxisKernels, number: int, points: Tensor
) -> Tensor:
    """k_l(points, axis) (q, m); in float32 by blocks, as they are evaluated in float64."""
    rows, columns = grid.embedded(number, points), grid.embedded(number)
    step = max(1, BLOCK_NUMBERS // max(columns.shape[0], 1))
    if rows.dtype == torch.float64 or rows.shape[0] <= step:
        return kernels.matrix(number, rows, columns)
    first = kernels.matrix(number, rows[:step], columns)
    found = first.new_empty(rows.shape[0], columns.shape[0])
    found[:step] = first
    for start in range(step, rows.shape[0], step):
        part = slice(start, start + step)
        found[part] = kernels.matrix(number, rows[part], columns)
    return found
