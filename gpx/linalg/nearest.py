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
    wanted = min(k + spare, len(x))
    if x.shape[1] <= TREE_DIMENSIONS and x.device.type == "cpu":
        near = _tree(x, queries, wanted)
    else:
        near = _pairs(x, queries, wanted)
    if exclude is None:
        return near
    return _without(near, exclude)


def _tree(x: Tensor, queries: Tensor, k: int) -> Tensor:
    tree = cKDTree(x.numpy())
    _, rows = tree.query(queries.numpy(), k=list(range(1, k + 1)), workers=torch.get_num_threads())
    return torch.from_numpy(rows).long()


def _pairs(x: Tensor, queries: Tensor, k: int) -> Tensor:
    # |q - x|^2 without |q|^2, which ranks alike; one matrix product per chunk of queries
    half_norms = 0.5 * x.square().sum(1)
    rows = max(1, CHUNK // len(x))
    found = [
        torch.addmm(half_norms, chunk, x.mT, alpha=-1.0).topk(k, dim=1, largest=False).indices
        for chunk in queries.split(rows)
    ]
    return torch.cat(found) if found else half_norms.new_empty(0, k, dtype=torch.long)


def _without(near: Tensor, exclude: Tensor) -> Tensor:
    """Drop one column per row: the excluded row number, or the farthest where it is not there."""
    keep = near != exclude[:, None]
    keep[keep.all(1), -1] = False
    return near[keep].reshape(len(near), near.shape[1] - 1)
