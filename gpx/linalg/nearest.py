"""Exact nearest neighbours."""

from __future__ import annotations

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from gpx.errors import ShapeError

TREE_DIMENSIONS = 32
"""Up to this many inputs a k-d tree is used: real data fill fewer dimensions than they have."""

CHUNK = 1 << 24
"""Distances held at a time when every pair is compared (128 MiB)."""


def nearest_neighbours(x: Tensor, queries: Tensor, k: int, exclude: Tensor | None = None) -> Tensor:
    """Row numbers of the k nearest points, Euclidean, exact.

    Args:
        x (n, d): points to search in, float64.
        queries (q, d): points to search for.
        k: how many; at most n (n - 1 with ``exclude``), fewer are given where n is smaller.
        exclude (q,): for each query the one row that must not be its neighbour.

    Returns:
        (q, k) row numbers, nearest first. Points at the same distance come in any order, but the
        same order every time.

    Raises:
        ShapeError: different numbers of columns.

    Cost: tree search on a CPU for d <= 32; else O(q n d) time in chunks of 128 MiB.
    """
    if x.shape[1] != queries.shape[1]:
        raise ShapeError(f"points have {x.shape[1]} columns, queries {queries.shape[1]}")
    spare = 0 if exclude is None else 1
    near = NearestSearch(x)(queries, min(k + spare, len(x)))
    if exclude is None:
        return near
    return _without(near, exclude)


class NearestSearch:
    """Points x (n, d) prepared for many searches among them.

    Args:
        x (n, d): points to search in; a tree is made in float64.
        least_tree: points up to which all are compared instead.

    Cost: O(n log n) for a tree, on a CPU for d <= 32; otherwise O(n d).
    """

    def __init__(self, x: Tensor, *, least_tree: int = 0) -> None:
        self._tree: cKDTree | None = None
        if x.shape[1] <= TREE_DIMENSIONS and x.device.type == "cpu" and len(x) > least_tree:
            self._tree = cKDTree(x.double().numpy())
            return
        # |q - x|^2 without |q|^2, which ranks alike; one matrix product per chunk of queries
        self._centre = x.mean(0) if least_tree else None
        self._x = x if self._centre is None else x - self._centre
        self._half_norms = 0.5 * self._x.square().sum(1)

    def __call__(self, queries: Tensor, k: int) -> Tensor:
        """Rows (q, k) of the k nearest points, nearest first; k at most n."""
        if self._tree is not None:
            asked, workers = queries.double().numpy(), torch.get_num_threads()
            _, rows = self._tree.query(asked, k=list(range(1, k + 1)), workers=workers)
            return torch.from_numpy(rows).long()
        if self._centre is not None:
            queries = queries - self._centre
        found = [
            torch.addmm(self._half_norms, chunk, self._x.mT, alpha=-1.0)
            .topk(k, dim=1, largest=False)
            .indices
            for chunk in queries.split(max(1, CHUNK // max(1, len(self._x))))
        ]
        return torch.cat(found) if found else self._x.new_empty(0, k, dtype=torch.long)


def _without(near: Tensor, exclude: Tensor) -> Tensor:
    """Drop one column per row: the excluded row number, or the farthest where it is not there."""
    keep = near != exclude[:, None]
    keep[keep.all(1), -1] = False
    return near[keep].reshape(len(near), near.shape[1] - 1)
