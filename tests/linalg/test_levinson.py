"""Durbin and Gohberg-Semencul against dense algebra."""

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import DidNotConverge, NotPositiveDefinite, ShapeError
from gpx.linalg import durbin, levinson, toeplitz_logdet, toeplitz_solve
from gpx.linalg.levinson import inverse_diagonal_sums


def kernel_column(m, lengthscale=5.0, noise=0.1, dtype=torch.float64):
    lags = torch.arange(m, dtype=dtype)
    column = torch.exp(-0.5 * (lags / lengthscale) ** 2)
    column[0] += noise
    return column


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.floats(0.2, 20.0), st.floats(1e-3, 1.0))
def test_durbin_against_dense(m, lengthscale, noise):
    column = kernel_column(m, lengthscale, noise)
    dense = torch.tensor(scipy.linalg.toeplitz(column))
    logdet, first = durbin(column)
    torch.testing.assert_close(logdet, torch.logdet(dense), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(first, dense.inverse()[:, 0], rtol=1e-7, atol=1e-7)
    sums = [dense.inverse().diagonal(j).sum() for j in range(m)]
    torch.testing.assert_close(
        inverse_diagonal_sums(first), torch.stack(sums), rtol=1e-6, atol=1e-6 / noise
    )


def test_batches():
    columns = torch.stack([kernel_column(17, s) for s in (1.0, 3.0, 9.0)]).view(3, 1, 17)
    right = torch.randn(2, 17, 4, dtype=torch.float64)
    logdet, _ = durbin(columns)
    solution = toeplitz_solve(columns, right)
    assert logdet.shape == (3, 1)
    assert solution.shape == (3, 2, 17, 4)
    for i in range(3):
        dense = torch.tensor(scipy.linalg.toeplitz(columns[i, 0]))
        torch.testing.assert_close(logdet[i, 0], torch.logdet(dense))
        torch.testing.assert_close(solution[i], torch.linalg.solve(dense, right))


def test_gradient_of_the_logdet():
    column = kernel_column(12, 2.0, 0.3).requires_grad_()
    assert torch.autograd.gradcheck(toeplitz_logdet, (column,))
    batch = torch.stack([column.detach(), 2 * column.detach()]).requires_grad_()
    assert torch.autograd.gradcheck(toeplitz_logdet, (batch,))


@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-8])
def test_refined_solutions_leave_residuals_at_rounding(noise):
    column = kernel_column(400, 20.0, noise)
    dense = torch.tensor(scipy.linalg.toeplitz(column))
    right = torch.randn(400, 3, dtype=torch.float64)
    solution = toeplitz_solve(column, right)
    residual = (dense @ solution - right).norm() / right.norm()
    # rounding of a product with T at the size of the solution
    limit = 1e-14 * (1 + float(dense.norm() * solution.norm() / right.norm()))
    assert residual < limit


def test_float32_solutions():
    column = kernel_column(300, 5.0, 0.1, torch.float32)
    right = torch.randn(300, 2)
    dense = torch.tensor(scipy.linalg.toeplitz(column.double()))
    residual = dense @ toeplitz_solve(column, right).double() - right
    assert residual.norm() < 1e-4 * right.norm()


def test_an_indefinite_matrix_is_named():
    column = torch.tensor([1.0, 0.5, 2.0, 0.1], dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match="first 3 rows"):
        durbin(column)
    column[1] = float("nan")
    with pytest.raises(NotPositiveDefinite, match="NaN"):
        toeplitz_logdet(column)


def test_refinement_mends_a_rough_inverse(monkeypatch):
    column, right = kernel_column(40), torch.randn(40, 2, dtype=torch.float64)
    apply = levinson._apply_semencul
    monkeypatch.setattr(levinson, "_apply_semencul", lambda *a: 0.95 * apply(*a))
    dense = torch.tensor(scipy.linalg.toeplitz(column))
    torch.testing.assert_close(
        toeplitz_solve(column, right), torch.linalg.solve(dense, right), rtol=1e-11, atol=1e-12
    )


def test_a_solve_that_cannot_be_refined_is_refused(monkeypatch):
    column, right = kernel_column(40), torch.randn(40, 1, dtype=torch.float64)
    apply = levinson._apply_semencul
    # an approximate inverse that is no inverse: the residual stays where it is
    monkeypatch.setattr(levinson, "_apply_semencul", lambda *a: -0.01 * apply(*a))
    with pytest.raises(DidNotConverge, match="noise variance"):
        toeplitz_solve(column, right)


def test_right_hand_sides_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="Toeplitz matrix of 8 rows"):
        toeplitz_solve(kernel_column(8), torch.ones(7, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("matrix", "side"),
    [(1e-290, 1e-290), (1e-290, 1e-160), (1.0, 1e290), (1.0, 1e-270), (1e290, 1e160)],
)
def test_scales_that_cannot_be_squared(matrix, side):
    column, right = kernel_column(30), torch.randn(30, 2, dtype=torch.float64)
    found = toeplitz_solve(matrix * column, side * right) / (side / matrix)
    torch.testing.assert_close(found, toeplitz_solve(column, right), rtol=1e-10, atol=1e-12)


def test_right_hand_sides_that_are_not_finite_are_named():
    with pytest.raises(DidNotConverge, match=r"right-hand sides .* NaN or infinite"):
        toeplitz_solve(kernel_column(5), torch.full((5, 1), float("nan"), dtype=torch.float64))
