"""Elementwise products: exact, by blocks, closed forms where there are some."""

import pytest
import torch

import gpx.operators.elementwise as elementwise
from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.kernels import RBF
from gpx.operators import (
    Circulant,
    Elementwise,
    Interpolation,
    Kronecker,
    KroneckerPlusDiagonal,
    Toeplitz,
)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_pairs_with_a_closed_form_keep_it():
    toeplitz, general = Toeplitz(draw(7)), Toeplitz(draw(7, seed=1), draw(5, seed=2))
    assert isinstance(toeplitz * toeplitz, Toeplitz)
    assert isinstance(general * general, Toeplitz)
    torch.testing.assert_close((general * general).to_dense(), general.to_dense().square())
    circulant = Circulant(draw(6))
    assert isinstance(circulant * circulant, Circulant)


def test_blocks_of_rows_bound_the_memory_and_agree(monkeypatch):
    kernel = RBF(2, [0.7, 1.1], 1.3).double()
    x = draw(40, 2).requires_grad_()
    column = draw(40, seed=1).requires_grad_()
    right = draw(40, 3, seed=2)

    def gradients():
        total = kernel(x) * Toeplitz(column)
        assert isinstance(total, Elementwise)
        value = total @ right
        sources = [x, column, *kernel.parameters()]
        return value, torch.autograd.grad(value.square().sum(), sources)

    whole, expected = gradients()
    seen = []
    original = Elementwise._rows

    def watched(self, rows):
        seen.append(rows.stop - rows.start)
        return original(self, rows)

    monkeypatch.setattr(elementwise, "DEFAULT_BUDGET", 3 * 40 * 8 * 10)
    monkeypatch.setattr(Elementwise, "_rows", watched)
    blocks, found = gradients()
    assert max(seen) <= 10
    torch.testing.assert_close(blocks, whole)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_rectangular_and_indefinite_operands_are_exact():
    weights = Interpolation(draw(5, 2), torch.tensor([[0, 1]] * 5), num_columns=3)
    general = Toeplitz(draw(5), draw(3))
    torch.testing.assert_close(
        (weights * general) @ draw(3), (weights.to_dense() * general.to_dense()) @ draw(3)
    )
    with pytest.raises(NotPositiveDefinite, match="Elementwise"):
        (Toeplitz(draw(6)) * KroneckerPlusDiagonal(_identity(2, 3), _ones())).__mul__(-1.0).logdet()
    with pytest.raises(ShapeError, match="one shape"):
        Elementwise(Toeplitz(draw(3)), Toeplitz(draw(4)))


def _identity(*sizes):
    return Kronecker(*[torch.eye(n, dtype=torch.float64) for n in sizes])


def _ones():
    return torch.ones(1, dtype=torch.float64)
