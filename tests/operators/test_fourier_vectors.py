"""Eigenvectors of circulants by FFT, and circulant factors of Kronecker products."""

import pytest
import torch
from draws import draw

from gpx.linalg.kronecker_workspace import KroneckerWorkspace
from gpx.operators import Circulant, Kronecker, KroneckerPlusDiagonal, Selection, circulant
from gpx.operators.circulant import FourierVectors


def symmetric_column(size):
    half = draw(size // 2 + 1)
    return torch.cat([half, half[1 : (size + 1) // 2].flip(0)])


def dense(column):
    index = torch.arange(column.shape[0])
    return column[(index.unsqueeze(1) - index) % column.shape[0]]


def covariances():
    lags = torch.arange(6, dtype=torch.float64)
    column = torch.exp(-torch.minimum(lags, 6 - lags) / 2.0)
    other = draw(4, 4)
    return other @ other.mT, column


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 30])
def test_they_are_orthonormal_eigenvectors(size):
    column = symmetric_column(size)
    values, vectors = Circulant(column).eigh()
    eye = torch.eye(size, dtype=torch.float64)
    q = vectors.to_dense()
    torch.testing.assert_close(q.mT @ q, eye, rtol=0, atol=1e-13)
    torch.testing.assert_close(vectors.mT.matmul(q), eye, rtol=0, atol=1e-13)
    torch.testing.assert_close(vectors.solve(q), eye, rtol=0, atol=1e-13)
    torch.testing.assert_close((q * values) @ q.mT, dense(column), rtol=0, atol=1e-12)


def test_products_of_batches_have_gradients():
    right = draw(2, 9, 3).requires_grad_()
    for vectors in (FourierVectors(draw(9)), FourierVectors(draw(9)).mT):
        assert torch.autograd.gradcheck(vectors.matmul, right)
        torch.testing.assert_close(vectors.matmul(right), vectors.to_dense() @ right)


@pytest.mark.parametrize("size", [4, 9, 30])
def test_gradients_equal_autograd(size):
    column = symmetric_column(size).requires_grad_()
    factor = Circulant(column.detach())

    def folded(gradient):  # entries j and a - j of the column are one number
        return gradient + gradient.flip(0).roll(1)

    left, right, weights = draw(size, 5, seed=1), draw(size, 5, seed=2), draw(size, seed=3)
    (want,) = torch.autograd.grad((left * (dense(column) @ right)).sum(), column)
    torch.testing.assert_close(factor.gradient(left, right)[0], want)
    vectors = FourierVectors(column.detach())
    q = vectors.to_dense()
    (want,) = torch.autograd.grad((weights * (q.mT @ dense(column) @ q).diagonal()).sum(), column)
    torch.testing.assert_close(
        folded(vectors.eigenvalue_gradient(weights)), folded(want), rtol=1e-9, atol=1e-10
    )


def test_eigenvalues_below_rounding_are_noticed():
    lags = torch.arange(40, dtype=torch.float64)
    column = torch.exp(-torch.minimum(lags, 40 - lags) / 5.0)
    assert Circulant(column).definite
    column[20] += 1.0  # alternates: subtracts from half of the eigenvalues
    assert not Circulant(column).definite
    assert not Circulant(column * torch.nan).definite


def test_negative_eigenvalues_of_1e_10_of_the_diagonal_are_taken_for_zero():
    for size, definite in ((0.9e-10, True), (1.1e-10, False)):
        for scale in (1.0, 1e6):
            values = torch.ones(21, dtype=torch.float64)
            values[7] = -size * 38 / 40  # of the diagonal, two of 40 eigenvalues being zero
            column = scale * torch.fft.irfft(values, n=40)
            assert Circulant(column).definite == definite


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounding_of_float32_is_judged_at_the_scale_of_the_column(scale):
    lags = torch.arange(200, dtype=torch.float64)
    column = torch.exp(-0.5 * (torch.minimum(lags, 200 - lags) / 15.0) ** 2)
    assert Circulant((scale * column).float()).definite  # half of the eigenvalues: rounding
    column[100] += 0.1
    assert not Circulant((scale * column).float()).definite


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kept", [True, False])
def test_a_circulant_factor_keeps_its_structure_in_solves_and_determinants(count, kept):
    other, column = covariances()
    column.requires_grad_()
    noise = torch.tensor([0.3], dtype=torch.float64)
    space = KroneckerWorkspace((4, 6, 4)) if kept else None
    whole = torch.kron(torch.kron(other, dense(column)), other)
    noisy = whole + noise * torch.eye(96, dtype=torch.float64)
    right = draw(96, count)
    factors = [other, Circulant(column.detach() if kept else column), other]
    product = Kronecker(*factors, workspace=space)
    operator = KroneckerPlusDiagonal(product, noise)
    torch.testing.assert_close(product @ right, whole @ right)
    torch.testing.assert_close(operator.inverse() @ right, torch.linalg.solve(noisy, right))
    torch.testing.assert_close(operator.logdet(), torch.logdet(noisy))
    if not kept:
        (want,) = torch.autograd.grad(torch.logdet(noisy), column)
        (found,) = torch.autograd.grad(operator.logdet(), column)
        # entries j and a - j of the column are one number
        torch.testing.assert_close(found + found.flip(0).roll(1), want + want.flip(0).roll(1))


def test_selections_run_in_the_buffers_and_their_results_survive_the_next_product():
    other, column = covariances()
    operator = KroneckerPlusDiagonal(
        Kronecker(other, Circulant(column), workspace=KroneckerWorkspace((4, 6))),
        torch.tensor([0.3], dtype=torch.float64),
    )
    rows, columns, right = torch.tensor([3, 0, 17]), torch.tensor([22, 1]), draw(2, 3)
    inverse = torch.linalg.inv(operator.to_dense())
    kept = Selection(operator.inverse(), rows=rows, columns=columns)
    first = kept @ right
    everything = Selection(operator.inverse(), columns=columns) @ right
    kept @ draw(2, 3, seed=1)
    torch.testing.assert_close(first, inverse[rows][:, columns] @ right)
    torch.testing.assert_close(everything, inverse[:, columns] @ right)


def test_long_lists_of_columns_are_taken_in_turns(monkeypatch):
    vectors, right = FourierVectors(symmetric_column(8)), draw(3, 8, 5)
    want = vectors.matmul(right)
    monkeypatch.setattr(circulant, "BLOCK_BYTES", 16 * 8 * 2)
    torch.testing.assert_close(vectors.matmul(right), want)
    torch.testing.assert_close(vectors.mT.matmul(want), right)
