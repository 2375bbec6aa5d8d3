"""Gradient of weighted eigenfunctions against autograd through all of them at once."""

import pytest
import torch

from gpx.bases import GridEigenfunctions, GridOptions
from gpx.bases.grid_eigenfunctions import sums as grief_sums
from gpx.bases.grid_eigenfunctions.gradient import eigenfunction_gradient
from gpx.kernels import RBF

DOUBLE = torch.float64


@pytest.mark.parametrize(("inputs", "frozen"), [(False, False), (True, False), (True, True)])
def test_blocks_add_up_to_the_gradient_of_the_whole(inputs, frozen, monkeypatch):
    monkeypatch.setitem(grief_sums.BLOCK_BYTES, "cpu", 7 * 15 * 8)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=DOUBLE)
    weight = torch.randn(30, 15, generator=generator, dtype=DOUBLE)
    first = RBF(ard_num_dims=2, lengthscale=[1.0, 1.6], outputscale=2.0).double()
    chosen = GridEigenfunctions(first, 2, 15, GridOptions(points_per_dim=7))
    chosen.place(x)
    chosen.select()
    x.requires_grad_(inputs)
    kernel = RBF(ard_num_dims=2, lengthscale=[0.9, 1.8], outputscale=1.5).double()
    kernel.requires_grad_(not frozen)
    basis = chosen.under(kernel)
    assert basis.num_basis == 15
    tensors, got = eigenfunction_gradient(basis, x, weight)
    assert len(tensors) == (0 if frozen else 2) + inputs
    order = basis.modes().plan.order
    whole = (basis(x) * weight[:, order]).sum()
    for each, want in zip(got, torch.autograd.grad(whole, tensors), strict=True):
        torch.testing.assert_close(each, want, rtol=1e-9, atol=1e-11)
