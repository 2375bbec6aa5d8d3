"""A^{-1/2} b against eigenvalues, and its gradient where eigenvalues repeat."""

import linear_operator
import pytest
import torch

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.operators import Kronecker, LowRankPlusDiagonal, Toeplitz, dense_factorisations


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rank", [4, 1])  # rank 1: four eigenvalues are one
def test_gradient(rank):
    factor = draw(5, rank).requires_grad_()
    noise = torch.full((1,), 0.7, dtype=torch.float64, requires_grad=True)
    right = draw(5, 2).requires_grad_()

    def product(factor, noise, right):
        return linear_operator.sqrt_inv_matmul(LowRankPlusDiagonal(factor, noise), right)

    assert torch.autograd.gradcheck(product, (factor, noise, right))


def test_twice_is_the_inverse():
    a = LowRankPlusDiagonal(draw(2, 6, 3), torch.ones(2, 1).double())
    once = a.sqrt_inv_matmul(draw(6, 2))
    torch.testing.assert_close(a.sqrt_inv_matmul(once), a.solve(draw(6, 2)))


def test_no_silent_approximation_of_large_or_indefinite_matrices(monkeypatch):
    with pytest.raises(NotPositiveDefinite, match="eigenvalue -1"):
        Kronecker(-torch.eye(3, dtype=torch.float64)).sqrt_inv_matmul(draw(3))
    monkeypatch.setattr(dense_factorisations, "DENSE_ROWS", 4)
    large = Toeplitz(torch.arange(5, 0, -1).double())
    for refused in (
        lambda: large.sqrt_inv_matmul(draw(5)),
        large.diagonalization,
        large.root_inv_decomposition,
        large.root_decomposition,
    ):
        with pytest.raises(ConfigError, match="contour_root"):
            refused()
