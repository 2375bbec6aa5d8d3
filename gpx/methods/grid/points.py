"""Covariances between any points and a whole grid, axis by axis; of long axes row by row."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gpx.linalg import flatten_index, kronecker_matmul
from gpx.methods.grid.axes import CartesianGrid
from gpx.methods.grid.circle import OFF_STEP
from gpx.methods.grid.factors import AxisKernels
from gpx.operators import Circulant, KhatriRao
from gpx.operators.circulant import FourierVectors

DIED_OUT = 1e-8
"""Correlation with the nearest point of an axis below which a point counts as out of its reach."""

NOTHING = 1e-20
"""Correlation below which covariances are not evaluated but set to zero."""

BLOCK_NUMBERS = 2**21
"""Most numbers in one block of rows that is evaluated or contracted."""


class GridPoints:
    """Rows of inputs seen from a grid: g(x) = k(grid, x) is a Kronecker product of small vectors.

    Points that share coordinates (another grid, held-out cells) are contracted together, as a
    rectangular Kronecker product over their distinct coordinates, where that is less work than one
    after the other.

    Args:
        grid, kernels: of the model.
        x (t, d): inputs, on the grid, between its points or beyond it.

    Attributes:
        cross (q_l, m_l): per axis, covariances of the distinct coordinates with the axis; rows on
            demand where the axis is closed to a circle.
        place (t,): per axis, which of them each point has.
        prior (t,): k(x, x).
        within (t,): whether each is within half the circle of every point of an axis that is closed
            to one; elsewhere its covariances with the cells beyond the axis fit no process there.
        reached (t,): whether its covariances with the data have not died out along such an axis.

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
        """The same points with the elementwise squares of cross_l Q_l per axis.

        To be contracted with functions of the eigenvalues only.
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
        """k(x, grid) of some points, (rows, M), never expanded."""
        return KhatriRao(*[g[i[rows]] for g, i in zip(self.cross, self.place, strict=True)])

    def observed(self, rows: slice, cells: Tensor) -> Tensor:
        """k(x, cells) of some points, (rows, N), without the rest of the grid.

        Cost: d rows (N + m_l) operations and numbers.
        """
        return self.covariance(rows)[:, cells].to_dense()

    def contract(self, vectors: Tensor) -> Tensor:
        """g(x)^T vectors, (t,) or (t, c), for vectors over the grid, (M,) or (M, c).

        Cost per vector: as a product over the distinct coordinates, or t M. Memory of several
        vectors: a few times theirs.
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
        step = max(1, BLOCK_NUMBERS // longest)
        blocks = [slice(i, i + step) for i in range(0, count, step)]
        return torch.cat([self.covariance(rows) @ vectors for rows in blocks])


class CircleRows:
    """k(points, axis) (q, a) for an axis closed to a circle, never formed as a whole.

    Points of the axis take their rows from the circulant covariance, others are evaluated. As long
    as no observed point lies further than halfway round the circle, covariances with its cells go
    the shorter way round, as one process on the circle has them; beyond, they are those of the
    line, which the data see.

    Args:
        axis (a,): points of the circle, ascending.
        points (q,): anywhere.
        kernels, grid, number: the kernel over the axes, the grid, and which of its axes this is.
        scale: of the covariances; None: one.

    Attributes:
        circulant: k(axis, axis).
        within (q,): whether no point of the axis itself is further than halfway round the circle.
        reached (q,): whether the covariance with the nearest of these has not died out.
        place (q,), on (q,): the nearest point of the circle, and whether that is the point itself;
            false where it is not ``within``.

    Cost: a product with (a, c): two FFTs per column for all points of the axis, and 2 a c
    operations for every other point; only covariances that have not died out are evaluated. Memory
    O(a c).
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
        reach = (0.5 * size + OFF_STEP) * step
        self.within = (points - axis[first] <= reach) & (axis[first + inner - 1] - points <= reach)
        nearest_end = torch.maximum(axis[first] - points, points - axis[first + inner - 1])
        alive = (column[: size // 2 + 1].abs() > NOTHING * column[0]).nonzero().max()
        width = min(2 * int(alive) + 5, size)  # a step on both sides for points between
        self._near = torch.arange(width, device=axis.device) - width // 2
        lags = torch.cat([points.new_zeros(1), nearest_end.clamp_(min=0.0)])
        near = kernels.at_lags(grid, number, lags)
        self.reached = ~(near[1:].abs() <= DIED_OUT * near[0])
        self.on = self.within & ((points - axis[self.place]).abs() <= OFF_STEP * step)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows (k, a) of some points; only for few of them at once."""
        size, points = self.shape[1], self.points[index].unsqueeze(1)
        cells = (self.place[index].unsqueeze(1) + self._near) % size
        lags = (points - self.axis[cells]).abs_()
        shorter = torch.minimum(lags, (self._around - lags).abs())
        lags = torch.where(self.within[index].unsqueeze(1), shorter, lags)
        near = self._kernels.at_lags(self._grid, self._number, lags.reshape(-1)).view(lags.shape)
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
        """Rows of a product at points of the axis, and from rows of k elsewhere."""
        found = right.new_empty(self.shape[0], right.shape[1])
        if bool(self.on.any()):
            found[self.on] = on_axis()
        away = (~self.on).nonzero().squeeze(1)
        for part in away.split(max(1, BLOCK_NUMBERS // self.shape[1])) if len(away) else ():
            found[part] = elsewhere(self[part])
        return found


class SquaredCircleRows:
    """The elementwise square of k(points, axis) Q, where both of a frequency weigh the same.

    At points of the axis a cosine's and a sine's square sum to the same everywhere: all rows are
    the squared eigenvalues over a.
    """

    def __init__(self, rows: CircleRows) -> None:
        self._source, self.shape = rows, rows.shape
        self._values, self._vectors = rows.circulant.eigh()

    def matmul(self, right: Tensor) -> Tensor:
        """The product with (a, c): (q, c)."""
        everywhere = self._values.square() @ right / self.shape[1]

        def elsewhere(rows: Tensor) -> Tensor:
            return self._of_rows(rows) @ right

        return self._source._by_parts(right, lambda: everywhere, elsewhere)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows (k, a) of some points; only for few of them at once."""
        return self._of_rows(self._source[index])

    def _of_rows(self, rows: Tensor) -> Tensor:
        half = torch.fft.rfft(rows, norm="ortho")
        return self._vectors.per_eigenvector(half.real.square() + half.imag.square())


CrossFactor: TypeAlias = Tensor | CircleRows | SquaredCircleRows
"""Covariances of points with one axis."""


def cross_factors(
    grid: CartesianGrid, kernels: AxisKernels, points: Sequence[Tensor]
) -> list[CrossFactor]:
    """Per axis k_l(points_l, axis_l) (q_l, m_l), dense or on demand; the scale is in the first."""
    found: list[CrossFactor] = []
    for number, place in enumerate(points):
        axis = grid.axes[number]
        scale = None if number else kernels.scale(axis)
        if grid.circular(number):
            cross = CircleRows(axis.squeeze(1), place.squeeze(1), kernels, grid, number, scale)
            found.append(cross)
        else:
            rows, columns = grid.embedded(number, place), grid.embedded(number)
            matrix = kernels.matrix(number, rows, columns)
            found.append(matrix if scale is None else scale * matrix)
    return found
