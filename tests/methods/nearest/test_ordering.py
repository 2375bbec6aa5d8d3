"""Blocks, their order and their neighbours, against the definitions."""

import pytest
import torch

from gpx.methods.nearest.ordering import (
    blocks,
    conditioning_groups,
    distinct_rows,
    earlier_rows,
    maximin_order,
)


def points(n, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).double()


def test_distinct_rows_keep_their_order():
    x = points(30)
    x[[4, 9, 29, 17]] = x[[2, 2, 2, 16]]
    rows, places = distinct_rows(x)
    assert rows.tolist() == [i for i in range(30) if i not in (4, 9, 17, 29)]
    assert torch.equal(x[rows][places], x)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 257])
@pytest.mark.parametrize("size", [1, 4, 10, 300])
def test_blocks_hold_every_row_once(n, size):
    found = blocks(points(n), size)
    assert sorted(found[found >= 0].tolist()) == list(range(n))
    assert (found >= 0).any(1).all()
    assert found.shape[1] <= max(1, 2 * size)


def test_blocks_are_of_near_rows():
    """On a line of 64 distinct points, 8 blocks of 8 are its 8 stretches."""
    x = torch.randperm(64, generator=torch.Generator().manual_seed(0)).double()[:, None]
    found = x[blocks(x, 8)].squeeze(2)
    assert torch.equal(found.amax(1) - found.amin(1), torch.full((8,), 7.0).double())


def test_points_are_far_from_those_before_them():
    """The least distance to earlier points is within a half of that of exact farthest points."""
    x = points(300, 2)
    order = maximin_order(x)
    assert sorted(order.tolist()) == list(range(300))
    distance = torch.cdist(x, x)
    exact = [int(order[0])]
    for _ in range(299):
        exact.append(int(distance[:, exact].amin(1).argmax()))
    for count in (5, 20, 100, 299):
        least, best = (
            min(float(distance[p[i], p[:i]].min()) for i in range(1, count))
            for p in (order.tolist(), exact)
        )
        assert least >= 0.5 * best


def test_repeated_points_are_all_ordered():
    x = points(5, 2).repeat(20, 1)
    assert sorted(maximin_order(x).tolist()) == list(range(100))


@pytest.mark.parametrize("chunk", [1 << 23, 500])
@pytest.mark.parametrize("size", [1, 5])
def test_each_block_is_given_the_nearest_rows_of_earlier_blocks(size, chunk, monkeypatch):
    monkeypatch.setattr("gpx.methods.nearest.ordering.CHUNK_DISTANCES", chunk)
    x = points(83)
    ordered = blocks(x, size)[maximin_order(torch.arange(len(blocks(x, size))).double()[:, None])]
    found = earlier_rows(x, ordered, 12)
    before = []
    for block, given in zip(ordered, found, strict=True):
        own = block[block >= 0]
        centre = x[own].mean(0)
        nearest = sorted(before, key=lambda row: float((x[row] - centre).norm()))[:12]
        assert given[given >= 0].tolist() == nearest
        before += own.tolist()


@pytest.mark.parametrize("size", [1, 5])
def test_far_from_the_origin_the_groups_are_the_same(size):
    x = (1024.0 * points(300, 2)).round() / 1024.0  # exact beside 2^27
    near, far = (conditioning_groups(x + offset, size, 10) for offset in (0.0, 2.0**27))
    assert torch.equal(far.blocks, near.blocks)
    assert torch.equal(far.given, near.given)


def test_more_neighbours_than_rows():
    given, rows = conditioning_groups(points(9), 1, 50)
    assert given.shape == (9, 8)
    assert rows.shape == (9, 1)
    assert (given >= 0).sum(1).tolist() == list(range(9))
