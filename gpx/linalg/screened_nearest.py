"""The exact nearest neighbours of one query among points of many columns, by bounds from a few."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Real = TypeVar("Real", float, Numbers)

LEAST_COLUMNS, LEAST_POINTS = 128, 256
"""Below these, comparing with all points reads little memory, and bounds have nothing to save."""

AXES = 96
"""Coordinates that the bounds use at most; an eighth of the columns where that is less."""

FIRST = 16
"""Points of the least bounds whose distances are computed at once."""

TRIALS = 32
"""Points that are looked up among the others to see whether bounds leave many of them out."""

ADMITTED = 1 / 16
"""Largest share of the points whose distances are computed."""

LARGEST, LEAST = 1e15, 1e-15
"""Norms whose squares float32 holds with room to spare."""


class ScreenedSearch:
    """Points x (n, d) prepared for exact searches, one query at a time, on a CPU.

    The distance of two points is at least that of their leading principal coordinates and, at a
    right angle to these, the difference of the norms of what is left of them. These bounds cost
    p = d / 8 numbers a point instead of d. Distances are computed in the order of the bounds, and
    the search ends when every point that is left out has a bound above the k-th distance found.

    The bounds are in float32, which halves what is read, and are lowered by more than rounding can
    be wrong by. Distances are of differences in float64.

    Args:
        points (n, d): kept, not copied.

    Cost: some n d p operations once; a search (n + d) p, and d for each of the admitted. On images
    some ten of a thousand points are admitted; on noise, whose coordinates all count alike, all.
    """

    def __init__(self, points: Numbers) -> None:
        d = points.shape[1]
        self._points = points
        self._centre = points.mean(0)
        centred = points - self._centre
        squares = np.einsum("nd,nd->n", centred, centred)
        # what float32 coordinates, sums of d products in lanes of eight or more, are wrong by at
        # most, relative to the norms
        self._rounding = 2.0 * float(np.finfo(np.float32).eps) * d
        self._largest = float(squares.max())
        self._limit = int(ADMITTED * len(points))
        axes = _leading_axes(centred, min(AXES, d // 8))
        self._axes = axes.astype(np.float32)
        leading = (centred @ self._axes).astype(np.float32)
        rest = np.sqrt(self._rest(squares, np.einsum("np,np->n", leading, leading, dtype=float)))
        # (|q - x|^2 - |q|^2) / 2 is at least [coordinates, rest, 1] of q times this
        table = np.concatenate([-leading, -rest[:, None], 0.5 * squares[:, None]], 1)
        self._table = np.ascontiguousarray(table.T, dtype=np.float32)

    def _rest(self, squares: Real, of_leading: Real) -> Real:
        """Squared norms of what the leading coordinates leave, at least the true ones."""
        return np.maximum(squares - of_leading, 0.0) + self._rounding * squares

    def of_one(self, query: Numbers, k: int) -> tuple[NDArray[np.int64], Numbers] | None:
        """Rows (k,) of the points nearest to ``query`` (d,), nearest first, squared distances (k,).

        Points at the same distance come in the order of their rows.

        Returns:
            None where so many points are admitted that comparing with all costs less.
        """
        centred = query - self._centre
        square = float(centred @ centred)
        if not square <= LARGEST**2:  # neither if it is no number
            return None
        of_query = np.empty(len(self._table), dtype=np.float32)
        leading = centred.astype(np.float32) @ self._axes
        of_query[:-2] = leading
        of_query[-2] = math.sqrt(self._rest(square, float(leading @ leading)))
        of_query[-1] = 1.0
        bounds = of_query @ self._table
        first = min(max(FIRST, 2 * k), len(bounds))
        near = bounds.argpartition(first - 1)[:first]
        distances = self._distances(query, near)
        farthest = np.partition(distances, k - 1)[k - 1]
        slack = self._rounding * (square + self._largest)
        admitted = np.float32(0.5 * (farthest - square) + slack)
        if bounds[near].max() <= admitted:  # some that were left out may be as near
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
        """Whether the bounds leave most points out: k + 1 nearest of some of the points."""
        if k + 1 > self._limit or self._largest < LEAST**2:
            return False
        asked = np.linspace(0, len(self._points) - 1, TRIALS).astype(int)
        found = [self.of_one(self._points[row], k + 1) is not None for row in asked]
        return sum(found) > TRIALS // 2


def screened_search(points: Numbers, k: int) -> ScreenedSearch | None:
    """A search of k among points (n, d) by bounds; None where comparing with all costs less.

    Cost: of the preparation, and of some trials.
    """
    n, d = points.shape
    if n < LEAST_POINTS or d < LEAST_COLUMNS or not np.abs(points).max() <= LARGEST / d:
        return None
    made = ScreenedSearch(points)
    return made if made.pays(k) else None


def _leading_axes(centred: Numbers, count: int) -> Numbers:
    """Orthonormal columns (d, count) near the principal axes; any would give true bounds."""
    basis = np.random.default_rng(0).standard_normal((centred.shape[1], count))
    for _ in range(3):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    return basis
