"""Products with selected blocks of any basis equal those with its whole feature matrix."""

import pytest
import torch
from draws import draw

from gpx.bases import GaussHermiteFourier, InducingPoints
from gpx.bases.base import SelectedBlocks
from gpx.kernels import RBF, Matern32

BLOCKS = torch.tensor([4, 0, 4, 2])


def bases():
    kernel = RBF(ard_num_dims=2, lengthscale=(0.8, 1.3)).double()
    return {
        "gauss_hermite": GaussHermiteFourier(kernel, 36, block_frequencies=3),
        "inducing_points": InducingPoints(Matern32(2).double(), draw(7, 2)),
    }


@pytest.mark.parametrize("name", ["gauss_hermite", "inducing_points"])
def test_products_are_those_with_the_feature_matrix(name):
    basis, x = bases()[name], draw(11, 2, seed=1)
    selected = basis.selected(BLOCKS, x)
    assert type(selected) is SelectedBlocks
    whole = basis(x).detach()
    features = torch.cat([whole[:, basis.columns_of(b[None])] for b in BLOCKS], 1)
    weights = draw(features.shape[1], 2, seed=2)
    direction = draw(11, 2, seed=3).requires_grad_()
    value, product = selected.form(x, weights, direction)
    torch.testing.assert_close(product, features @ weights)
    (slope,) = torch.autograd.grad(value, direction)
    torch.testing.assert_close(slope, features @ weights)
    torch.testing.assert_close(selected.column_squares(x).detach(), features.square().sum(0))
    parts = selected.split((1, 3))
    split = weights.split([len(part.blocks) * basis.block_size for part in parts])
    total = sum(p.products(x, w) for p, w in zip(parts, split, strict=True))
    torch.testing.assert_close(total.detach(), features @ weights)


@pytest.mark.parametrize("name", ["gauss_hermite", "inducing_points"])
def test_kept_features_carry_a_change_of_the_weights(name):
    basis, x = bases()[name], draw(11, 2, seed=1)
    selected = basis.selected(BLOCKS, x)
    weights = draw(len(BLOCKS) * basis.block_size, 1, seed=2)
    kept: list[torch.Tensor] = []
    total = selected.products(x, weights, kept).detach().clone()
    selected.carry(total, kept[0], -3.0 * weights)
    torch.testing.assert_close(total, -2.0 * selected.products(x, weights).detach())
