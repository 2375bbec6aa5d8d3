"""Exact nearest neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from gpx.errors import ShapeError

TREE_DIMENSIONS = 32
"""A k-d tree is used up to this many inputs: the data's intrinsic dimension is usually smaller."""

CHUNK_ENTRIES = 1 << 20
"""Distances held at a time when every pair is compared: 4 MiB in float32."""

FARTHEST = 1e150
"""Coordinates of queries are clipped to this in a tree: squared distances must not overflow."""

MAX_SINGLE_PASS_SCORES = 1 << 13
"""Up to this many scores are ranked in one call; two stages take some ten calls."""

MAX_STRIDE, MIN_STRIDE = 32, 8
"""Range of the number of columns that one first-stage minimum covers."""

MAX_ARGMIN_PASSES = 8
"""Up to this many smallest scores of a row are found one by one, each by a pass over the row."""


def nearest_neighbours(x: Tensor, queries: Tensor, k: int, exclude: Tensor | None = None) -> Tensor:
    """Row numbers of the k nearest points, Euclidean, exact.

    Args:
        x (n, d): points to search in, float64.
        queries (q, d): points to search for.
        k: number of neighbours; all points (without ``exclude``'s) where there are fewer.
        exclude (q,): for each query the one row that must not be its neighbour.

    Returns:
        (q, k) row numbers, nearest first; the order of ties is arbitrary but reproducible.

    Raises:
        ShapeError: different numbers of columns.

    Cost: tree search on a CPU for d <= 32; else O(q n d) time in chunks of 8 MiB.
    """
    spare = 0 if exclude is None else 1
    near = NearestSearch(x)(queries, min(k + spare, len(x)))
    if exclude is None:
        return near
    return _drop_excluded(near, exclude)


class NearestSearch:
    """Points x (n, d) prepared for many searches among them.

    Args:
        x (n, d): points to search in; a tree is made in float64.
        max_brute_force: up to this many points no tree is made and all are compared.

    Cost: O(n log n) for a tree, on a CPU for d <= 32; otherwise O(n d).
    """

    def __init__(self, x: Tensor, *, max_brute_force: int = 0) -> None:
        self._points = x
        self._tree: cKDTree | None = None
        if torch.compiler.is_exporting():  # an exported program cannot hold a tree
            return
        if x.shape[1] <= TREE_DIMENSIONS and x.device.type == "cpu" and len(x) > max_brute_force:
            self._tree = cKDTree(x.double().numpy())
            return
        # |x|^2 / 2 - q^T x ranks points like |q - x|^2 and is one matrix product per chunk of
        # queries (with a column of ones); centred at the points' mean, since far from the origin
        # the two terms would nearly cancel
        self._centre = x.mean(0)
        centred = x - self._centre
        half_norms = 0.5 * centred.square().sum(1, keepdim=True)
        self._products = torch.cat([-centred, half_norms], 1).mT.contiguous()  # (d + 1, n)
        if x.device.type == "cpu":
            products = self._products.numpy()
            self._arrays = self._centre.numpy(), products[:-1], products[-1]

    @property
    def has_tree(self) -> bool:
        """Whether it searches in a tree; otherwise it compares with all points."""
        return self._tree is not None

    def __call__(self, queries: Tensor, k: int) -> Tensor:
        """Rows (q, k) of the k nearest points, nearest first; k at most n.

        For a query with NaN the rows are arbitrary.

        Raises:
            ShapeError: another number of columns than the points have.
        """
        if queries.shape[1] != self._points.shape[1]:
            raise ShapeError(
                f"points have {self._points.shape[1]} columns, queries {queries.shape[1]}"
            )
        if torch.compiler.is_exporting():
            return self._compare_all(queries, k)
        if self._tree is not None:
            asked, workers = queries.double().numpy(), torch.get_num_threads()
            return torch.from_numpy(_in_tree(self._tree, asked, k, workers)).long()
        if len(queries) == 1 and queries.device.type == "cpu":
            return torch.from_numpy(self.search_one(queries.numpy()[0], k)[None])
        queries = queries - self._centre
        queries = torch.cat([queries, queries.new_ones(len(queries), 1)], 1)
        size = self._products.shape[1]
        found = [
            smallest_columns(chunk @ self._products, k)
            for chunk in queries.split(max(1, CHUNK_ENTRIES // max(1, size)))
        ]
        return torch.cat(found) if found else queries.new_empty(0, k, dtype=torch.long)

    def _compare_all(self, queries: Tensor, k: int) -> Tensor:
        """The same by comparison with all points, in operations that can be exported."""
        exactly = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(queries, self._points, compute_mode=exactly)
        return distances.topk(k, dim=1, largest=False).indices

    def search_one(self, query: NDArray[Any], k: int) -> NDArray[np.int64]:
        """Rows (k,) of the points nearest to one query (d,), on a CPU.

        In numpy, because the overhead of torch calls would dominate.
        """
        if self._tree is not None:
            return np.asarray(_in_tree(self._tree, query, k), dtype=np.int64)
        centre, points, half_norms = self._arrays
        scores = (query - centre) @ points
        scores += half_norms
        near = scores.argpartition(k - 1)[:k]
        return near[scores[near].argsort(kind="stable")]


def _in_tree(tree: cKDTree, asked: NDArray[Any], k: int, workers: int = 1) -> NDArray[Any]:
    """Rows of the k nearest points: (q, k), or (k,) for one query (d,)."""
    if not np.abs(asked).max(initial=0.0) <= FARTHEST:
        # SciPy refuses infinities and NaN, and gives row n where a distance overflows
        asked = np.nan_to_num(np.clip(asked, -FARTHEST, FARTHEST))
    _, rows = tree.query(asked, k=list(range(1, k + 1)), workers=workers)
    return rows


@torch.no_grad()
def smallest_columns(scores: Tensor, k: int) -> Tensor:
    """Columns of the k smallest scores of every row: (q, n) -> (q, k), the smallest first.

    The order of ties is arbitrary but reproducible. For a row with NaN the columns are arbitrary.

    Long rows are ranked in two stages on a CPU: the minimum of every group of ``b`` columns, the k
    groups with the smallest minima, and the k smallest scores within these. Exact: a score outside
    those groups has k minima at or below it.

    Args:
        k: at most n.

    Cost: one pass over the scores, and a selection among n / b + k b of every row.
    """
    q, n = scores.shape
    if scores.device.type != "cpu" or scores.numel() <= MAX_SINGLE_PASS_SCORES or not k:
        return scores.topk(k, dim=1, largest=False).indices
    stride = 2 ** min(int(math.log2(math.sqrt(n / k))), int(math.log2(MAX_STRIDE)))
    columns: Tensor | None = None
    if stride >= MIN_STRIDE:
        # column c belongs to group c mod w, so that a minimum is taken of whole vectors
        width = n // stride
        minima = scores[:, : width * stride].unflatten(1, (stride, width)).amin(1)
        groups = _k_smallest(minima, k)
        columns = (groups.unsqueeze(1) + width * torch.arange(stride)[:, None]).flatten(1)
        rest = torch.arange(width * stride, n).expand(q, -1)
        columns = torch.cat([columns, rest], 1) if rest.shape[1] else columns
        scores = scores.gather(1, columns)
    chosen = _k_smallest(scores, k)
    if k > MAX_ARGMIN_PASSES:
        chosen = chosen.gather(1, scores.gather(1, chosen).argsort(dim=1, stable=True))
    return chosen if columns is None else columns.gather(1, chosen)


def _k_smallest(scores: Tensor, k: int) -> Tensor:
    """Columns of the k smallest of every row; sorted up to ``MAX_ARGMIN_PASSES``, else unordered.

    Numpy's argmin and argpartition are several times faster than torch's.
    """
    if k > MAX_ARGMIN_PASSES:
        if k >= scores.shape[1]:
            return torch.arange(scores.shape[1]).expand(len(scores), -1)
        return torch.from_numpy(np.argpartition(scores.numpy(), k - 1, axis=1)[:, :k])
    # the smallest by vector instructions, k times; scores are clipped to finite values, so that a
    # column already taken, set to inf, is never taken again
    left = np.fmin(scores.numpy(), torch.finfo(scores.dtype).max)
    rows, found = np.arange(len(left)), np.empty((len(left), k), np.int64)
    for place in range(k):
        found[:, place] = left.argmin(1)
        left[rows, found[:, place]] = np.inf
    return torch.from_numpy(found)


def _drop_excluded(near: Tensor, exclude: Tensor) -> Tensor:
    """Drop one column per row: the excluded row number, or the farthest where it is not there."""
    keep = near != exclude[:, None]
    keep[keep.all(1), -1] = False
    return near[keep].reshape(len(near), near.shape[1] - 1)
