"""A long regular axis closed to a circle, where a stationary covariance is circulant."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg import running_sum
from gpx.linalg.fft_products import fast_length

MOST_MISSING = 4
"""A regular axis has at most this many points for every one that was observed."""

OFF_STEP = 1e-4
"""Distance of a point from its place on a regular axis, in steps, that counts as rounding."""


class Circle(NamedTuple):
    """A regular axis continued on both sides.

    Attributes:
        points (a,): ascending, the axis in the middle.
        place (m,): where the given points lie among them.
        inner: points from the first given one to the last, missing ones included.
    """

    points: Tensor
    place: Tensor
    inner: int


def regular_places(points: Tensor) -> tuple[Tensor, float] | None:
    """Whole steps (m,) of ascending points (m,) from the first, and the step; None if irregular."""
    exact = points.double()
    if exact.shape[0] < 2:
        return None
    gaps = exact.diff()
    # round to whole steps between neighbours: the smallest gap is only an approximate step
    place = torch.cat([gaps.new_zeros(1), running_sum((gaps / gaps.min()).round())])
    count = float(place[-1])
    if count + 1.0 > MOST_MISSING * exact.shape[0]:
        return None
    step = float(exact[-1] - exact[0]) / count
    off = float((exact - exact[0] - place * step).abs().max()) / step
    rounding = 4.0 * torch.finfo(points.dtype).eps * float(exact.abs().max()) / step
    if off > OFF_STEP + rounding or rounding > 0.1:
        return None
    return place.long(), step


def continue_axis(points: Tensor, times: int = 2) -> Circle | None:
    """Ascending points (m,) on a circle of a >= 2 m points; None where they are not regular.

    Covariances of the given points stay what they are; the rest of the circle are cells without
    data. The covariance round the circle, k at the shorter way between two points, is one where it
    is convex (Matern 1/2) or has died out halfway.

    Args:
        times: the circle has at least so many times the points of the axis, 2 or more.
    """
    found = regular_places(points)
    if found is None:
        return None
    place, step = found
    inner = int(place[-1]) + 1
    size = fast_length(times * inner)
    before = (size - inner) // 2
    steps = torch.arange(-before, size - before, dtype=torch.float64, device=points.device)
    whole = (float(points[0]) + step * steps).to(points.dtype)
    whole[place + before] = points  # to the last bit
    return Circle(whole, place + before, inner)


def circle_lags(points: Tensor, size: int) -> Tensor:
    """Distances (a / 2 + 1,) from a point to others, up to halfway round a circle of a = size.

    Args:
        points: any regular ones, which give the step.
    """
    step = (points[-1].double() - points[0].double()) / (points.shape[0] - 1)
    lags = torch.arange(size // 2 + 1, dtype=torch.float64, device=points.device) * step
    return lags.to(points.dtype)


def around_circle(half: Tensor, size: int) -> Tensor:
    """First column (a,) of the circulant with covariances (a / 2 + 1,) at ``circle_lags``."""
    return torch.cat([half, half[1 : (size + 1) // 2].flip(0)])
