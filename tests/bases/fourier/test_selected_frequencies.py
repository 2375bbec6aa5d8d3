"""Blocks of frequencies that are generated once: products as with the features themselves."""

import pytest
import torch

from gpx.bases import OrthogonalFourier, RandomFourier
from gpx.bases.base import SelectedBlocks
from gpx.bases.fourier.random_fourier import SelectedFrequencies
from gpx.bases.frozen import flat_parameters, frozen_basis
from gpx.kernels import RBF, Matern32


@pytest.mark.parametrize("kind", [RandomFourier, OrthogonalFourier])
def test_products_and_gradients_are_those_of_the_features(road, kind):
    basis = kind(RBF(ard_num_dims=2, lengthscale=(0.8, 1.3)).double(), 36, block_frequencies=3)
    x = torch.randn(11, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    blocks = torch.tensor([4, 0, 4, 2])
    first, last = basis.selected(blocks, x).split((1, 3))
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(3 * basis.block_size, 2, generator=generator, dtype=torch.float64)
    direction = torch.randn(11, 2, generator=generator, dtype=torch.float64)
    parameters = list(basis.parameters())

    def both(selected):
        value, left = selected.form(x, weights, direction)
        squares = selected.column_squares(x)
        combined = value + (squares * weights[:, 0]).sum() + selected.products(x, weights).sum()
        grads = torch.autograd.grad(combined, parameters, allow_unused=True)
        return [left, squares.detach(), combined.detach(), *(g for g in grads if g is not None)]

    plain = SelectedBlocks(basis, blocks[1:])
    for found, expected in zip(both(last), both(plain), strict=True):
        torch.testing.assert_close(found, expected)
    features = basis.block_features(x, blocks[:1]).detach()
    torch.testing.assert_close(first.column_squares(x).detach(), features.square().sum(0))

    kept: list[torch.Tensor] = []
    total = last.products(x, weights, kept).detach().clone()
    last.carry(total, kept[0], 0.5 * weights)
    torch.testing.assert_close(total, 1.5 * plain.products(x, weights).detach())


def test_blocks_of_a_frozen_basis_share_normals_but_not_hyperparameters():
    basis = RandomFourier(Matern32(ard_num_dims=2).double(), 40, block_frequencies=4)
    x = torch.linspace(-1, 1, 10, dtype=torch.float64).view(5, 2)
    frozen = frozen_basis(basis, flat_parameters(basis.parameters()))
    blocks = torch.tensor([3, 1])
    selected = basis.selected(blocks, x)
    basis.kernel.lengthscale = torch.full((2,), 2.0, dtype=torch.float64)
    weights = torch.ones(16, 1, dtype=torch.float64)
    found = selected.of(frozen)
    assert isinstance(found, SelectedFrequencies)
    expected = frozen.block_features(x, blocks) @ weights
    torch.testing.assert_close(found.products(x, weights), expected)
    assert not torch.allclose(basis.block_features(x, blocks) @ weights, expected)


def test_small_changes_are_carried_to_the_digits_of_the_total():
    """Terms of 1e-7 each, summed on top of one, would be rounded to its digits one by one."""
    basis = RandomFourier(RBF(2), 20_000, block_frequencies=1000)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=generator)
    selected = basis.selected(torch.arange(10), x)
    weights = 1e-5 * torch.randn(20_000, 1, generator=generator)
    kept: list[torch.Tensor] = []
    change = selected.products(x, weights, kept).detach()
    total = torch.ones(50, 1)
    for _ in range(100):
        selected.carry(total, kept[0], weights)
    error = (total - 1.0 - 100.0 * change).norm() / (100.0 * change).norm()
    assert error < 0.01  # a rounding of 6e-8 each time
