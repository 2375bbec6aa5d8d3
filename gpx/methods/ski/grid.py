"""The grid of structured kernel interpolation, and interpolation weights on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import RegularAxis, flatten_index, running_sum
from gpx.linalg.interpolation import Boundary, Method, Outside, axis_weights
from gpx.operators import Interpolation

Placement = Literal["equidistant", "kmeans"]

MARGIN = 2
"""Cells between the data and the ends of an axis: the stencil of cubic weights never leaves it."""
POINTS = {1: 10_000, 2: 90_000, 3: 64_000}
"""Most grid points that are taken unasked, by the number of inputs."""
PER_ROW = 2
"""Grid points per data row, in all, that are taken unasked."""
MOST_POINTS = 20_000_000
"""Above it a grid is refused: its vectors alone would take gigabytes."""
LLOYD_STEPS = 100
"""Of k-means along an axis."""
BEYOND = 1e-3
"""How far the end points of a k-means axis lie beyond the data, in ranges of them."""


@dataclass(frozen=True)
class InterpolationGrid:
    """Axes over the data, row-major.

    Attributes:
        axes: one per input column: equidistant, or increasing points (m_l,) in float64.
        method: "cubic", "linear" or "inverse_distance" weights.
        boundary: what cubic weights do in the end cells of an axis; see ``gpx.linalg.interpolate``.
    """

    has_cells: ClassVar[bool] = True
    """Whether the first grid point of a row's weights says which points they are on."""
    axes: tuple[RegularAxis | Tensor, ...]
    method: Method = "cubic"
    boundary: Boundary = "keys"

    @classmethod
    def covering(
        cls,
        x: Tensor,
        sizes: Sequence[int],
        method: Method,
        placement: Placement = "equidistant",
        boundary: Boundary = "keys",
    ) -> InterpolationGrid:
        """Over the range of every column of x (n, d).

        Equidistant points have two cells of margin on each side. Points of "kmeans" are the centres
        of each column's data, with an end point just beyond the data on each side; where an axis
        has as many points as there are distinct coordinates, it has those.

        Raises:
            ConfigError: an equidistant axis of fewer than six points.
        """
        columns = x.detach().double().unbind(1)
        axes: list[RegularAxis | Tensor] = []
        for column, size in zip(columns, sizes, strict=True):
            if placement == "kmeans":
                axes.append(kmeans_axis(column, size))
            else:
                low, high = column.min().item(), column.max().item()
                axes.append(RegularAxis.covering(low, high, size, margin=MARGIN))
        return cls(tuple(axes), method, boundary)

    @classmethod
    def given(
        cls, x: Tensor, points: Sequence[Tensor], method: Method, boundary: Boundary
    ) -> InterpolationGrid:
        """Points of every axis as given, (m_l,) increasing, over inputs x (n, d).

        Raises:
            ConfigError: inputs beyond the points.
        """
        for i, (column, axis) in enumerate(zip(x.detach().double().unbind(1), points, strict=True)):
            low, high = column.min().item(), column.max().item()
            first, last = float(axis[0]), float(axis[-1])
            if not first <= low <= high <= last:
                raise ConfigError(
                    f"points of axis {i + 1} reach from {first:.6g} to {last:.6g} and the inputs "
                    f"from {low:.6g} to {high:.6g}: every input must lie between the first and the "
                    "last point (inputs may have been standardised)"
                )
        return cls(tuple(points), method, boundary)

    def state(self, device: torch.device) -> dict[str, Tensor]:
        """Where the points lie, as the tensors that ``of_state`` takes; float64."""
        regular = [a for a in self.axes if isinstance(a, RegularAxis)]
        points = [a for a in self.axes if not isinstance(a, RegularAxis)]
        none = torch.zeros(0, dtype=torch.float64, device=device)
        return {
            "start": none.new_tensor([a.start for a in regular]),
            "spacing": none.new_tensor(self.spacing),
            "sizes": torch.tensor(self.shape, device=device),
            "points": torch.cat(points).to(device) if points else none,
        }

    @classmethod
    def of_state(
        cls,
        start: Tensor,
        spacing: Tensor,
        sizes: Tensor,
        points: Tensor,
        method: Method,
        boundary: Boundary,
    ) -> InterpolationGrid:
        """The grid whose ``state`` this is: all axes equidistant, or none (``points``)."""
        shape = sizes.tolist()
        if points.numel():
            return cls(tuple(points.split(shape)), method, boundary)
        axes = zip(start.tolist(), spacing.tolist(), shape, strict=True)
        return cls(tuple(RegularAxis(*axis) for axis in axes), method, boundary)

    @property
    def shape(self) -> tuple[int, ...]:
        """Points of each axis."""
        return tuple(a.size if isinstance(a, RegularAxis) else len(a) for a in self.axes)

    @property
    def size(self) -> int:
        """m, points of the whole grid."""
        return math.prod(self.shape)

    @property
    def row_weights(self) -> int:
        """Entries of a row of W."""
        return (4 if self.method == "cubic" else 2) ** len(self.axes)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distance between neighbouring points of each axis; the median where it varies."""
        return tuple(
            a.spacing if isinstance(a, RegularAxis) else float(a.diff().median()) for a in self.axes
        )

    def middle(self, like: Tensor) -> Tensor:
        """The middle of the widest cell of every axis, (1, d), in float64 on ``like``'s device."""
        found = []
        for axis in self.axes:
            points = axis_points(axis, like)
            regular = isinstance(axis, RegularAxis)
            first = len(points) // 2 - 1 if regular else int(points.diff().argmax())
            found.append(0.5 * (points[first] + points[first + 1]))
        return torch.stack(found).unsqueeze(0)

    def weights(self, x: Tensor, outside: Outside = "error") -> Interpolation:
        """W (n, m), with 4^d or 2^d entries a row; float64 whatever x is in; differentiable in x.

        Data never lie in the end cells of an equidistant axis; predictions may.
        """
        return Interpolation.of(
            x.double(), self.axes, method=self.method, boundary=self.boundary, outside=outside
        )

    @torch.no_grad()
    def first_points(self, x: Tensor) -> Tensor:
        """The first grid point of each row of ``weights``, (n,), at less than its cost."""
        return flatten_index([place[:, 0] for place, _ in self.axis_weights(x)], self.shape)

    def axis_weights(self, x: Tensor, outside: Outside = "error") -> list[tuple[Tensor, Tensor]]:
        """Indices and weights (n, s) of x (n, d) along every axis: W is their product."""
        return [
            axis_weights(column, axis, method=self.method, boundary=self.boundary, outside=outside)
            for column, axis in zip(x.double().unbind(1), self.axes, strict=True)
        ]


def axis_points(axis: RegularAxis | Tensor, like: Tensor) -> Tensor:
    """Points (m_l,) of an axis, in float64 on ``like``'s device."""
    return axis.points(like.double()) if isinstance(axis, RegularAxis) else axis.to(like.device)


def given_points(points: Sequence[Sequence[float]], num_inputs: int) -> list[Tensor]:
    """Points of every axis (m_l,), float64.

    Raises:
        ConfigError: another number of axes; an axis that is not finite and increasing.
    """
    if len(points) != num_inputs:
        raise ConfigError(f"points has {len(points)} axes for {num_inputs} inputs")
    found = []
    for i, axis in enumerate(points):
        own = torch.as_tensor([float(p) for p in axis], dtype=torch.float64)
        if len(own) < 2 or not bool(torch.isfinite(own).all() and (own.diff() > 0.0).all()):
            raise ConfigError(
                f"points of axis {i + 1} must be two or more finite, increasing numbers"
            )
        found.append(own)
    return found


@torch.no_grad()
def kmeans_axis(column: Tensor, size: int) -> Tensor:
    """``size`` points, or fewer: k-means centres of a column (n,) and an end point on each side.

    Lloyd's iteration from quantiles, by sums between sorted borders: O(n log n + size) a step.
    Source: Hultin 2017, section 4.3.
    """
    data = column.sort().values
    distinct = torch.unique_consecutive(data)
    span = float(distinct[-1] - distinct[0]) or 1.0
    ends = distinct.new_tensor([float(distinct[0]), float(distinct[-1])])
    ends = ends + span * ends.new_tensor([-BEYOND, BEYOND])
    inner = max(1, size - 2)
    if inner >= len(distinct):
        return torch.cat([ends[:1], distinct, ends[1:]])
    total = torch.cat([data.new_zeros(1), running_sum(data)])
    share = (torch.arange(inner, dtype=data.dtype, device=data.device) + 0.5) / inner
    centres = distinct[(share * len(distinct)).long()]
    for _ in range(LLOYD_STEPS):
        borders = torch.searchsorted(data, 0.5 * (centres[1:] + centres[:-1]))
        borders = torch.cat([borders.new_zeros(1), borders, borders.new_tensor([len(data)])])
        count = borders.diff()
        moved = (total[borders[1:]] - total[borders[:-1]]) / count.clamp_min(1)
        moved = torch.where(count > 0, moved, centres)
        settled = bool((moved - centres).abs().max() <= 1e-12 * span)
        centres = moved
        if settled:
            break
    return torch.unique(torch.cat([ends[:1], centres, ends[1:]]))


def settled_axes(sizes: Sequence[int], num_inputs: int) -> list[int]:
    """Points of each axis as numbers; raises ConfigError for another number of axes."""
    found = [int(size) for size in sizes]
    if len(found) != num_inputs:
        raise ConfigError(f"grid_size={found} has {len(found)} axes for {num_inputs} inputs")
    return found


def settled_sizes(
    sizes: int | Sequence[int] | None,
    num_data: int,
    num_inputs: int,
    least: int = 2 * MARGIN + 2,
) -> list[int]:
    """Points of each axis: as asked, or for the number of data rows.

    Args:
        sizes: of every axis, one for all, or None.
        num_data, num_inputs: n and d.
        least: points of an axis.

    Raises:
        ConfigError: more than three inputs, another number of axes, too small or too large a grid.
    """
    if num_inputs > 3:
        raise ConfigError(
            f"a grid over {num_inputs} inputs has more points than any memory: structured "
            "interpolation takes up to 3 inputs; project them to fewer (projection), or use GRIEF "
            "or inducing points (SGPR)"
        )
    if sizes is None:
        wanted = min(PER_ROW * num_data, POINTS[num_inputs])
        sizes = max(2 * MARGIN + 6, math.ceil(wanted ** (1.0 / num_inputs)))
    given = [sizes] * num_inputs if isinstance(sizes, int) else sizes
    found = settled_axes(given, num_inputs)
    if min(found) < least:
        raise ConfigError(
            f"grid_size={found}: an axis needs at least {least} points, with "
            f"{MARGIN} cells of margin on each side"
        )
    if math.prod(found) > MOST_POINTS:
        per_vector = math.prod(found) * 8 / 2**30
        raise ConfigError(
            f"grid_size={found} makes {math.prod(found):,} points, {per_vector:,.1f} GiB for every "
            f"vector on the grid; at most {MOST_POINTS:,} are taken: use fewer points an axis"
        )
    return found
