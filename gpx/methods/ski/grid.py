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

Placement = Literal["equidistant", "kmeans", "fixed"]

MARGIN_CELLS = 2
"""Cells between the data and the ends of an axis, so that the cubic stencil stays on the grid."""
MAX_INPUTS = 4
"""Largest number of axes: a row has cubic weights on 4 points of each, 256 of four axes."""
DEFAULT_MAX_POINTS = {1: 10_000, 2: 90_000, 3: 64_000, 4: 160_000}
"""Largest default number of grid points, by the number of inputs."""
DEFAULT_POINTS_PER_ROW = 2
"""Default number of grid points per data row, of up to three inputs; the axes of four would be too
short by it, so that these have the largest number."""
MAX_POINTS = 20_000_000
"""Larger grids are refused, since a few vectors on them would take gigabytes."""
LLOYD_STEPS = 100
"""Most steps of k-means along an axis."""
END_MARGIN = 1e-3
"""Distance of the end points of a k-means axis from the data, relative to their range."""


@dataclass(frozen=True)
class InterpolationGrid:
    """The product of one axis per input; points are numbered row-major.

    Attributes:
        axes: one per input column: equidistant, or increasing points (m_l,) in float64.
        method: "cubic", "linear" or "inverse_distance" weights.
        boundary: cubic weights in the end cells of an axis; see ``gpx.linalg.interpolate``.
    """

    has_cells: ClassVar[bool] = True
    """Whether the first grid point of a row's weights determines all of them."""
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
        """A grid over the range of every column of x (n, d).

        Equidistant axes (also "fixed", over the rows it is given) have two cells of margin on each
        side. Axes of "kmeans" have points at the cluster centres of the column, or at all distinct
        coordinates if there are few, and an end point just outside the data on each side.

        Raises:
            ConfigError: an equidistant axis of fewer than six points.
        """
        seen = x.detach().double()
        axes: list[RegularAxis | Tensor] = []
        if placement == "kmeans":
            axes += [kmeans_axis(c, size) for c, size in zip(seen.unbind(1), sizes, strict=True)]
        else:
            extent = torch.stack(seen.aminmax(dim=0), 1).tolist()  # one wait for a device
            axes += [
                RegularAxis.covering(low, high, size, margin=MARGIN_CELLS)
                for (low, high), size in zip(extent, sizes, strict=True)
            ]
        return cls(tuple(axes), method, boundary)

    @classmethod
    def given(
        cls, x: Tensor, points: Sequence[Tensor], method: Method, boundary: Boundary
    ) -> InterpolationGrid:
        """A grid of given increasing points (m_l,) of every axis, for inputs x (n, d).

        Raises:
            ConfigError: inputs outside the points.
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
        """Position of the points as the tensors that ``of_state`` takes; float64."""
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
        """The grid with this ``state``; its axes are all equidistant, or all given by points."""
        if points.numel():
            return cls(tuple(points.split(sizes.tolist())), method, boundary)
        axes = torch.stack([start, spacing, sizes.to(start)], 1).tolist()  # one wait for a device
        return cls(tuple(RegularAxis(a, b, int(size)) for a, b, size in axes), method, boundary)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points of each axis."""
        return tuple(len(axis) for axis in self.axes)

    @property
    def size(self) -> int:
        """m, the number of points of the grid."""
        return math.prod(self.shape)

    @property
    def row_weights(self) -> int:
        """Entries of a row of W."""
        return (4 if self.method == "cubic" else 2) ** len(self.axes)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distance between neighbouring points of each axis; the median if it varies."""
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
        """W (n, m) with 4^d or 2^d entries per row, in float64; differentiable in x.

        Predictions may lie in the end cells of an equidistant axis, data never do.
        """
        return Interpolation.of(
            x.double(), self.axes, method=self.method, boundary=self.boundary, outside=outside
        )

    @torch.no_grad()
    def first_points(self, x: Tensor) -> Tensor:
        """The first grid point (n,) of each row of ``weights``, at a lower cost."""
        return flatten_index([place[:, 0] for place, _ in self.axis_weights(x)], self.shape)

    def axis_weights(self, x: Tensor, outside: Outside = "error") -> list[tuple[Tensor, Tensor]]:
        """Indices and weights (n, s) of x (n, d) along every axis; rows of W are their products."""
        return [
            axis_weights(column, axis, method=self.method, boundary=self.boundary, outside=outside)
            for column, axis in zip(x.double().unbind(1), self.axes, strict=True)
        ]


def axis_points(axis: RegularAxis | Tensor, like: Tensor) -> Tensor:
    """Points (m_l,) of an axis, in float64 on ``like``'s device."""
    return axis.points(like.double()) if isinstance(axis, RegularAxis) else axis.to(like.device)


def parse_points(points: Sequence[Sequence[float]], num_inputs: int) -> list[Tensor]:
    """Convert given points of every axis to tensors (m_l,), float64.

    Raises:
        ConfigError: a wrong number of axes, or points that are not finite and increasing.
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
    """At most ``size`` points: k-means centres of a column (n,) and an end point on each side.

    Lloyd's iteration, started at quantiles, on sorted data.
    Cost: n log n once, size log n per step.
    Source: Hultin 2017, section 4.3.
    """
    data = column.sort().values
    distinct = torch.unique_consecutive(data)
    span = float(distinct[-1] - distinct[0]) or 1.0
    ends = distinct.new_tensor([float(distinct[0]), float(distinct[-1])])
    ends = ends + span * ends.new_tensor([-END_MARGIN, END_MARGIN])
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
        means = (total[borders[1:]] - total[borders[:-1]]) / count.clamp_min(1)
        means = torch.where(count > 0, means, centres)
        converged = bool((means - centres).abs().max() <= 1e-12 * span)
        centres = means
        if converged:
            break
    return torch.unique(torch.cat([ends[:1], centres, ends[1:]]))


def axis_sizes(sizes: Sequence[int], num_inputs: int) -> list[int]:
    """Number of points of each axis as integers; ConfigError for a wrong number of axes."""
    found = [int(size) for size in sizes]
    if len(found) != num_inputs:
        raise ConfigError(f"grid_size={found} has {len(found)} axes for {num_inputs} inputs")
    return found


def grid_sizes(
    sizes: int | Sequence[int] | None,
    num_data: int,
    num_inputs: int,
    least: int = 2 * MARGIN_CELLS + 2,
) -> list[int]:
    """Number of points of each axis, as given or from the number of data rows.

    Args:
        sizes: of every axis, one number for all, or None.
        num_data, num_inputs: n and d.
        least: fewest points of an axis.

    Raises:
        ConfigError: more than four inputs, a wrong number of axes, a grid too small or too large.
    """
    if num_inputs > MAX_INPUTS:
        raise ConfigError(
            f"a grid over {num_inputs} inputs has more points than any memory: structured "
            "interpolation takes up to 4 inputs; project them to fewer (projection), add up "
            "functions of one input each (additive=True), or use GRIEF or inducing points (SGPR)"
        )
    if sizes is None:
        wanted = DEFAULT_MAX_POINTS[num_inputs]
        if num_inputs < MAX_INPUTS:
            wanted = min(DEFAULT_POINTS_PER_ROW * num_data, wanted)
        sizes = max(2 * MARGIN_CELLS + 6, math.ceil(wanted ** (1.0 / num_inputs)))
    given = [sizes] * num_inputs if isinstance(sizes, int) else sizes
    found = axis_sizes(given, num_inputs)
    if min(found) < least:
        raise ConfigError(
            f"grid_size={found}: an axis needs at least {least} points, with "
            f"{MARGIN_CELLS} cells of margin on each side"
        )
    if math.prod(found) > MAX_POINTS:
        per_vector = math.prod(found) * 8 / 2**30
        raise ConfigError(
            f"grid_size={found} makes {math.prod(found):,} points, {per_vector:,.1f} GiB for every "
            f"vector on the grid; at most {MAX_POINTS:,} are taken: use fewer points an axis"
        )
    return found
