"""Sparse interpolation weights on regular and irregular axes, and their tensor products."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.tensor_checks import check_one_of
from gpx.warned_line import users_line

Method = Literal["cubic", "linear", "inverse_distance"]
Boundary = Literal["margin", "keys", "nearest"]
Outside = Literal["error", "clamp", "zero"]

EDGE_TOLERANCE = 1e-9
"""A point at most this many cells (1e-4 in float32) outside the grid counts as on its edge."""


@dataclass(frozen=True)
class RegularAxis:
    """Equidistant points start + j spacing, j = 0 .. size - 1.

    Raises:
        ConfigError: spacing not positive, or fewer than two points.
    """

    start: float
    spacing: float
    size: int

    def __post_init__(self) -> None:
        finite = math.isfinite(self.start) and math.isfinite(self.spacing)
        if not finite or not self.spacing > 0.0 or self.size < 2:
            raise ConfigError(
                f"an axis needs a finite start, a positive spacing and two points or more, got "
                f"start {self.start}, spacing {self.spacing} and {self.size} points"
            )

    @classmethod
    def covering(cls, low: float, high: float, size: int, *, margin: int = 2) -> RegularAxis:
        """``size`` points from ``margin`` cells below ``low`` to as many above ``high``.

        A constant coordinate (low = high) gets spacing one. Source: Hultin 2017, section 4.3.

        Raises:
            ConfigError: fewer than 2 margin + 2 points, or low > high.
        """
        cells = size - 1 - 2 * margin
        if cells < 1 or not low <= high:
            raise ConfigError(
                f"a grid axis of {size} points with {margin} cells of margin per side, over "
                f"[{low}, {high}]: at least {2 * margin + 2} points and an interval are needed"
            )
        spacing = (high - low) / cells if high > low else 1.0
        return cls(low - margin * spacing, spacing, size)

    def __len__(self) -> int:
        """``size``, as of an axis given as its points."""
        return self.size

    def steps(self, like: Tensor) -> Tensor:
        """Distances (size,) from the first point, in the dtype and on the device of ``like``."""
        return self.spacing * torch.arange(self.size, dtype=like.dtype, device=like.device)

    def points(self, like: Tensor) -> Tensor:
        """The points (size,) in the dtype and on the device of ``like``."""
        return self.start + self.steps(like)


def cubic_weights(
    x: Tensor, axis: RegularAxis, *, boundary: Boundary = "margin", outside: Outside = "error"
) -> tuple[Tensor, Tensor]:
    """Cubic convolution weights (Keys, a = -1/2) of x (n,) on a regular axis.

    Args:
        boundary: treatment of points in the first and last cell, whose stencil would reach beyond
            the grid: "margin": an error; "keys": ghost points by quadratic extrapolation, exact for
            quadratics; "nearest": the nearest grid point, first order.
        outside: see ``interpolate``.

    Returns:
        indices (n, 4) of neighbouring grid points, ascending (on an axis of three points the last
        one appears twice), and weights (n, 4), differentiable in x; rows sum to one.

    Raises:
        DataError: x outside the grid, or in an end cell with boundary="margin".
        ConfigError: fewer points than the stencil needs (4, or 3 with "keys").

    Source: Hultin 2017, section 3.2.1; Keys 1981.
    """
    check_one_of(get_args(Boundary), boundary=boundary)
    m = axis.size
    least = 3 if boundary == "keys" else 4
    if m < least:
        raise ConfigError(
            f"a grid axis of {m} points is too small for cubic interpolation with boundary="
            f"{boundary!r}: {least} points are needed. Make the grid larger or use linear weights."
        )
    t, inside = _position(x, axis, outside)
    cell = t.detach().floor().clamp(0, m - 2).long()
    f = (t - cell).clamp(0.0, 1.0)
    f2, f3 = f * f, f * f * f
    weights = torch.stack(
        [
            -0.5 * f + f2 - 0.5 * f3,
            1.0 - 2.5 * f2 + 1.5 * f3,
            0.5 * f + 2.0 * f2 - 1.5 * f3,
            -0.5 * f2 + 0.5 * f3,
        ],
        -1,
    )
    first, last = cell == 0, cell == m - 2
    if boundary == "margin":
        # a point on the inner edge of an end cell has no weight beyond the grid
        slack = _edge_tolerance(x)
        ends = (first & (f.detach() < 1.0 - slack)) | (last & (f.detach() > slack))
        if inside is not None:
            ends = ends & inside
        if bool(ends.any()):
            raise DataError(
                f"{int(ends.sum())} of {x.numel()} inputs lie in the first or last cell of a grid "
                f"axis [{axis.start:g}, {axis.start + axis.spacing * (m - 1):g}], where cubic "
                "interpolation lacks a neighbour. Give the grid a margin of two cells "
                "(RegularAxis.covering) or use boundary='keys'."
            )
        weights = _fold_ghosts(weights, first, last)
    elif boundary == "keys":
        weights = _fold_ghosts(weights, first, last)
    else:
        upper = (f.detach() >= 0.5).unsqueeze(-1)
        one = torch.where(upper, weights.new_tensor([0, 0, 1, 0]), weights.new_tensor([0, 1, 0, 0]))
        weights = torch.where((first | last).unsqueeze(-1), one, weights)
    # always four neighbouring grid points, given by the first one: end cells, whose ghost point has
    # weight zero by now, take the stencil of the cell beside them
    weights = torch.where(first.unsqueeze(-1), weights.roll(-1, -1), weights)
    if m > 3:
        weights = torch.where(last.unsqueeze(-1), weights.roll(1, -1), weights)
    start = (cell - 1).clamp(0, max(m - 4, 0)).unsqueeze(-1)
    indices = (start + torch.arange(4, device=x.device)).clamp_max(m - 1)
    return indices, weights if inside is None else weights * inside.unsqueeze(-1)


def _fold_ghosts(weights: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Weights of the ghost points beyond the grid, moved to the three end points.

    Ghost values are g_{-1} = 3 g_0 - 3 g_1 + g_2 and its mirror image. The ghost's own column,
    whose index is clamped to the end point, keeps weight zero.
    """
    lower = weights[..., :1] * weights.new_tensor([-1.0, 3.0, -3.0, 1.0])
    upper = weights[..., 3:] * weights.new_tensor([1.0, -3.0, 3.0, -1.0])
    weights = weights + torch.where(first.unsqueeze(-1), lower, torch.zeros_like(lower))
    return weights + torch.where(last.unsqueeze(-1), upper, torch.zeros_like(upper))


def linear_weights(
    x: Tensor, axis: RegularAxis | Tensor, *, outside: Outside = "error"
) -> tuple[Tensor, Tensor]:
    """Linear weights of x (n,) on a regular axis or on sorted points (m,).

    Inverse-distance weights of the two bracketing points are the same.

    Returns:
        indices (n, 2) and weights (n, 2), differentiable in x (and in the points).

    Raises:
        DataError: x outside the grid. ConfigError: fewer than two points, or not increasing.
    """
    if isinstance(axis, RegularAxis):
        t, inside = _position(x, axis, outside)
        cell = t.detach().floor().clamp(0, axis.size - 2).long()
        f = (t - cell).clamp(0.0, 1.0)
    else:
        points = axis
        checked = torch.compiler.is_exporting()  # by the prediction made before the export
        if points.ndim != 1 or len(points) < 2 or not (checked or bool((points.diff() > 0).all())):
            raise ConfigError(
                f"an irregular axis is a vector of two or more increasing points, got shape "
                f"{tuple(points.shape)}; sort them and drop duplicates"
            )
        low, high = points[0].detach(), points[-1].detach()
        x, inside = _treat_outsiders(x, low, high, torch.zeros_like(low), outside)
        cell = torch.searchsorted(points.detach(), x.detach().contiguous(), right=True) - 1
        cell = cell.clamp(0, points.shape[0] - 2)
        left = points[cell]
        f = (x - left) / (points[cell + 1] - left)
    weights = torch.stack([1.0 - f, f], -1)
    indices = torch.stack([cell, cell + 1], -1)
    return indices, weights if inside is None else weights * inside.unsqueeze(-1)


def _position(x: Tensor, axis: RegularAxis, outside: Outside) -> tuple[Tensor, Tensor | None]:
    """Coordinate in cells from the first point, (n,), clipped to the grid."""
    t = (x - axis.start) / axis.spacing
    low, high = t.new_tensor(0.0), t.new_tensor(float(axis.size - 1))
    slack = t.new_tensor(_edge_tolerance(x))
    t, inside = _treat_outsiders(t, low, high, slack, outside)
    return t.clamp(0.0, axis.size - 1.0), inside


def _edge_tolerance(x: Tensor) -> float:
    return EDGE_TOLERANCE if x.dtype == torch.float64 else 1e-4


def _treat_outsiders(
    x: Tensor, low: Tensor, high: Tensor, slack: Tensor, outside: Outside
) -> tuple[Tensor, Tensor | None]:
    """x clipped or checked as ``outside`` says, and a mask of the inputs whose weights count.

    The mask is None where all of them do.
    """
    check_one_of(get_args(Outside), outside=outside)
    if outside == "clamp":
        if bool(x.detach().isnan().any()):
            raise DataError("inputs to interpolate hold NaN; drop or fill these rows")
        return torch.maximum(torch.minimum(x, high), low), None
    inside = (x.detach() >= low - slack) & (x.detach() <= high + slack)
    if outside == "zero" and torch.compiler.is_exporting():
        return torch.where(inside, x, low), inside
    count = int((~inside).sum())
    if count == 0:
        return x, None
    text = _describe_outsiders(inside)
    if outside == "error":
        raise _OutsideError(text)
    warnings.warn(
        f"{text}; their weights are zero, which predicts the prior", stacklevel=users_line()
    )
    return torch.where(inside, x, low), inside


class _OutsideError(DataError):
    """Inputs lie outside the grid.

    Args:
        text: how many, from ``_describe_outsiders``.
    """

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text}. Build the grid over all inputs to be predicted, or choose outside='clamp' or "
            "outside='zero' (the prior)."
        )


def _describe_outsiders(inside: Tensor) -> str:
    """Message with the number of inputs outside, from the mask (n,) of those inside."""
    count = int((~inside).sum())
    return f"{count} of {inside.numel()} inputs lie outside the interpolation grid (or are NaN)"


def _inside_axis(x: Tensor, axis: RegularAxis | Tensor) -> Tensor:
    """Which of x (n,) lie within the axis, by the rule of ``axis_weights``: (n,)."""
    if isinstance(axis, RegularAxis):
        t, high, slack = (x.detach() - axis.start) / axis.spacing, axis.size - 1, _edge_tolerance(x)
        return (t >= -slack) & (t <= high + slack)
    return (x.detach() >= axis[0].detach()) & (x.detach() <= axis[-1].detach())


def axis_weights(
    x: Tensor,
    axis: RegularAxis | Tensor,
    *,
    method: Method = "cubic",
    boundary: Boundary = "margin",
    outside: Outside = "error",
) -> tuple[Tensor, Tensor]:
    """Indices (n, s) and weights (n, s) of x (n,) along one axis; see ``interpolate``."""
    check_one_of(get_args(Method), method=method)
    if method != "cubic":
        return linear_weights(x, axis, outside=outside)
    if not isinstance(axis, RegularAxis):
        raise ConfigError(
            "cubic interpolation needs equidistant points (RegularAxis); use method='linear'"
        )
    return cubic_weights(x, axis, boundary=boundary, outside=outside)


def interpolate(
    x: Tensor,
    axes: Sequence[RegularAxis | Tensor],
    *,
    method: Method = "cubic",
    boundary: Boundary = "margin",
    outside: Outside = "error",
) -> tuple[Tensor, Tensor]:
    """Tensor-product interpolation weights of x (n, d) on a grid in row-major order.

    Args:
        axes: one per column of x; cubic weights need regular ones.
        method: "cubic" (4 points per axis), "linear" or "inverse_distance" (2; weights inverse to
            the distance of the two points around x are the linear ones).
        boundary: see ``cubic_weights``.
        outside: treatment of inputs beyond the grid: "error"; "clamp" (moved to the edge); "zero"
            (all weights zero, so that a prediction is the prior), with a warning per axis.

    Returns:
        indices (n, s^d) into the flat grid, int64, and weights (n, s^d), differentiable in x.

    Raises:
        ShapeError: x does not match the axes. ConfigError, DataError: see ``cubic_weights`` and
            ``linear_weights``.

    Cost: O(n s^d) time and memory, s = 4 or 2: d = 5 with cubic weights makes 1,024 per row.
    Source: Hultin 2017, section 3.2.1.
    """
    if x.ndim != 2 or x.shape[1] != len(axes) or not axes:
        raise ShapeError(f"inputs (n, {len(axes)}) for {len(axes)} axes, got {tuple(x.shape)}")
    indices = torch.zeros(x.shape[0], 1, dtype=torch.long, device=x.device)
    weights = x.new_ones(x.shape[0], 1)
    for column, axis in zip(x.unbind(1), axes, strict=True):
        try:
            place, share = axis_weights(
                column, axis, method=method, boundary=boundary, outside=outside
            )
        except _OutsideError:  # counts this axis alone; the message counts rows outside any axis
            within = [_inside_axis(*each) for each in zip(x.unbind(1), axes, strict=True)]
            raise _OutsideError(_describe_outsiders(torch.stack(within).all(0))) from None
        indices = (indices.unsqueeze(-1) * len(axis) + place.unsqueeze(-2)).flatten(-2)
        weights = (weights.unsqueeze(-1) * share.unsqueeze(-2)).flatten(-2)
    return indices, weights
