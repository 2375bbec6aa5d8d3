"""Circulant and block circulant operators against dense matrices."""

import unittest

import pytest
import scipy.linalg
import torch
from draws import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from package_cases import ProductsCase

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg import chan
from gpx.operators import BlockCirculant, Circulant, Toeplitz, convolution


def dense(generator):
    """By the definition, entry by entry, for any number of levels."""
    place = torch.cartesian_prod(*[torch.arange(n) for n in generator.shape])
    place = place.reshape(generator.numel(), generator.ndim)
    lag = (place[:, None] - place) % torch.tensor(generator.shape)
    return generator[tuple(lag.unbind(-1))]


def definite(*grid):
    generator = draw(*grid)
    dims = tuple(range(len(grid)))
    generator = generator + generator.flip(dims).roll((1,) * len(grid), dims)
    generator[(0,) * len(grid)] = 3.0 * generator.abs().sum()
    return generator / generator.numel()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 3), st.booleans())
def test_any_grid(grid, c, by_fft):
    with pytest.MonkeyPatch.context() as patch:
        if by_fft:
            patch.setattr(convolution, "DENSE_ENTRIES", 0)
        generator = draw(*grid)
        operator, matrix = BlockCirculant(generator, levels=len(grid)), dense(generator)
        right = draw(generator.numel(), c, seed=1)
        torch.testing.assert_close(operator @ right, matrix @ right, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(operator.mT @ right, matrix.mT @ right, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(operator.to_dense(), matrix)
        spectrum = torch.linalg.eigvals(matrix)
        found = operator.eigenvalues()
        nearest = (found[:, None] - spectrum).abs().amin(1)
        assert nearest.max() < 1e-8


def test_one_level_is_scipys_circulant():
    column = draw(7)
    matrix = torch.tensor(scipy.linalg.circulant(column))
    torch.testing.assert_close(Circulant(column).to_dense(), matrix)


@pytest.mark.parametrize("generator", [draw(7), draw(8), draw(3, 4), draw(2, 3, 2)])
def test_exact_solves_and_determinants_without_symmetry(generator):
    operator, matrix = BlockCirculant(generator, levels=generator.ndim), dense(generator)
    right = draw(generator.numel(), 2, seed=1)
    torch.testing.assert_close(operator.solve(right), torch.linalg.solve(matrix, right))
    torch.testing.assert_close(operator.logdet(), torch.linalg.slogdet(matrix)[1])
    torch.testing.assert_close(operator.inverse().to_dense(), matrix.inverse())
    leaf = generator.clone().requires_grad_()
    levels = generator.ndim
    check = torch.autograd.gradcheck
    assert check(lambda g, r: BlockCirculant(g, levels=levels).solve(r), (leaf, right))
    assert check(lambda g: BlockCirculant(g, levels=levels).logdet(), (leaf,))
    assert check(lambda g: BlockCirculant(g, levels=levels).mT @ right, (leaf,))


def test_square_root_and_its_refusal():
    generator = definite(4, 5)
    operator = BlockCirculant(generator, levels=2)
    root = operator.sqrt().to_dense()
    torch.testing.assert_close(root @ root, dense(generator))
    torch.testing.assert_close(root, root.mT)
    with pytest.raises(NotPositiveDefinite, match="square root"):
        Circulant(torch.tensor([1.0, 2.0, 2.0])).sqrt()


def test_square_root_where_eigenvalues_are_rounding():
    lags = torch.arange(200, dtype=torch.float64)
    column = torch.exp(-0.5 * (torch.minimum(lags, 200 - lags) / 10.0) ** 2)
    for scale in (1e-6, 1.0, 1e6):
        operator = Circulant(scale * column)
        assert operator._spectrum().real.min() < 0
        root = operator.sqrt().to_dense()
        torch.testing.assert_close(
            root @ root.mT, operator.to_dense(), rtol=1e-10, atol=1e-12 * scale
        )


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_singular_circulant_is_refused_once_per_matrix(scale):
    singular = Circulant(scale * (torch.ones(4, dtype=torch.float64) + 2e-16 * torch.eye(4)[0]))
    for attempt in (lambda: singular.solve(draw(4, 1)), singular.logdet):
        with pytest.raises(NotPositiveDefinite, match="singular"):
            attempt()
    with pytest.raises(ShapeError, match="2 grid axes"):
        BlockCirculant(draw(4), levels=2)


def test_an_approximation_of_a_toeplitz_matrix_is_close_in_its_solves():
    column = torch.exp(-torch.arange(400, dtype=torch.float64))
    column[0] += 0.5
    right = draw(400, 1)
    exact, near = Toeplitz(column).solve(right), Circulant(chan(column)).solve(right)
    assert (exact - near).norm() < 0.05 * exact.norm()


class TestPackageCase(ProductsCase, unittest.TestCase):
    """linear_operator's own test of products and indices.

    Its tests of solves symmetrise gradients, which holds for no matrix given by a general column.
    """

    seed = 0

    def create_linear_op(self):
        return Circulant(torch.tensor([4.0, 0.6, -0.3, 0.2, 1.1]).requires_grad_())

    def evaluate_linear_op(self, linear_op):
        return linear_op.column[(torch.arange(5)[:, None] - torch.arange(5)) % 5]


def test_every_matrix_of_a_batch_is_judged_at_its_own_scale():
    """A small negative definite matrix beside a large positive one must not become zero."""
    column = torch.tensor([3.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match="no real square root"):
        Circulant(torch.stack([1e6 * column, -1e-9 * column])).sqrt()
    with pytest.raises(NotPositiveDefinite, match="nan"):
        Circulant(column * float("nan")).sqrt()


def test_a_root_or_samples_of_an_unsymmetric_matrix_are_refused():
    operator = Circulant(torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    for refused in (operator.root_decomposition, lambda: operator.zero_mean_mvn_samples(2)):
        with pytest.raises(NotPositiveDefinite, match="not symmetric"):
            refused()
    large = 1e16 * torch.tensor([3.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match="not symmetric"):
        Circulant(torch.stack([large, operator.column])).root_decomposition()
