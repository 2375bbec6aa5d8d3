"""Blocks of nearby rows in maximin order, and the nearest rows of earlier blocks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.linalg.nearest import smallest_columns

CHUNK_DISTANCES = 1 << 23
"""Distances in memory at a time (64 MiB in float64)."""

MAX_ROUND_POINTS = 1024
"""Most points that a round of the maximin ordering adds; it compares all their pairs."""


def blocks(x: Tensor, size: int) -> Tensor:
    """Partition the rows of x into blocks of about ``size`` nearby rows, by recursive bisection.

    Args:
        x (n, d): n at least one.
        size: 1 makes every row a block.

    Returns:
        (B, s): row indices, every row once, padded with -1.

    Cost: O(n log n) per bisection level, log2(n / size) levels.
    """
    n = x.shape[0]
    if size <= 1:
        return torch.arange(n, device=x.device)[:, None]
    halvings = max(0, round(math.log2(n / size)))
    count = 2**halvings
    width = -(-n // count)
    # pad with copies of evenly spaced rows, which are removed at the end
    copies = torch.linspace(0, n - 1, count * width - n, device=x.device).long() + n
    rows = torch.cat([torch.arange(n, device=x.device), copies])[None]
    for _ in range(halvings):
        points = x[rows % n]
        widest = (points.amax(1) - points.amin(1)).argmax(1)
        along = points.gather(2, widest[:, None, None].expand(-1, points.shape[1], 1)).squeeze(2)
        rows = rows.gather(1, along.argsort(dim=1, stable=True)).view(2 * len(rows), -1)
    rows = rows.masked_fill(rows >= n, -1)
    return rows[(rows >= 0).any(1)]


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (m,) of the distinct rows of x in order, and the index (n,) of each row among them.

    Returns:
        rows (m,) and places (n,) such that x[rows][places] equals x.

    Cost: O(n log n) comparisons of rows.
    """
    _, kind = x.unique(dim=0, return_inverse=True)
    n, numbers = len(x), torch.arange(len(x), device=x.device)
    first = torch.full((int(kind.max()) + 1,), n, device=x.device)
    first = first.scatter_reduce_(0, kind, numbers, "amin")
    rows, rank = first.sort()
    return rows, torch.empty_like(rank).index_copy_(0, rank, numbers[: len(rows)])[kind]


def maximin_order(points: Tensor) -> Tensor:
    """Approximate maximin order (m,): every point is about as far as possible from all before it.

    Points are added in rounds. The candidates of a round are the points farthest from all before,
    half as many as there are points so far. A candidate is added unless a farther candidate lies
    within the smallest distance of the candidates, so that the points of a round are at least that
    far from each other and from all before.

    Cost: O(m^2 d), in rounds of at most ``MAX_ROUND_POINTS`` points.
    Source: Guinness 2018 (maximin ordering); Katzfuss and Guinness 2021.
    """
    m = points.shape[0]
    points = points - points.mean(0)  # distances from products lose digits far from the origin
    first = points.square().sum(1).argmin()  # the most central point
    order, found = [first[None]], 1
    distance = (points - points[first]).square().sum(1)
    distance[first] = -1.0
    while found < m:
        wanted = min(max(1, found // 2), m - found, MAX_ROUND_POINTS)
        far, candidates = distance.topk(wanted)
        gaps = torch.cdist(points[candidates], points[candidates]).square()
        crowded = (gaps < far[-1]).tril(-1).any(1)
        chosen = candidates[~crowded]
        order.append(chosen)
        found += len(chosen)
        for rows in row_slices(m, max(1, CHUNK_DISTANCES // len(chosen))):
            near = torch.cdist(points[rows], points[chosen]).square().amin(1)
            distance[rows] = torch.minimum(distance[rows], near)
        distance[chosen] = -1.0
    return torch.cat(order)


def earlier_rows(x: Tensor, ordered: Tensor, count: int) -> Tensor:
    """For each block, the ``count`` rows of earlier blocks that are nearest to its centre.

    Args:
        x (n, d), ordered (B, s): rows, and ``blocks`` in order.
        count: k.

    Returns:
        (B, k): row indices, padded with -1.

    Cost: O(B n d) operations, in chunks.
    """
    x = x - x.mean(0)  # distances from products lose digits far from the origin
    there = ordered >= 0
    flat = ordered[there]
    members = there.sum(1)
    ends = members.cumsum(0)  # rows of this block and of earlier ones
    centres = torch.where(there.unsqueeze(2), x[ordered.clamp_min(0)], 0.0).sum(1)
    centres = centres / members.unsqueeze(1)
    points = x[flat]
    half_norms = 0.5 * points.square().sum(1)
    place = torch.arange(len(flat), device=x.device)
    found = []
    for part in torch.arange(len(ordered), device=x.device).split(
        max(1, CHUNK_DISTANCES // len(flat))
    ):
        last = int(ends[part[-1]] - members[part[-1]])  # rows before the last block of the part
        near = torch.full((len(part), count), -1, dtype=torch.long, device=x.device)
        if last:
            gap = torch.addmm(half_norms[:last], centres[part], points[:last].mT, alpha=-1.0)
            later = place[:last] >= (ends - members)[part].unsqueeze(1)
            gap.masked_fill_(later, torch.inf)
            columns = smallest_columns(gap, min(count, last))
            missing = gap.gather(1, columns).isinf()
            near[:, : columns.shape[1]] = flat[columns].masked_fill(missing, -1)
        found.append(near)
    return torch.cat(found)


class Groups(NamedTuple):
    """Row indices, padded with -1.

    Attributes:
        given (B, k): rows of earlier blocks that a block conditions on.
        blocks (B, s): every row once.
    """

    given: Tensor
    blocks: Tensor


def conditioning_groups(x: Tensor, block_size: int, count: int) -> Groups:
    """Blocks in maximin order, and the earlier rows nearest to each.

    Args:
        x (n, d): coordinates in which nearby rows are strongly correlated.
        block_size, count: approximate s, and k.

    Returns:
        blocks and the rows they condition on; prod_b p(y_b | y_given) is a density of all rows.

    Cost: see ``maximin_order`` and ``earlier_rows``; n^2 / s distances.
    """
    rows = blocks(x, block_size)
    there = (rows >= 0).unsqueeze(2)
    centres = torch.where(there, x[rows.clamp_min(0)], 0.0).sum(1) / there.sum(1)
    rows = rows[maximin_order(centres)]
    return Groups(earlier_rows(x, rows, min(count, max(1, len(x) - 1))), rows)
