"""The nearest neighbours of one query by bounds: always those of a sort of all distances."""

from __future__ import annotations

import numpy as np
import pytest

from gpx.linalg import screened_nearest
from gpx.linalg.screened_nearest import ScreenedSearch, screened_search

POINTS, COLUMNS = 500, 160


def images(rows: int, seed: int = 0) -> np.ndarray:
    """Points whose leading principal coordinates carry most of their distances."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(7).standard_normal((COLUMNS, COLUMNS)))[0]
    return (rng.standard_normal((rows, COLUMNS)) * 0.8 ** np.arange(COLUMNS)) @ turn


def sorted_rows(x: np.ndarray, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    gap = x - query
    squares = np.einsum("nd,nd->n", gap, gap)
    rows = squares.argsort(kind="stable")[:k]
    return rows, squares[rows]


def agrees(x: np.ndarray, queries: np.ndarray, k: int) -> None:
    search = screened_search(x, k)
    assert search is not None
    answered = 0
    for query in queries:
        found = search.search_one(query, k)
        rows, squares = sorted_rows(x, query, k)
        if found is not None:
            answered += 1
            assert np.array_equal(found[0], rows)
            np.testing.assert_array_equal(found[1], squares)
    assert answered > len(queries) // 2


@pytest.mark.parametrize("k", [1, 4, 20])
def test_agrees_with_sorting_all_distances(k) -> None:
    agrees(images(POINTS), images(60, seed=1), k)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_in_any_unit(scale) -> None:
    agrees(scale * images(POINTS), scale * images(30, seed=1), 4)


def test_far_from_the_origin() -> None:
    agrees(1e6 + images(POINTS), 1e6 + images(30, seed=1), 4)


def test_of_single_precision() -> None:
    x, queries = (
        images(n, seed).astype(np.float32).astype(float) for n, seed in ((500, 0), (30, 1))
    )
    agrees(x, queries, 4)


def test_with_constant_columns_and_repeated_points() -> None:
    x, queries = images(POINTS), images(30, seed=1)
    x[:, 100:] = queries[:, 100:] = 3.0
    x[250:] = x[:250]  # every point twice: the first of the two comes first
    agrees(x, queries, 4)
    agrees(x, x[:30], 4)  # at a distance of zero


def test_points_at_the_same_distance_come_in_the_order_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    few = rng.integers(0, 3, size=(POINTS, 6)).astype(float)  # whole numbers: ties are exact
    x = np.concatenate([few, np.zeros((POINTS, COLUMNS - 6))], 1)
    queries = np.concatenate([rng.integers(0, 3, size=(30, 6)), np.zeros((30, COLUMNS - 6))], 1)
    search = ScreenedSearch(x)
    search._limit = POINTS
    tied = 0
    for query in queries.astype(float):
        found = search.search_one(query, 4)
        rows, squares = sorted_rows(x, query, 5)
        assert found is not None
        assert np.array_equal(found[0], rows[:4])
        tied += int(squares[3] == squares[4])
    assert tied > 15


@pytest.mark.parametrize("kind", ["noise", "images", "near a plane"])
def test_no_bound_is_above_the_distance_and_what_they_leave_in_doubt_is_compared(kind) -> None:
    rng = np.random.default_rng(0)
    x = {
        "noise": rng.standard_normal((POINTS, COLUMNS)),
        "images": images(POINTS),
        # what the leading coordinates leave is below the rounding of float32
        "near a plane": images(POINTS, 1)[:, :5] @ rng.standard_normal((5, COLUMNS))
        + 1e-5 * rng.standard_normal((POINTS, COLUMNS)),
    }[kind]
    search = ScreenedSearch(x[:-30])
    search._limit = POINTS  # every point may be admitted
    for query in x[-30:]:
        found = search.search_one(query, 4)
        assert found is not None
        assert np.array_equal(found[0], sorted_rows(x[:-30], query, 4)[0])


def test_not_used_where_it_does_not_pay() -> None:
    noise = np.random.default_rng(0).standard_normal((POINTS, COLUMNS))
    assert screened_search(noise, 4) is None
    assert ScreenedSearch(noise).search_one(noise[0] + 0.1, 4) is None
    assert screened_search(images(POINTS)[:, :100], 4) is None
    assert screened_search(images(200), 4) is None
    assert screened_search(images(POINTS), 40) is None
    assert screened_search(np.ones((POINTS, COLUMNS)), 4) is None
    assert screened_search(1e30 * images(POINTS), 4) is None
    assert screened_search(1e-30 * images(POINTS), 4) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_a_query_that_float32_does_not_hold_is_left_to_others(value) -> None:
    search = screened_search(images(POINTS), 4)
    assert search is not None
    query = images(1)[0]
    query[3] = value
    assert search.search_one(query, 4) is None


def test_few_of_many_distances_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    search = screened_search(images(POINTS), 4)
    assert search is not None
    counts: list[int] = []
    whole = screened_nearest.ScreenedSearch._distances

    def counted(self: ScreenedSearch, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        counts.append(len(rows))
        return whole(self, query, rows)

    monkeypatch.setattr(screened_nearest.ScreenedSearch, "_distances", counted)
    for query in images(50, seed=1):
        search.search_one(query, 4)
    assert sum(counts) < 50 * POINTS / 16
