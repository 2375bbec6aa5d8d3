from __future__ import annotations

import pytest
import torch

from gpx.errors import ShapeError
from gpx.linalg import nearest

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("d", [1, 8, nearest.TREE_DIMENSIONS, nearest.TREE_DIMENSIONS + 1, 60])
def test_agrees_with_sorting_all_distances(
    d: int, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "CHUNK_ENTRIES", 1000)  # several chunks of queries
    x = offset + torch.randn(300, d, generator=GENERATOR, dtype=torch.float64)
    queries = offset + torch.randn(40, d, generator=GENERATOR, dtype=torch.float64)
    expected = (queries[:, None] - x).square().sum(-1).argsort(1)[:, :4]
    assert torch.equal(nearest.nearest_neighbours(x, queries, 4), expected)


@pytest.mark.parametrize("d", [2, 60])
def test_excluded_rows_are_not_their_own_neighbours(d: int) -> None:
    x = torch.randn(200, d, generator=GENERATOR, dtype=torch.float64)
    x[7] = x[8] = x[9] = x[6]  # repeats: the excluded row need not come first
    rows = torch.arange(0, 20)
    near = nearest.nearest_neighbours(x, x[rows], 3, exclude=rows)
    assert near.shape == (20, 3)
    assert not (near == rows[:, None]).any()
    assert set(near[7].tolist()) == {6, 8, 9}
    distance = (x[rows][:, None] - x).square().sum(-1)
    distance[rows, rows] = torch.inf
    expected = distance.gather(1, distance.argsort(1)[:, :3])
    torch.testing.assert_close(distance.gather(1, near), expected)


def test_fewer_points_than_neighbours() -> None:
    x = torch.arange(3, dtype=torch.float64)[:, None]
    assert nearest.nearest_neighbours(x, x[:1], 5).tolist() == [[0, 1, 2]]
    assert nearest.nearest_neighbours(x, x[:1], 5, exclude=torch.tensor([0])).tolist() == [[1, 2]]


def test_columns_must_agree() -> None:
    with pytest.raises(ShapeError, match="points have 2 columns, queries 3"):
        nearest.nearest_neighbours(torch.zeros(4, 2), torch.zeros(1, 3), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "columns", "k"),
    [(1, 9000, 5), (30, 1024, 4), (30, 1003, 1), (9, 1003, 16), (40, 300, 299), (40, 300, 300)],
)
def test_smallest_columns_are_those_of_a_sort(rows, columns, k, dtype) -> None:
    scores = torch.randn(rows, columns, generator=GENERATOR, dtype=dtype)
    scores[0, : columns // 2] = -torch.inf if k < 300 else 0.0
    found = nearest.smallest_columns(scores, k)
    torch.testing.assert_close(scores.gather(1, found), scores.sort(1).values[:, :k])
    assert all(len(row.unique()) == k for row in found)


def test_smallest_columns_that_crowd_into_one_group_or_lie_in_the_rest() -> None:
    columns, k = 1027, 4  # groups of 16 are the columns with one remainder by 64; 3 are left over
    scores = torch.rand(20, columns, generator=GENERATOR, dtype=torch.float64)
    scores[:, [5, 69, 133, 197]] -= 2.0
    scores[10:, 1024:] -= 3.0
    found = nearest.smallest_columns(scores, k)
    assert torch.equal(found, scores.argsort(1)[:, :k])


@pytest.mark.parametrize("k", [3, 20])
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_smallest_columns_are_different_ones_where_scores_are_no_numbers(k, bad) -> None:
    scores = torch.full((40, 1024), bad, dtype=torch.float64)
    scores[:, 0], scores[:, 70] = 1.0, 0.5
    found = nearest.smallest_columns(scores, k)
    assert all(len(row.unique()) == k for row in found)
    if bad == torch.inf:
        assert torch.equal(found[:, :2], torch.tensor([[70, 0]]).expand(40, 2))


@pytest.mark.parametrize("max_brute_force", [0, 1000])
def test_one_query_finds_what_many_find(max_brute_force) -> None:
    x = 5.0 + torch.randn(500, 6, generator=GENERATOR, dtype=torch.float64)
    search = nearest.NearestSearch(x, max_brute_force=max_brute_force)
    queries = 5.0 + torch.randn(30, 6, generator=GENERATOR, dtype=torch.float64)
    together = search(queries, 7)
    assert torch.equal(torch.cat([search(row, 7) for row in queries.split(1)]), together)
    assert search(queries[:0], 7).shape == (0, 7)
