"""Rows of a grid on wider circles, where what lies beyond the data is not near their other end."""

from __future__ import annotations

from gpx.linalg import flatten_index, split_index
from gpx.methods.grid.axes import CartesianGrid, GriddedRows, require_memory, unobserved
from gpx.methods.grid.circle import continue_axis


def widened(rows: GriddedRows) -> GriddedRows:
    """The same rows, each axis that is closed to a circle on one at least twice as long.

    Points up to (a - m) steps beyond an axis of m then lie within half the new circle of all its
    points, where a was the old one's size.

    Raises:
        ConfigError: too large for memory.

    Cost: O(M) flags.
    """
    grid = rows.grid
    index, axes = list(split_index(rows.cells, grid.shape)), list(grid.axes)
    for axis, points in enumerate(grid.axes):
        if not grid.circular(axis):
            continue
        size, inner = points.shape[0], grid.inner[axis]
        first = (size - inner) // 2
        own = points[first : first + inner].squeeze(1)
        circle = continue_axis(own, -(-2 * size // inner))
        assert circle is not None  # it was regular before
        axes[axis] = circle.points.unsqueeze(1)
        index[axis] = circle.place[index[axis] - first]
    wide = CartesianGrid(tuple(axes), grid.groups, grid.inner)
    require_memory(wide, rows.grid.axes[0])
    cells = flatten_index(index, wide.shape)
    return GriddedRows(wide, cells, unobserved(cells, wide.size))
