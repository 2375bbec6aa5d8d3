"""Tilings cover what they should; groups run everywhere and fail loudly."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpx.backends.tiles import run_groups, tiling

SIZES = st.integers(0, 40)


@given(SIZES, SIZES, st.integers(1, 300), st.booleans(), st.integers(1, 5))
def test_tiles_cover_a_matrix_once_within_the_size(n1, n2, entries, disjoint_rows, groups):
    plan = tiling((n1, n2), entries, triangle=False, disjoint_rows=disjoint_rows, groups=groups)
    seen = torch.zeros(n1, n2)
    for group in plan.groups:
        for rows, columns in group:
            assert 0 < (rows.stop - rows.start) * (columns.stop - columns.start) <= plan.size
            seen[rows, columns] += 1
    assert (seen == 1).all()
    assert plan.size <= entries
    assert len(plan.groups) <= groups


@given(SIZES, st.integers(1, 300), st.integers(1, 5))
def test_triangular_tiles_cover_every_pair_once(n, entries, groups):
    plan = tiling((n, n), entries, triangle=True, groups=groups)
    seen = torch.zeros(n, n)
    for group in plan.groups:
        for rows, columns in group:
            assert (rows.stop - rows.start) * (columns.stop - columns.start) <= plan.size
            seen[rows, columns] += 1
            if rows != columns:
                assert rows.stop <= columns.start
                seen[columns, rows] += 1
    assert (seen == 1).all()


@given(st.integers(1, 40), SIZES, st.integers(1, 300))
def test_owned_groups_share_no_rows(n1, n2, entries):
    plan = tiling((n1, n2), entries, triangle=False, disjoint_rows=True)
    owner = {}
    for g, group in enumerate(plan.groups):
        for rows, _ in group:
            assert all(owner.setdefault(i, g) == g for i in range(rows.start, rows.stop))


def test_the_diagonal_of_every_triangular_tile_is_the_matrix_diagonal():
    for group in tiling((23, 23), 30, triangle=True).groups:
        for rows, columns in group:
            assert rows == columns or rows.stop <= columns.start


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_groups_come_back_in_order_from_single_threaded_workers(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = run_groups(
            lambda g: (g, torch.get_num_threads(), torch.is_grad_enabled()), 5, threads=threads
        )
        assert [g for g, _, _ in found] == list(range(5))
        if threads > 1:
            assert {(n, grad) for _, n, grad in found} == {(1, False)}
        assert torch.get_num_threads() == 3
        later = []
        other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert later == [3]
    finally:
        torch.set_num_threads(before)


def test_a_failure_in_a_thread_is_the_callers():
    def work(g):
        if g == 3:
            raise ValueError("tile 3")
        return g

    with pytest.raises(ValueError, match="tile 3"):
        run_groups(work, 6, threads=2)
    assert run_groups(lambda g: g, 0, threads=2) == []


def test_inference_mode_reaches_the_threads():
    with torch.inference_mode():
        made = run_groups(lambda g: torch.zeros(2), 4, threads=2)
    assert all(t.is_inference() for t in made)
