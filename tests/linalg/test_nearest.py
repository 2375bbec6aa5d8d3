from __future__ import annotations

import pytest
import torch

from gpx.errors import ShapeError
from gpx.linalg import nearest

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("d", [1, 8, nearest.TREE_DIMENSIONS, nearest.TREE_DIMENSIONS + 1, 60])
def test_agrees_with_sorting_all_distances(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "CHUNK", 1000)  # several chunks of queries
    x = torch.randn(300, d, generator=GENERATOR, dtype=torch.float64)
    queries = torch.randn(40, d, generator=GENERATOR, dtype=torch.float64)
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
