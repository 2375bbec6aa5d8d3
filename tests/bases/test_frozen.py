"""A basis at earlier hyperparameters: its features as they were, nothing of the copy trainable."""

import torch

from gpx.bases import RandomFourier
from gpx.bases.frozen import flat_parameters, frozen_basis, set_parameters
from gpx.kernels import Matern32


def test_features_are_those_of_before_and_do_not_follow():
    basis = RandomFourier(Matern32(2, (0.7, 1.3), 1.7).double(), 40, block_frequencies=4)
    x = torch.linspace(-1, 1, 10, dtype=torch.float64).view(5, 2)
    then, features = flat_parameters(basis.parameters()), basis(x).detach()
    basis.kernel.lengthscale = torch.tensor([2.0, 0.1], dtype=torch.float64)
    basis.kernel.outputscale = torch.tensor(0.4, dtype=torch.float64)
    moved = basis(x)
    frozen = frozen_basis(basis, then)
    assert torch.equal(frozen(x), features)
    assert not frozen(x).requires_grad
    assert torch.equal(basis(x), moved)  # the copy is one
    moved.sum().backward()
    set_parameters(basis, then)
    assert torch.equal(basis(x).detach(), features)
    assert all(p.grad is None and p.requires_grad for p in basis.parameters())
