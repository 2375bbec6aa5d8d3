"""Eigenfunctions as the features of a weight-space model."""

import pytest
import torch
from draws import uniform

from gpx.bases.grid_eigenfunctions.features import GridFeatures
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32


@torch.no_grad()
def test_blocks_are_columns_and_keep_their_functions_when_the_kernel_moves():
    kernel = RBF(ard_num_dims=3, lengthscale=[0.6, 0.4, 0.9], outputscale=1.3).double()
    basis = GridFeatures(kernel, 24, 3, block_columns=6).double()
    assert (basis.block_size, basis.num_blocks) == (6, 4)
    x = uniform(30, 3)
    basis.start(x, x[:, 0], torch.tensor(0.1), generator=torch.Generator())
    whole = basis(x)
    assert whole.shape == (30, 24)
    blocks = torch.tensor([2, 0])
    torch.testing.assert_close(
        basis.block_features(x, blocks), whole[:, basis.columns_of(blocks)], rtol=1e-12, atol=1e-13
    )
    torch.testing.assert_close(basis.block_features(x, torch.arange(4)), whole)
    assert torch.equal(basis.precision_diagonal(), torch.ones(24, dtype=torch.float64))
    assert whole.square().sum(1).max() <= 1.3 + 1e-6
    torch.testing.assert_close(basis.mean_column_square() * 24, kernel.outputscale)
    index = basis.index.clone()
    kernel.lengthscale = torch.tensor([0.4, 0.9, 0.6], dtype=torch.float64)
    assert torch.equal(basis.index, index)
    moved = basis(x)
    column = int((index[:, 1] > 0).nonzero()[0])
    single = basis(x, torch.tensor([column]))
    torch.testing.assert_close(moved[:, [column]], single, rtol=1e-12, atol=1e-13)


@torch.no_grad()
def test_eigenproblems_are_solved_once_for_many_inputs(monkeypatch):
    basis = GridFeatures(RBF(ard_num_dims=3), 24, 3, block_columns=6).double()
    x = uniform(30, 3)
    basis.start(x, x[:, 0], torch.tensor(0.1), generator=torch.Generator())
    solved, original = [], GridFeatures.eigenpairs
    monkeypatch.setattr(GridFeatures, "eigenpairs", lambda self: solved.append(0) or original(self))
    for blocks in (torch.tensor([2, 0]), torch.arange(4)):
        want = basis.block_features(x, blocks)
        solved.clear()
        features = basis.features_of(blocks)
        found = [features(rows) for rows in x.split(7)]
        assert len(solved) == 1
        torch.testing.assert_close(torch.cat(found), want, rtol=1e-12, atol=1e-13)
        assert features(x.float()).dtype == torch.float32


def test_a_subclass_with_features_of_its_own_is_asked_for_them():
    class Doubled(GridFeatures):
        def block_features(self, x, blocks):
            return 2.0 * super().block_features(x, blocks)

    basis, x = Doubled(RBF(ard_num_dims=2), 10, 2).double(), uniform(5, 2)
    basis.place(x)
    blocks = torch.tensor([0])
    assert torch.equal(basis.features_of(blocks)(x), basis.block_features(x, blocks))


def test_gradients_by_the_inputs_pass_through_prepared_features():
    basis, x = GridFeatures(RBF(ard_num_dims=2), 10, 2).double(), uniform(5, 2)
    basis.requires_grad_(False).start(x, x[:, 0], torch.tensor(0.1), generator=torch.Generator())
    blocks, at = torch.tensor([0]), x.clone().requires_grad_()
    slopes = [
        torch.autograd.grad(made(at).sum(), at)[0]
        for made in (basis.features_of(blocks), lambda z: basis.block_features(z, blocks))
    ]
    torch.testing.assert_close(*slopes)


def test_mistakes_are_explained():
    with pytest.raises(ConfigError, match="is no product of"):
        GridFeatures(Matern32(ard_num_dims=2), 10, 2)
    with pytest.raises(ConfigError, match="search_sweeps=-1 must be at least 0"):
        GridFeatures(RBF(ard_num_dims=2), 10, 2, search_sweeps=-1)


def test_a_grid_of_fewer_points_has_fewer_functions_in_blocks_that_divide_them():
    basis = GridFeatures(RBF(ard_num_dims=2), 1000, 2, block_columns=30)
    assert basis.block_size == 25
    basis.place(uniform(50, 2))
    assert (basis.num_basis, basis.block_size) == (100, 25)
