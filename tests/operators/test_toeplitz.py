"""Toeplitz operators by FFT: dense matrices, counted work, the package's own test case."""

import unittest

import pytest
import scipy.linalg
import torch
from draws import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from package_cases import SquareCase

from gpx.errors import ConfigError, DTypeError, NotPositiveDefinite, ShapeError
from gpx.operators import DenseMatrix, Toeplitz, convolution


def dense(column, row=None):
    return torch.tensor(
        scipy.linalg.toeplitz(column.detach(), None if row is None else row.detach())
    )


def definite(m, seed=0):
    column = torch.exp(-torch.arange(m, dtype=torch.float64) / (3.0 + seed))
    column[0] += 0.1
    return column


@pytest.fixture(params=["fft", "dense"])
def path(request, monkeypatch):
    """Small matrices are multiplied densely: run everything through the FFT as well."""
    if request.param == "fft":
        monkeypatch.setattr(convolution, "DENSE_ENTRIES", 0)
    return request.param


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 3), st.booleans())
def test_any_shape(m, n, c, by_fft):
    with pytest.MonkeyPatch.context() as patch:
        if by_fft:
            patch.setattr(convolution, "DENSE_ENTRIES", 0)
        column, row = draw(m), draw(n, seed=1)
        operator, matrix = Toeplitz(column, row), dense(column, row)
        assert operator.shape == matrix.shape
        right, left = draw(n, c, seed=2), draw(m, c, seed=3)
        torch.testing.assert_close(operator @ right, matrix @ right, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(operator.mT @ left, matrix.mT @ left, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(operator.to_dense(), matrix)
        torch.testing.assert_close(operator.mT.to_dense(), matrix.mT)
        symmetric = Toeplitz(column)
        torch.testing.assert_close(symmetric.to_dense(), dense(column))
        assert symmetric.mT is symmetric


@pytest.mark.parametrize("row_batch", [(), (2,)])
@pytest.mark.parametrize("batch", [(), (2,), (3, 2)])
def test_gradients(path, batch, row_batch):
    column, row = draw(*batch, 6).requires_grad_(), draw(*row_batch, 5, seed=1).requires_grad_()
    right, left = draw(5, 2, seed=2).requires_grad_(), draw(6, 2, seed=3).requires_grad_()
    check = torch.autograd.gradcheck
    assert check(lambda a, b, v: Toeplitz(a, b) @ v, (column, row, right))
    assert check(lambda a, b, v: v.mT @ Toeplitz(a, b), (column, row, left))
    assert check(lambda a, v: Toeplitz(a) @ v, (column, left))
    assert check(lambda a: Toeplitz(a).diagonal(), (column,))
    assert check(lambda a, b: Toeplitz(a, b).to_dense(), (column, row))


def test_gradients_of_solves_and_determinants():
    column, right = definite(8).requires_grad_(), draw(8, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, v: Toeplitz(a).solve(v), (column, right))
    assert torch.autograd.gradcheck(
        lambda a, v: Toeplitz(a).inv_quad_logdet(v, logdet=True), (column, right)
    )
    other = (draw(8) + 8.0 * torch.eye(8, dtype=torch.float64)[0]).requires_grad_()
    row = draw(8, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b, v: Toeplitz(a, b).solve(v), (other, row, right))
    assert torch.autograd.gradcheck(lambda a, b: Toeplitz(a, b).logdet(), (other, row))


def test_large_solves_agree_with_scipy():
    column, right = definite(1000), draw(1000, 2)
    expected = torch.tensor(scipy.linalg.solve_toeplitz(column, right))
    operator = Toeplitz(column)
    torch.testing.assert_close(operator.solve(right), expected, rtol=1e-9, atol=1e-9)
    logdet = torch.linalg.slogdet(dense(column))[1]
    torch.testing.assert_close(operator.logdet(), logdet, rtol=1e-11, atol=0)


def test_a_large_product_against_chunks_of_the_matrix():
    n = 30_000
    column, right = definite(n), draw(n, 2)
    found = Toeplitz(column) @ right
    for start in (0, 14_000, n - 50):
        rows = torch.arange(start, start + 50)
        block = column[(rows[:, None] - torch.arange(n)).abs()]
        torch.testing.assert_close(found[rows], block @ right, rtol=1e-11, atol=1e-11)


def test_work_is_counted(monkeypatch):
    """Transforms: none at construction, one spectrum ever, two per product, three per gradient."""
    calls = []
    for name in ("rfft", "rfftn", "irfft", "fft", "ifft"):
        original = getattr(torch.fft, name)

        def counting(*args, _original=original, _name=name, **kwargs):
            calls.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(torch.fft, name, counting)
    column, right = definite(1000), draw(1000, 1)
    operator = Toeplitz(column)
    operator.representation_tree()(*operator.representation())
    assert calls == []
    operator @ right
    assert sorted(calls) == ["irfft", "rfft", "rfftn"]
    calls.clear()
    operator @ right
    rebuilt = operator.representation_tree()(*operator.representation())
    rebuilt @ right
    assert sorted(calls) == ["irfft", "irfft", "rfft", "rfft"]
    calls.clear()
    leaf = column.clone().requires_grad_()
    out = Toeplitz(leaf) @ right
    calls.clear()
    out.sum().backward()
    assert sorted(calls) == ["irfft", "rfft", "rfft"]


def test_an_in_place_step_is_noticed():
    column, right = definite(300), draw(300, 1)
    operator = Toeplitz(column)
    before = operator @ right
    column.mul_(2.0)
    torch.testing.assert_close(operator @ right, 2.0 * before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["matmul", "solve"])
def test_a_change_between_the_passes_is_refused(name):
    k = definite(200).requires_grad_()
    scaled = 2.0 * k
    right = torch.ones(200, 1, dtype=torch.float64)
    out = getattr(Toeplitz(scaled), name)(right)
    with torch.no_grad():
        scaled.mul_(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_only_wanted_gradients_are_computed(monkeypatch):
    def never(*args):
        raise AssertionError("computed")

    k, right = definite(200).requires_grad_(), torch.ones(200, 1, dtype=torch.float64)
    out = Toeplitz(k) @ right
    monkeypatch.setattr(Toeplitz, "_t_multiply", never)
    out.sum().backward()
    assert k.grad is not None
    plain = Toeplitz(k.detach()) @ right
    assert not plain.requires_grad


def test_structure_survives_noise_multiples_and_sums():
    column = definite(9)
    operator = Toeplitz(column)
    noisy = operator.add_diagonal(torch.tensor(0.5, dtype=torch.float64))
    for made, expected in [
        (noisy, dense(column) + 0.5 * torch.eye(9, dtype=torch.float64)),
        (2.0 * operator, 2.0 * dense(column)),
        (operator + Toeplitz(definite(9, 1)), dense(column) + dense(definite(9, 1))),
    ]:
        assert type(made) is Toeplitz
        torch.testing.assert_close(made.to_dense(), expected)
    general = operator + Toeplitz(column, column)
    torch.testing.assert_close(general.to_dense(), 2.0 * dense(column))


def test_few_rows_are_looked_up_without_a_product(monkeypatch):
    def never(*args):
        raise AssertionError("multiplied")

    column = definite(500)
    monkeypatch.setattr(Toeplitz, "_multiply", never)
    rows = torch.tensor([3, 499, 0])
    torch.testing.assert_close(Toeplitz(column)[rows].to_dense(), dense(column)[rows])
    torch.testing.assert_close(Toeplitz(column)[7], dense(column)[7])
    torch.testing.assert_close(Toeplitz(column).diagonal(), dense(column).diagonal())


def test_a_block_that_was_looked_up_is_as_exact_as_the_rest():
    """No jitter: ones are singular, however they are cut out."""
    block = Toeplitz(torch.tensor([1.0, 1.0, 1.0, 1.0, 0.2], dtype=torch.float64))[:4][:, :4]
    assert isinstance(block, DenseMatrix)
    for refused in (block.logdet, block.cholesky, lambda: block.solve(draw(4, 1))):
        with pytest.raises(NotPositiveDefinite, match="3 duplicate rows"):
            refused()


def test_errors_name_the_way_out():
    column = definite(6)
    with pytest.raises(ShapeError, match=r"\(6,\)|6 rows"):
        Toeplitz(column) @ draw(5, 2)
    with pytest.raises(DTypeError, match="float32"):
        Toeplitz(column) @ draw(6, 2).float()
    with pytest.raises(ShapeError, match="column"):
        Toeplitz(draw(0))
    with pytest.raises(ShapeError, match="square"):
        Toeplitz(column, draw(4)).logdet()
    with pytest.raises(NotPositiveDefinite, match="noise"):
        Toeplitz(torch.tensor([1.0, 2.0, 0.0])).logdet()
    with pytest.raises(ConfigError, match="leave the row out"):
        Toeplitz(draw(2001), draw(2001)).logdet()


class TestPackageCase(SquareCase, unittest.TestCase):
    """linear_operator's own conformance test."""

    seed = 1
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        return Toeplitz(torch.tensor([4.0, 0.5, 0.2, 1.0, -0.3]).requires_grad_())

    def evaluate_linear_op(self, linear_op):
        column = linear_op.column
        return column[(torch.arange(5)[:, None] - torch.arange(5)).abs()]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu():
    column, right = definite(3000), draw(3000, 3)
    cpu, gpu = Toeplitz(column), Toeplitz(column.cuda())
    torch.testing.assert_close((gpu @ right.cuda()).cpu(), cpu @ right)
    torch.testing.assert_close(gpu.solve(right.cuda()).cpu(), cpu.solve(right))
    torch.testing.assert_close(gpu.logdet().cpu(), cpu.logdet())


def test_singular_general_matrices_are_one_clear_error():
    ones = torch.ones(4, dtype=torch.float64)
    for column in (ones, ones * float("nan")):
        operator = Toeplitz(column, ones)
        for refused in (operator.logdet, lambda operator=operator: operator.solve(ones)):
            with pytest.raises(NotPositiveDefinite, match="singular or not finite"):
                refused()
