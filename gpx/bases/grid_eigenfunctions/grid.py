"""Inducing grids: a few nodes along each input column, placed by the data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.linalg import running_sum
from gpx.tensor_checks import check_at_least, check_not_negative, check_one_of

GridKind = Literal["equispaced", "quantile", "kmeans"]
LLOYD_STEPS = 50
MIN_RELATIVE_SPACING = 1e-9
"""Nodes closer than this share of the column's range are merged into one."""


@dataclass(frozen=True)
class GridOptions:
    """How an inducing grid is built.

    Attributes:
        points_per_dim: number of nodes along a column; fewer distinct values are all nodes.
        kind: "equispaced" over the range of the data and its margin, "quantile" (equal shares of
            the data between nodes), or "kmeans" (one-dimensional, with the extremes added).
        margin: extends equispaced nodes by this share of the range on either side.
        transductive: places the nodes by the inputs of the test set as well as by the training
            inputs, never by test targets. Then no test input lies outside the grid, where the
            eigenfunctions extrapolate. The basis must be given these inputs (``know_test_inputs``).
        axes: explicit nodes, one list per column; the other options are then unused.

    Source: Evans thesis, section 4.3 (footnote on the choice of the grid).
    """

    points_per_dim: int = 10
    kind: GridKind = "equispaced"
    margin: float = 0.1
    transductive: bool = False
    axes: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        """Check ranges; raises ConfigError."""
        check_at_least(2, points_per_dim=self.points_per_dim)
        check_one_of(get_args(GridKind), kind=self.kind)
        check_not_negative(margin=self.margin)
        for column, axis in enumerate(self.axes or ()):
            if not isinstance(axis, Sequence) or isinstance(axis, str):
                raise ConfigError(
                    f"axes={list(self.axes or ())}: expected a list of nodes for each column, as "
                    "in axes=[[0, 0.5, 1], [0, 1]]"
                )
            if not axis or any(b <= a for a, b in itertools.pairwise(axis)):
                raise ConfigError(
                    f"axes={list(map(list, self.axes or ()))}: the nodes of column {column + 1} "
                    "must be ascending and distinct, at least one"
                )


def inducing_axes(x: Tensor, options: GridOptions) -> list[Tensor]:
    """Nodes along each column of x (n, d): ascending and distinct, float64.

    A column that is constant over the data gets a single node and is ignored by the model.

    Raises:
        DataError: inputs that are not finite.
        ShapeError: explicit axes of another number of columns.

    Cost: O(n log n d).
    """
    if options.axes is not None:
        if len(options.axes) != x.shape[1]:
            raise ShapeError(
                f"axes= of the grid lists {len(options.axes)} axes for {x.shape[1]} input columns"
            )
        return [torch.tensor([float(v) for v in a], dtype=torch.float64) for a in options.axes]
    if x.shape[0] == 0 or not bool(torch.isfinite(x).all()):
        raise DataError("an inducing grid needs inputs that are finite, and at least one row")
    return [_axis(column.double().cpu(), options) for column in x.detach().unbind(1)]


def _axis(values: Tensor, options: GridOptions) -> Tensor:
    count, distinct = options.points_per_dim, values.unique()
    if distinct.shape[0] <= count:
        return _merge_close(distinct)
    low, high = distinct[0], distinct[-1]
    if options.kind == "equispaced":
        beyond = options.margin * (high - low)
        return torch.linspace(float(low - beyond), float(high + beyond), count, dtype=values.dtype)
    shares = torch.linspace(0.0, 1.0, count, dtype=values.dtype)
    ordered = values.sort().values
    place = shares * (ordered.shape[0] - 1)
    left = place.floor().long().clamp_(max=ordered.shape[0] - 2)
    quantiles = torch.lerp(ordered[left], ordered[left + 1], place - left)
    if options.kind == "quantile":
        return _merge_close(quantiles)
    return _merge_close(_lloyd(ordered, quantiles))


def _lloyd(ordered: Tensor, start: Tensor) -> Tensor:
    """One-dimensional k-means between fixed extremes; ordered (n,), start (m,) ascending."""
    total = torch.cat([ordered.new_zeros(1), running_sum(ordered)])
    inner, ends = start[1:-1].clone(), start[[0, -1]]
    for _ in range(LLOYD_STEPS):
        nodes = torch.cat([ends[:1], inner, ends[1:]])
        cuts = torch.searchsorted(ordered, 0.5 * (nodes[1:] + nodes[:-1]))
        sums, sizes = total[cuts[1:]] - total[cuts[:-1]], (cuts[1:] - cuts[:-1]).to(total.dtype)
        moved = torch.where(sizes > 0, sums / sizes.clamp(min=1.0), inner)
        done = torch.equal(moved, inner)
        inner = moved
        if done:
            break
    return torch.cat([ends[:1], inner, ends[1:]])


def _merge_close(nodes: Tensor) -> Tensor:
    """Ascending nodes; those within ``MIN_RELATIVE_SPACING`` of the one before are dropped."""
    ordered = nodes.sort().values
    least = MIN_RELATIVE_SPACING * (ordered[-1] - ordered[0])
    keep = torch.ones_like(ordered, dtype=torch.bool)
    keep[1:] = ordered.diff() > least
    return ordered[keep]


def pad_axes(axes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Axes as one matrix (d, m), the last node repeated, and their lengths (d,) int64."""
    sizes = torch.tensor([len(a) for a in axes], dtype=torch.int64)
    width = int(sizes.max())
    padded = torch.stack([torch.cat([a, a[-1:].expand(width - len(a))]) for a in axes])
    return padded, sizes


def grid_size(sizes: Tensor) -> int:
    """prod_i m_i, a Python integer of any size."""
    return math.prod(sizes.tolist())
