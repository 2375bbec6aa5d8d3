"""Chunk sizes from a memory budget."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpx.backends import row_chunks, row_slices, rows_per_chunk
from gpx.errors import ConfigError


@given(st.integers(0, 500), st.integers(0, 10_000), st.integers(1, 100_000))
def test_chunks_cover_every_row_once_within_the_budget(num_rows, bytes_per_row, budget):
    chunks = list(row_chunks(num_rows, bytes_per_row, budget))
    assert [i for c in chunks for i in range(c.start, c.stop)] == list(range(num_rows))
    for chunk in chunks:
        size = chunk.stop - chunk.start
        assert size == 1 or size * bytes_per_row <= budget
        assert 1 <= size <= rows_per_chunk(num_rows, bytes_per_row, budget)
    sizes = [c.stop - c.start for c in chunks]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="must be positive"):
        rows_per_chunk(10, 8, 0)


def test_slices_cover_all_rows_in_order():
    assert list(row_slices(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(row_slices(0, 3)) == []


def test_a_program_that_is_exported_takes_all_rows_at_once(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert list(row_slices(7, 3)) == [slice(0, 7)]
    assert list(row_chunks(7, 8, 8)) == [slice(0, 7)]
