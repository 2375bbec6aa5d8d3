"""Pivoted Cholesky: the textbook algorithm, its bounds, early stopping."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, NotPositiveDefinite, ShapeError
from gpx.linalg import pivoted_cholesky


def textbook(matrix, rank):
    """One pivot at a time, ties to the lowest index."""
    residual = matrix.diagonal().clone()
    rows, pivots = [], []
    for _ in range(rank):
        pivot = int(torch.argmax(residual))
        row = matrix[pivot].clone()
        for other in rows:
            row -= other[pivot] * other
        row = row / residual[pivot].sqrt()
        rows.append(row)
        pivots.append(pivot)
        residual = (residual - row.square()).clamp(min=0)
        residual[pivots] = 0
    return torch.stack(rows), pivots, residual


def matrix(n, lengthscale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return (-torch.cdist(x, x) / lengthscale).exp()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 150),
    fraction=st.floats(0.0, 1.0),
    lengthscale=st.floats(0.05, 20.0),
    seed=st.integers(0, 1000),
)
def test_it_is_the_textbook_algorithm(n, fraction, lengthscale, seed):
    rank = max(1, round(fraction * n))
    dense = matrix(n, lengthscale, seed)
    found = pivoted_cholesky(lambda i: dense[i], dense.diagonal(), rank)
    factor, pivots, residual = textbook(dense, rank)
    assert found.pivots.tolist() == pivots
    torch.testing.assert_close(found.factor, factor, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.residual, residual, rtol=1e-7, atol=1e-9)


def test_residual_factor_and_pivots_belong_together():
    dense = matrix(120, 2.0)
    found = pivoted_cholesky(lambda i: dense[i], dense.diagonal(), 70)
    gap = (dense - found.factor.mT @ found.factor).diagonal()
    torch.testing.assert_close(found.residual, gap, rtol=0, atol=1e-12)
    triangle = found.factor[:, found.pivots]
    assert torch.equal(triangle, triangle.triu())
    square = dense[found.pivots][:, found.pivots]
    torch.testing.assert_close(triangle.mT @ triangle, square, rtol=0, atol=1e-12)


def test_full_rank_reproduces_the_matrix():
    dense = matrix(40, 1.0)
    found = pivoted_cholesky(lambda i: dense[i], dense.diagonal(), 40)
    torch.testing.assert_close(found.factor.mT @ found.factor, dense, rtol=0, atol=1e-13)
    assert float(found.residual.abs().max()) == 0.0


def test_it_stops_where_the_rank_ends_and_at_the_tolerance():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    linear = x @ x.mT
    found = pivoted_cholesky(lambda i: linear[i], linear.diagonal(), 20)
    assert found.pivots.shape == (3,)
    assert found.factor.shape == (3, 50)
    dense = matrix(80, 3.0)
    whole = pivoted_cholesky(lambda i: dense[i], dense.diagonal(), 80)
    part = pivoted_cholesky(lambda i: dense[i], dense.diagonal(), 80, tolerance=5.0)
    assert 0 < part.pivots.numel() < 80
    assert float(part.residual.sum()) <= 5.0
    shorter = pivoted_cholesky(lambda i: dense[i], dense.diagonal(), part.pivots.numel() - 1)
    assert float(shorter.residual.sum()) > 5.0
    assert part.pivots.tolist() == whole.pivots[: part.pivots.numel()].tolist()


def test_rows_are_asked_for_in_blocks_and_rarely_in_vain():
    dense = matrix(400, 0.5)
    asked = []

    def rows(indices):
        asked.append(indices.numel())
        return dense[indices]

    pivoted_cholesky(rows, dense.diagonal(), 100)
    assert max(asked) <= 64
    assert len(asked) < 60
    assert sum(asked) < 300


@pytest.mark.parametrize("rank", [0, 1])
def test_trivial_ranks(rank):
    dense = matrix(5, 1.0)
    found = pivoted_cholesky(lambda i: dense[i], dense.diagonal(), rank)
    assert found.factor.shape == (rank, 5)
    assert found.pivots.tolist() == [0][:rank]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_named(value):
    dense = matrix(30, 1.0)
    broken = dense.clone()
    broken[3, 4] = broken[4, 3] = value
    with pytest.raises(NotPositiveDefinite, match="rows hold NaN"):
        pivoted_cholesky(lambda i: broken[i], dense.diagonal(), 30)
    diagonal = dense.diagonal().clone()
    diagonal[7] = value
    with pytest.raises(NotPositiveDefinite, match="finite and not negative"):
        pivoted_cholesky(lambda i: dense[i], diagonal, 5)


def test_negative_variances_and_wrong_shapes_are_refused():
    dense = matrix(10, 1.0)
    diagonal = dense.diagonal().clone()
    diagonal[2] = -0.5
    with pytest.raises(NotPositiveDefinite, match=r"from -0\.5 to 1"):
        pivoted_cholesky(lambda i: dense[i], diagonal, 5)
    with pytest.raises(ShapeError, match=r"rows returned \(10, 4\)"):
        pivoted_cholesky(lambda i: dense[:, i], dense.diagonal(), 4)
    with pytest.raises(ShapeError, match="must be"):
        pivoted_cholesky(lambda i: dense[i], dense, 4)


def test_a_negative_rank_is_refused():
    matrix = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ConfigError, match="got -1"):
        pivoted_cholesky(lambda i: matrix[i], matrix.diagonal(), -1)


def test_indefinite_matrices_are_refused():
    """The textbook's clamp would call [[1, 5], [5, 1]] a covariance of rank one."""
    wrong = torch.tensor([[1.0, 5.0], [5.0, 1.0]], dtype=torch.float64)
    late = torch.eye(2, dtype=torch.float64)
    late[0, 1] = float("nan")  # seen only once the last pivot has been taken
    for matrix, rank in ((wrong, 1), (wrong, 2), (late, 1)):
        with pytest.raises(NotPositiveDefinite, match="indefinite"):
            pivoted_cholesky(lambda i, k=matrix: k[i], torch.ones(2).double(), rank)


def test_rows_that_are_not_finite_are_named():
    covariance = matrix(30, 1.0)
    covariance[:, 3] = covariance[3] = torch.nan
    covariance[3, 3] = 1.0
    with pytest.raises(NotPositiveDefinite, match="residual variance became nan after 1 pivots"):
        pivoted_cholesky(lambda i: covariance[i], torch.ones(30, dtype=torch.float64), 5)
