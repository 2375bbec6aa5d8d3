"""Arc-cosine kernels: their defining mean over random units, gradients, special directions."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import ArcCosine

ORDERS = (0, 1, 2)


pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n=6, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("order", ORDERS)
def test_it_is_the_mean_over_random_units(order):
    # in the plane of two inputs a standard normal has a uniform angle t and E r^(2n) = 2^n n!
    lengthscale, x = np.array([0.7, 1.6]), inputs(3, 2)
    kernel = ArcCosine(order, 2, lengthscale.tolist(), 1.3)
    u = x.numpy() / lengthscale

    def unit(t, row):
        projection = row @ (math.cos(t), math.sin(t))
        return projection**order if projection > 0.0 else 0.0

    turns = [math.atan2(row[1], row[0]) + s * math.pi / 2 for row in u for s in (-1, 1)]
    points = sorted(t % (2.0 * math.pi) for t in turns)
    moment = 2.0**order * math.factorial(order) / (2.0 * math.pi)
    for i in range(3):
        for j in range(3):
            inner = lambda t, a=u[i], b=u[j]: unit(t, a) * unit(t, b)  # noqa: E731
            bounds = [0.0, *points, 2.0 * math.pi]
            pieces = itertools.pairwise(bounds)
            mean = moment * sum(integrate.quad(inner, a, b)[0] for a, b in pieces)
            want = pytest.approx(2.0 * 1.3 * mean, rel=1e-10)
            assert float(kernel.evaluate(x).detach()[i, j]) == want


@pytest.mark.parametrize("order", ORDERS)
def test_gradients(order):
    kernel = ArcCosine(order, 3, [0.7, 1.0, 1.6], 1.3)
    x, z = inputs(4).requires_grad_(), inputs(3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: kernel.evaluate(a, b), (x, z))
    assert torch.autograd.gradcheck(lambda a: kernel.evaluate(a), (x,))
    assert torch.autograd.gradcheck(lambda a: kernel.diagonal(a), (x,))
    names = tuple(name for name, _ in kernel.named_parameters())
    matrix, x, z = kernel(x, z), x.detach(), z.detach()

    def of_parameters(*raw):
        return type(matrix)(x, z, *raw, kernel=kernel, names=names, square=False).to_dense()

    raw = tuple(p.detach().clone().requires_grad_() for p in kernel.parameters())
    assert torch.autograd.gradcheck(of_parameters, raw)


@pytest.mark.parametrize("order", ORDERS)
def test_second_derivatives_by_the_inputs(order):
    kernel = ArcCosine(order, 3, [0.7, 1.0, 1.6], 1.3)
    x, z = inputs(4).requires_grad_(), inputs(3, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda a, b: kernel.covariance(a, b), (x, z))


@pytest.mark.parametrize("order", ORDERS)
def test_parallel_opposite_and_absent_inputs(order):
    kernel, x = ArcCosine(order, 3, 0.8, 1.3), inputs(1)
    rows = torch.cat([x, 3.0 * x, -2.0 * x, torch.zeros_like(x)]).requires_grad_()
    found = kernel.evaluate(rows, x)[:, 0]
    own = kernel.diagonal(x)[0]
    torch.testing.assert_close(found[0], own, rtol=1e-7, atol=0)
    torch.testing.assert_close(found[1], 3.0**order * own, rtol=1e-7, atol=0)
    torch.testing.assert_close(found[2], 0.0 * own, rtol=0, atol=1e-7)
    assert found[3].item() == 0.0
    assert kernel.diagonal(rows)[3].item() == 0.0
    kernel.evaluate(rows, x).sum().backward()
    assert torch.isfinite(rows.grad).all()
    for parameter in kernel.parameters():
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("order", ORDERS)
def test_matrices_are_positive_semidefinite(order):
    dense = ArcCosine(order, 3, 0.8, 1.3).evaluate(inputs(80)).detach()
    assert float(torch.linalg.eigvalsh(dense)[0]) > -1e-13 * float(dense.trace())


def test_variances_and_degree():
    x = inputs()
    square = (x / 0.5).square().sum(1)
    for order, want in ((0, torch.ones(6)), (1, square), (2, 3.0 * square**2)):
        kernel = ArcCosine(order, None, 0.5, 1.3)
        torch.testing.assert_close(kernel.diagonal(x), 1.3 * want, rtol=1e-13, atol=0)
        whole = kernel.evaluate(2.0 * x, 3.0 * x)
        torch.testing.assert_close(whole, 6.0**order * kernel.evaluate(x, x.clone()))


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="order=3: expected one of 0, 1, 2"):
        ArcCosine(3)
    with pytest.raises(ShapeError, match="has 2 lengthscales but the inputs have 3"):
        ArcCosine(1, 2).evaluate(inputs())
