"""Extreme products against the sorted full list, and at sizes nobody can list."""

from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, NotPositiveDefinite, ShapeError
from gpx.linalg.kronecker import kronecker_vector
from gpx.linalg.kronecker_extremes import kronecker_extremes


def draw(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, generator=generator, dtype=torch.float64) + 1e-3


def flat(found):
    """Positions in the expanded product: Python integers, for a hundred axes pass 64 bits."""
    return [
        reduce(lambda at, step: at * step[1] + step[0], zip(row, found.sizes, strict=True), 0)
        for row in found.index.tolist()
    ]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 400), st.booleans())
def test_equals_the_sorted_list(sizes, count, largest):
    factors = [draw(size, i) for i, size in enumerate(sizes)]
    found = kronecker_extremes(factors, count, largest=largest)
    everything = kronecker_vector(factors).log()
    expected = everything.sort(descending=largest).values[:count]
    torch.testing.assert_close(found.log_values, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(everything[flat(found)], found.log_values, rtol=1e-12, atol=1e-12)
    assert len(set(flat(found))) == len(expected)
    assert found.total == everything.shape[0]


def test_a_hundred_factors_of_a_hundred():
    factors = [draw(100, i) for i in range(100)]
    found = kronecker_extremes(factors, 1000)
    assert found.total == 100**100
    logs = torch.stack([f.log()[found.index[:, i]] for i, f in enumerate(factors)])
    torch.testing.assert_close(found.log_values, logs.sum(0), rtol=1e-12, atol=1e-10)
    assert (found.log_values.diff() <= 0).all()
    best = sum(float(f.log().max()) for f in factors)
    assert found.log_values[0].item() == pytest.approx(best, rel=1e-12)
    assert max(flat(found)) > 2**63


def test_ties_are_reproducible():
    found = kronecker_extremes([torch.ones(3).double(), torch.ones(4).double()], 5)
    assert flat(found) == [0, 1, 2, 3, 4]


def test_the_floor_and_the_errors():
    values = torch.tensor([1.0, -1e-17, 0.5], dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match=r"factor 2 of 2 has entries from -1.00e-17"):
        kronecker_extremes([torch.ones(2).double(), values], 2)
    found = kronecker_extremes([values], 3, floor=1e-12)
    torch.testing.assert_close(found.log_values.exp(), torch.tensor([1.0, 0.5, 1e-12]).double())
    with pytest.raises(ConfigError, match="count is 0"):
        kronecker_extremes([values], 0)
    with pytest.raises(ShapeError, match="vectors"):
        kronecker_extremes([values[:, None]], 1)


def test_infinite_entries_are_refused():
    with pytest.raises(NotPositiveDefinite, match="finite"):
        kronecker_extremes([torch.tensor([1.0, float("inf")]), torch.tensor([1.0, 2.0])], 2)
