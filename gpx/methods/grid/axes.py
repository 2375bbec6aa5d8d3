"""The Cartesian grid that rows of inputs lie on, found from the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gpx.errors import ConfigError, DataError
from gpx.kernels.over_axes import checked_groups
from gpx.linalg import allowed_memory, flatten_index, split_index
from gpx.methods.grid.circle import extend_to_circle

GRID_VECTORS = 25
"""Upper bound on the vectors over the whole grid held when finding it, in solves and gradients."""

AXIS_MATRICES = 11
"""Upper bound on the m_l x m_l matrices held per axis (covariance, eigenvectors, gradient)."""

AXIS_MATRICES_IN_FLOAT32 = 14
"""The same in float32, where covariances are evaluated in float64."""


@dataclass(frozen=True)
class CartesianGrid:
    """A product of axes, each a list of points in one or several input columns.

    Cells are counted row-major, the last axis fastest.

    Attributes:
        axes: per axis the points (m_l, d_l), in ascending (lexicographic) order.
        groups: per axis the input columns its points live in; together all columns once.
        inner: per axis 0 or, for an axis extended to a circle (``extend_to_circle``), its original
            number of points. Empty: there are no circles.
    """

    axes: tuple[Tensor, ...]
    groups: tuple[tuple[int, ...], ...]
    inner: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """m_1 ... m_d."""
        return tuple(a.shape[0] for a in self.axes)

    @property
    def size(self) -> int:
        """M, the number of cells."""
        return math.prod(self.shape)

    def circular(self, axis: int) -> bool:
        """Whether an axis is a circle."""
        return bool(self.inner) and self.inner[axis] > 0

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """Points per axis, without those that extend it to a circle."""
        kept = self.inner or (0,) * len(self.axes)
        return tuple(i or m for i, m in zip(kept, self.shape, strict=True))

    @property
    def inner_size(self) -> int:
        """Number of cells, without those that extend axes to circles."""
        return math.prod(self.inner_shape)

    def describe(self) -> str:
        """Size in words, such as "344 x 403 = 138,632 cells"."""
        sizes = " x ".join(f"{m:,}" for m in self.inner_shape)
        size = self.inner_size
        return f"{sizes} = {size:,} cells" if size < 10**15 else f"{sizes} cells"

    def rows(self, cells: Tensor) -> Tensor:
        """Inputs (k, d) of cells (k,)."""
        parts = split_index(cells, self.shape)
        out = self.axes[0].new_empty(cells.shape[0], sum(map(len, self.groups)))
        for points, columns, index in zip(self.axes, self.groups, parts, strict=True):
            out[:, list(columns)] = points[index]
        return out

    def embedded(self, axis: int, points: Tensor | None = None) -> Tensor:
        """Points (k, d_l) of one axis as full input rows (k, d), zero in the other columns."""
        points = self.axes[axis] if points is None else points
        out = points.new_zeros(points.shape[0], sum(map(len, self.groups)))
        out[:, list(self.groups[axis])] = points
        return out


@dataclass(frozen=True)
class GriddedRows:
    """A grid and the cell of every row.

    Attributes:
        grid: the axes.
        cells (n,): flat index of each row, all different.
        gaps (L,): flat indices of the cells without a row, ascending.
    """

    grid: CartesianGrid
    cells: Tensor
    gaps: Tensor

    @property
    def gap_share(self) -> float:
        """Share of cells without a row, not counting cells that extend axes to circles."""
        return 1.0 - self.cells.shape[0] / self.grid.inner_size

    @cached_property
    def clustering(self) -> float:
        """Correlation of "observed" between neighbouring cells, the largest over the axes.

        Near zero for randomly scattered gaps, near one for blocks, zero without gaps. Cells that
        extend axes to circles do not count.
        """
        shape = self.grid.shape
        whole = self.cells.new_zeros(self.grid.size, dtype=torch.float32)
        whole[self.cells] = 1.0
        whole = whole.view(shape)
        for axis, inner in enumerate(self.grid.inner_shape):
            whole = whole.narrow(axis, (shape[axis] - inner) // 2, inner)
        share = 1.0 - self.gap_share
        variance = share * (1.0 - share)
        if variance <= 0.0:
            return 0.0
        found = 0.0
        for axis, m in enumerate(whole.shape):
            if m > 1:
                both = whole.narrow(axis, 0, m - 1) * whole.narrow(axis, 1, m - 1)
                found = max(found, (float(both.mean(dtype=torch.float64)) - share**2) / variance)
        return found


def column_groups(
    num_inputs: int, axes: Sequence[Sequence[int]] | None
) -> tuple[tuple[int, ...], ...]:
    """Input columns per axis; with ``axes=None`` each column is an axis.

    Raises:
        ConfigError: a column is missing, out of range or in two axes, or axes is no list of lists.
    """
    if axes is None:
        return tuple((i,) for i in range(num_inputs))
    groups = tuple(tuple(group) for group in checked_groups(axes, "axes"))
    if sorted(i for group in groups for i in group) != list(range(num_inputs)) or () in groups:
        raise ConfigError(
            f"axes={[list(g) for g in groups]} must hold each of the {num_inputs} input "
            f"columns (0 to {num_inputs - 1}) exactly once, for example [[0, 1], [2]]"
        )
    return groups


def find_grid(
    x: Tensor,
    axes: Sequence[Sequence[int]] | None = None,
    extend_axis: Callable[[int, int], bool] | None = None,
    times: int = 2,
    memory_budget: int | str | None = None,
) -> GriddedRows:
    """The smallest grid that contains all rows, and the cell of each row.

    Points of an axis without any observation change neither evidence nor predictions of an exact
    Gaussian process, so axes need not be given.

    Args:
        x (n, d): inputs.
        axes: groups of columns, see ``column_groups``.
        extend_axis: (axis, number of points) -> whether to extend that axis to a circle, if it is
            regular; None: never.
        times: see ``extend_to_circle``.
        memory_budget: of vectors over the grid; None: all free memory.

    Raises:
        DataError: no rows, or two rows in one cell.
        ConfigError: the grid is too large for memory.

    Cost: O(n log n) per axis; memory a few n and M flags.
    Source: Evans thesis, section 3.2.
    """
    groups = column_groups(x.shape[1], axes)
    if not x.shape[0]:
        raise DataError("a grid needs at least one observed cell; there are no rows")
    points, index, inner = [], [], []
    for axis, group in enumerate(groups):
        column = x.detach()[:, list(group)]
        if len(group) == 1:  # torch.unique without dim is far faster
            found, inverse = torch.unique(column, return_inverse=True)
            found, inverse = found.unsqueeze(1), inverse.squeeze(1)
        else:
            found, inverse = torch.unique(column, dim=0, return_inverse=True)
        closed = None
        if len(group) == 1 and extend_axis is not None and extend_axis(axis, found.shape[0]):
            closed = extend_to_circle(found.squeeze(1), times)
        if closed is not None:
            found, inverse = closed.points.unsqueeze(1), closed.place[inverse]
        points.append(found)
        index.append(inverse)
        inner.append(0 if closed is None else closed.inner)
    grid = CartesianGrid(tuple(points), groups, tuple(inner) if any(inner) else ())
    _require_memory(grid, x, memory_budget)
    cells = flatten_index(index, grid.shape)
    gaps = unobserved_cells(cells, grid.size)
    if grid.size - gaps.shape[0] != x.shape[0]:
        _raise_for_duplicates(cells, x)
    return GriddedRows(grid, cells, gaps)


def widen_circles(rows: GriddedRows, memory_budget: int | str | None = None) -> GriddedRows:
    """The same rows on a grid whose circles are at least twice as long.

    For predictions beyond the data: points up to (a - m) steps beyond an axis of m points on a
    circle of a points are then within half the new circle of all points of the axis.

    Raises:
        ConfigError: too large for memory.

    Cost: O(M).
    """
    grid = rows.grid
    index, axes = list(split_index(rows.cells, grid.shape)), list(grid.axes)
    for axis, points in enumerate(grid.axes):
        if not grid.circular(axis):
            continue
        size, inner = points.shape[0], grid.inner[axis]
        first = (size - inner) // 2
        own = points[first : first + inner].squeeze(1)
        circle = extend_to_circle(own, -(-2 * size // inner))
        assert circle is not None  # it was regular before
        axes[axis] = circle.points.unsqueeze(1)
        index[axis] = circle.place[index[axis] - first]
    wide = CartesianGrid(tuple(axes), grid.groups, grid.inner)
    _require_memory(wide, rows.grid.axes[0], memory_budget)
    cells = flatten_index(index, wide.shape)
    return GriddedRows(wide, cells, unobserved_cells(cells, wide.size))


def unobserved_cells(cells: Tensor, size: int) -> Tensor:
    """The cells (L,) of ``size`` that are not among ``cells`` (n,), ascending."""
    observed = torch.zeros(size, dtype=torch.bool, device=cells.device)
    observed[cells] = True
    return (~observed).nonzero().squeeze(1)


def _require_memory(
    grid: CartesianGrid, like: Tensor, memory_budget: int | str | None = None
) -> None:
    """Raise ConfigError if vectors over the grid or matrices of an axis exceed memory."""
    allowed, limit = allowed_memory(memory_budget, like.device)
    dense = [m for axis, m in enumerate(grid.shape) if not grid.circular(axis)]
    needed = _bytes_needed(grid.size, dense, like)
    if allowed is None or needed <= allowed:
        return
    cells, remedy = grid.describe(), ""
    if grid.inner:
        circles = " x ".join(f"{m:,}" for m in grid.shape)
        cells += f", extended for products by FFT to {circles} = {grid.size:,} cells"
        bare = _bytes_needed(grid.inner_size, grid.inner_shape, like)
        if bare <= allowed:
            remedy = f"set fft_points=None (about {bare / 2**30:,.1f} GiB), "
    size = f"about {needed / 2**30:,.1f} GiB" if needed < 2**70 else f"more than {2**40:,} GiB"
    cause = "an axis that is nearly as long as the table is a continuous input, not a grid"
    if max(dense, default=0) <= 20_000:
        cause = "the axes multiply"
    raise ConfigError(
        f"the rows lie on a grid of {cells}, which needs {size} and {limit}: "
        f"{cause}; {remedy}group columns that "
        "vary together (axes=[[0,1],[2]]), round or thin an axis, or take "
        "model=SVGP(), SGPR() or QSGP(), which need no grid"
    )


def _bytes_needed(size: int, dense: Sequence[int], like: Tensor) -> int:
    """Bytes of vectors over ``size`` cells and of matrices of axes of ``dense`` points."""
    matrices = AXIS_MATRICES if like.dtype == torch.float64 else AXIS_MATRICES_IN_FLOAT32
    return like.element_size() * (GRID_VECTORS * size + matrices * sum(m * m for m in dense))


def _raise_for_duplicates(cells: Tensor, x: Tensor) -> None:
    order = torch.sort(cells, stable=True)
    repeat = (order.values[1:] == order.values[:-1]).nonzero().squeeze(1)
    first, second = (int(order.indices[repeat[0] + k]) for k in (0, 1))
    place = ", ".join(f"{v:.6g}" for v in x[first].tolist()[:6])
    merged = ""
    if x.dtype == torch.float32:
        merged = " (float32 may have merged close coordinates: dtype=float64)"
    raise DataError(
        f"training rows {first} and {second} (counting from 0) lie in one cell of the grid "
        f"(standardised inputs {place}), and so do {repeat.shape[0]} pairs in all{merged}; average "
        "them, add the column that tells them apart, or take another model="
    )
