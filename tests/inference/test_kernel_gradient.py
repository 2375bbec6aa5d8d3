"""The gradient from slope products against autograd through the dense matrix."""

import pytest
import torch

from gpx.inference.kernel_gradient import has_slope_products
from gpx.inference.noisy_kernel import NoisyKernel
from gpx.kernels import RBF, Matern12, Matern32, Matern52, Periodic

KERNELS = {
    "matern12": lambda: Matern12(3, lengthscale=[0.8, 1.5, 2.0], outputscale=1.4),
    "matern32": lambda: Matern32(3, lengthscale=[0.8, 1.5, 2.0], outputscale=1.4),
    "matern52 isotropic": lambda: Matern52(lengthscale=0.9),
    "rbf": lambda: RBF(3, lengthscale=[0.8, 1.5, 2.0], outputscale=0.7),
    "rbf of one column, fixed scale": lambda: RBF(outputscale=None, active_dims=[1]),
}


def problem(make):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(90, 3, generator=draws, dtype=torch.float64)
    x[7] = x[3]  # coincident rows
    left, right = torch.randn(2, 90, generator=draws, dtype=torch.float64)
    kernel = make().double()
    noise = torch.tensor(0.1, dtype=torch.float64)
    matrix = NoisyKernel(kernel, x, noise, memory_budget=1 << 14, backend="chunked")
    return kernel, x, left, right, matrix


@pytest.mark.parametrize("name", KERNELS)
def test_it_equals_autograd(name):
    kernel, x, left, right, matrix = problem(KERNELS[name])
    assert has_slope_products(kernel, matrix._full.entries)
    product = matrix(right) - 0.1 * right
    found = matrix.derivative(left, right, product)
    parameters = list(kernel.parameters())
    want = torch.autograd.grad(left @ kernel.evaluate(x) @ right, parameters)
    for parameter, expected in zip(parameters, want, strict=True):
        torch.testing.assert_close(found[parameter], expected, rtol=1e-9, atol=1e-9)


def test_frozen_parameters_get_no_gradient():
    kernel, _, left, right, matrix = problem(KERNELS["rbf"])
    kernel.parametrizations.lengthscale.original.requires_grad_(False)
    matrix = NoisyKernel(kernel, matrix._full.entries.x1, matrix.noise)
    found = matrix.derivative(left, right, matrix(right) - 0.1 * right)
    assert list(found) == [kernel.parametrizations.outputscale.original]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RBF(lengthscale=0.7) + Matern52(lengthscale=1.1),
        lambda: Periodic(None, active_dims=[1]),
    ],
)
def test_other_kernels_take_the_general_way(make):
    kernel, x, left, right, matrix = problem(make)
    assert not has_slope_products(kernel, matrix._full.entries)
    found = matrix.derivative(left, right, matrix(right) - 0.1 * right)
    parameters = list(kernel.parameters())
    want = torch.autograd.grad(left @ kernel.evaluate(x) @ right, parameters)
    for parameter, expected in zip(parameters, want, strict=True):
        torch.testing.assert_close(found[parameter], expected, rtol=1e-9, atol=1e-9)
