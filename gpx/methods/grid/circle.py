"""Extension of a regular axis to a circle, on which stationary covariances are circulant."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg import running_sum
from gpx.linalg.fft_products import fast_length

MAX_POINTS_PER_OBSERVED = 4
"""Most points of a regular axis per observed point."""

MAX_STEP_DEVIATION = 1e-4
"""Largest deviation of points from a regular axis, in steps, that counts as rounding."""


class Circle(NamedTuple):
    """A regular axis extended on both sides to a circle.

    Attributes:
        points (a,): ascending, with the axis in the middle.
        place (m,): indices of the given points among them.
        inner: number of points of the axis, missing ones included.
    """

    points: Tensor
    place: Tensor
    inner: int


def regular_positions(points: Tensor) -> tuple[Tensor, float] | None:
    """Positions (m,) of ascending points in whole steps, and the step; None if irregular."""
    exact = points.double()
    if exact.shape[0] < 2:
        return None
    gaps = exact.diff()
    # round between neighbours, as the smallest gap is only an approximate step
    place = torch.cat([gaps.new_zeros(1), running_sum((gaps / gaps.min()).round())])
    count = float(place[-1])
    if count + 1.0 > MAX_POINTS_PER_OBSERVED * exact.shape[0]:
        return None
    step = float(exact[-1] - exact[0]) / count
    off = float((exact - exact[0] - place * step).abs().max()) / step
    rounding = 4.0 * torch.finfo(points.dtype).eps * float(exact.abs().max()) / step
    if off > MAX_STEP_DEVIATION + rounding or rounding > 0.1:
        return None
    return place.long(), step


def extend_to_circle(points: Tensor, times: int = 2) -> Circle | None:
    """Extend ascending points (m,) to a circle of a >= 2 m points; None if they are irregular.

    The additional points are cells without data, so covariances of the given points do not change.
    The covariance on the circle, k of the shorter distance, is positive semi-definite if k is
    convex (Matern 1/2) or negligible at half the circle.

    Args:
        times: smallest ratio of the points of the circle to those of the axis, at least 2.
    """
    found = regular_positions(points)
    if found is None:
        return None
    place, step = found
    inner = int(place[-1]) + 1
    size = fast_length(times * inner)
    before = (size - inner) // 2
    steps = torch.arange(-before, size - before, dtype=torch.float64, device=points.device)
    whole = (float(points[0]) + step * steps).to(points.dtype)
    whole[place + before] = points  # exactly, without rounding
    return Circle(whole, place + before, inner)


def circle_lags(points: Tensor, size: int) -> Tensor:
    """Distances (a / 2 + 1,) from a point to others, up to half a circle of a = size points.

    Args:
        points: regular points, which define the step.
    """
    step = (points[-1].double() - points[0].double()) / (points.shape[0] - 1)
    lags = torch.arange(size // 2 + 1, dtype=torch.float64, device=points.device) * step
    return lags.to(points.dtype)


def circulant_column(half: Tensor, size: int) -> Tensor:
    """First column (a,) of the circulant with covariances (a / 2 + 1,) at ``circle_lags``."""
    return torch.cat([half, half[1 : (size + 1) // 2].flip(0)])
