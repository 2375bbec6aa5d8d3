"""Exact nearest neighbours of single queries in many dimensions, screened by cheap lower bounds."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Real = TypeVar("Real", float, Numbers)

MIN_COLUMNS, MIN_POINTS = 128, 256
"""For smaller sets of points, bounds do not pay: comparing with all points reads little memory."""

MAX_AXES = 96
"""Largest number of coordinates in the bounds; an eighth of the columns where that is less."""

FIRST_CANDIDATES = 16
"""Number of points, those with the smallest bounds, whose distances are computed first."""

NUM_TRIALS = 32
"""Points that are used as trial queries to see whether the bounds exclude most points."""

MAX_ADMITTED_SHARE = 1 / 16
"""A search gives up where more than this share of the points needs its distance computed."""

MAX_NORM, MIN_NORM = 1e15, 1e-15
"""Range of norms whose squares float32 holds with a margin."""


class ScreenedSearch:
    """Points x (n, d) prepared for exact searches, one query at a time, on a CPU.

    Split two points into their leading principal coordinates and the remainder. Their squared
    distance is at least the squared distance of the coordinates plus the squared difference of the
    remainders' norms. This bound reads p = d / 8 numbers a point instead of d. Distances are
    computed in the order of the bounds, until every other point has a bound above the k-th distance
    found.

    The bounds are in float32, which halves the memory read, and lowered by more than their rounding
    error. Distances are computed from differences in float64.

    Args:
        points (n, d): kept, not copied.

    Cost: some n d p operations once; a search (n + d) p, and d per distance computed. On images
    some ten of a thousand points need their distance; on white noise all of them do.
    """

    def __init__(self, points: Numbers) -> None:
        d = points.shape[1]
        self._points = points
        self._centre = points.mean(0)
        centred = points - self._centre
        squares = np.einsum("nd,nd->n", centred, centred)
        # bound of the error of float32 coordinates (sums of d products in lanes of eight or more),
        # relative to the norms
        self._rounding = 2.0 * float(np.finfo(np.float32).eps) * d
        self._largest = float(squares.max())
        self._limit = int(MAX_ADMITTED_SHARE * len(points))
        axes = _leading_axes(centred, min(MAX_AXES, d // 8))
        self._axes = axes.astype(np.float32)
        leading = (centred @ self._axes).astype(np.float32)
        rest = np.sqrt(self._rest(squares, np.einsum("np,np->n", leading, leading, dtype=float)))
        # (|q - x|^2 - |q|^2) / 2 is at least [coordinates, rest, 1] of q times this
        table = np.concatenate([-leading, -rest[:, None], 0.5 * squares[:, None]], 1)
        self._table = np.ascontiguousarray(table.T, dtype=np.float32)

    def _rest(self, squares: Real, of_leading: Real) -> Real:
        """Upper bounds of the squared norms of the remainders."""
        return np.maximum(squares - of_leading, 0.0) + self._rounding * squares

    def search_one(self, query: Numbers, k: int) -> tuple[NDArray[np.int64], Numbers] | None:
        """Rows (k,) of the points nearest to ``query`` (d,), nearest first, squared distances (k,).

        Points at the same distance come in the order of their rows.

        Returns:
            None where the bounds exclude so few points that comparing with all costs less.
        """
        centred = query - self._centre
        square = float(centred @ centred)
        if not square <= MAX_NORM**2:  # also for NaN
            return None
        of_query = np.empty(len(self._table), dtype=np.float32)
        leading = centred.astype(np.float32) @ self._axes
        of_query[:-2] = leading
        of_query[-2] = math.sqrt(self._rest(square, float(leading @ leading)))
        of_query[-1] = 1.0
        bounds = of_query @ self._table
        first = min(max(FIRST_CANDIDATES, 2 * k), len(bounds))
        near = bounds.argpartition(first - 1)[:first]
        distances = self._distances(query, near)
        farthest = np.partition(distances, k - 1)[k - 1]
        slack = self._rounding * (square + self._largest)
        admitted = np.float32(0.5 * (farthest - square) + slack)
        if bounds[near].max() <= admitted:  # other points may be as near
            near = np.flatnonzero(bounds <= admitted)
            if len(near) > self._limit:
                return None
            distances = self._distances(query, near)
        order = np.lexsort((near, distances))[:k]
        return near[order], distances[order]

    def _distances(self, query: Numbers, rows: NDArray[np.int64]) -> Numbers:
        gap = self._points[rows] - query
        found: Numbers = np.einsum("nd,nd->n", gap, gap)
        return found

    def pays(self, k: int) -> bool:
        """Whether the bounds exclude most points, tried with searches from some of the points."""
        if k + 1 > self._limit or self._largest < MIN_NORM**2:
            return False
        asked = np.linspace(0, len(self._points) - 1, NUM_TRIALS).astype(int)
        found = [self.search_one(self._points[row], k + 1) is not None for row in asked]
        return sum(found) > NUM_TRIALS // 2


def screened_search(points: Numbers, k: int) -> ScreenedSearch | None:
    """A ``ScreenedSearch`` among points (n, d); None where comparing with all points costs less.

    Cost: the preparation and some trial searches.
    """
    n, d = points.shape
    if n < MIN_POINTS or d < MIN_COLUMNS or not np.abs(points).max() <= MAX_NORM / d:
        return None
    made = ScreenedSearch(points)
    return made if made.pays(k) else None


def _leading_axes(centred: Numbers, count: int) -> Numbers:
    """Orthonormal columns (d, count) near the principal axes; any columns give valid bounds."""
    basis = np.random.default_rng(0).standard_normal((centred.shape[1], count))
    for _ in range(3):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    return basis
