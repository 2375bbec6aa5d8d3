"""Circulant factors by FFT against their dense matrices, eigenvectors and autograd."""

import pytest
import torch

from gpx.linalg import circulant_factor
from gpx.linalg.circulant_factor import CirculantFactor, FourierVectors
from gpx.linalg.kronecker_workspace import KroneckerWorkspace


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def symmetric_column(size):
    half = random(size // 2 + 1)
    return torch.cat([half, half[1 : (size + 1) // 2].flip(0)])


def dense(column):
    index = torch.arange(column.shape[0])
    return column[(index.unsqueeze(1) - index) % column.shape[0]]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 30])
def test_fourier_vectors_are_orthonormal_eigenvectors(size):
    vectors, column = FourierVectors(size), symmetric_column(size)
    eye = torch.eye(size, dtype=torch.float64)
    q = vectors.along(eye).mT
    torch.testing.assert_close(q.mT @ q, eye, rtol=0, atol=1e-13)
    torch.testing.assert_close(vectors.mT.along(eye), q, rtol=0, atol=1e-13)
    factor = CirculantFactor(column)
    torch.testing.assert_close((q * factor.values) @ q.mT, dense(column), rtol=0, atol=1e-12)
    torch.testing.assert_close(factor.along(eye), dense(column), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [4, 9, 30])
def test_gradients_equal_autograd(size):
    column = symmetric_column(size).requires_grad_()
    factor = CirculantFactor(column.detach())

    def folded(gradient):  # entries j and a - j of the column are one number
        return gradient + gradient.flip(0).roll(1)

    left, right, weights = random(size, 5, seed=1), random(size, 5, seed=2), random(size, seed=3)
    (want,) = torch.autograd.grad((left * (dense(column) @ right)).sum(), column)
    torch.testing.assert_close(factor.gradient(left, right), want)
    q = FourierVectors(size).along(torch.eye(size, dtype=torch.float64)).mT
    (want,) = torch.autograd.grad((weights * (q.mT @ dense(column) @ q).diagonal()).sum(), column)
    torch.testing.assert_close(
        folded(FourierVectors(size).value_gradient(weights)), folded(want), rtol=1e-9, atol=1e-10
    )


def test_eigenvalues_below_rounding_are_noticed():
    lags = torch.arange(40, dtype=torch.float64)
    column = torch.exp(-torch.minimum(lags, 40 - lags) / 5.0)
    assert CirculantFactor(column).definite
    column[20] += 1.0  # alternates: subtracts from half of the eigenvalues
    assert not CirculantFactor(column).definite
    assert not CirculantFactor(column * torch.nan).definite


def test_negative_eigenvalues_of_1e_10_of_the_diagonal_are_taken_for_zero():
    for size, definite in ((0.9e-10, True), (1.1e-10, False)):
        for scale in (1.0, 1e6):
            values = torch.ones(21, dtype=torch.float64)
            values[7] = -size * 38 / 40  # of the diagonal, two of 40 eigenvalues being zero
            column = scale * torch.fft.irfft(values, n=40)
            assert CirculantFactor(column).definite == definite


@pytest.mark.parametrize("count", [1, 3])
def test_factors_of_both_kinds_share_a_workspace(count):
    column, other, eye = symmetric_column(6), random(4, 4), torch.eye(6, dtype=torch.float64)
    space, vectors = KroneckerWorkspace((4, 6, 4)), random(count, 96)
    found = space.product([other, CirculantFactor(column), other], vectors).clone()
    whole = torch.kron(torch.kron(other, dense(column)), other)
    torch.testing.assert_close(found, vectors @ whole.mT)
    rotated = space.product([other, FourierVectors(6).mT, other], vectors)
    whole = torch.kron(torch.kron(other, FourierVectors(6).mT.along(eye).mT.contiguous()), other)
    torch.testing.assert_close(rotated, vectors @ whole.mT)


def test_long_lists_of_rows_are_taken_in_turns(monkeypatch):
    factor, rows = CirculantFactor(symmetric_column(8)), random(3, 5, 8)
    want = factor.along(rows)
    monkeypatch.setattr(circulant_factor, "BLOCK_BYTES", 16 * 8 * 2)
    torch.testing.assert_close(factor.along(rows), want)
    back = FourierVectors(8).along(FourierVectors(8).mT.along(rows))
    torch.testing.assert_close(back, rows)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounding_of_float32_is_judged_at_the_scale_of_the_column(scale):
    lags = torch.arange(200, dtype=torch.float64)
    column = torch.exp(-0.5 * (torch.minimum(lags, 200 - lags) / 15.0) ** 2)
    assert CirculantFactor((scale * column).float()).definite  # half of the eigenvalues: rounding
    column[100] += 0.1
    assert not CirculantFactor((scale * column).float()).definite
