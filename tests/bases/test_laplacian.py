"""Eigenfunctions of the Laplacian: orthonormal, the lowest ones, and the kernel they add up to."""

import itertools
import math

import pytest
import torch

from gpx.bases import LaplacianEigenfunctions
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Linear, Matern32, Matern52, Periodic

pytestmark = pytest.mark.usefixtures("float64_by_default")


def placed(kernel, m, boundary=3.0, low=-1.0, high=1.0):
    """Over [low, high]^d."""
    d = kernel.ard_num_dims
    basis = LaplacianEigenfunctions(kernel, m, d, boundary)
    basis.place(torch.tensor([[low] * d, [high] * d]))
    return basis


def inputs(n):
    return 2.0 * torch.rand(n, 2, generator=torch.Generator().manual_seed(0)) - 1.0


def gram(basis, x, z):
    with torch.no_grad():
        return (basis(x) * basis.log_variances().exp()) @ basis(z).mT


def test_thirty_functions_are_a_squared_exponential():
    # lengthscale 0.5, half-width 3, inputs up to 1
    kernel = RBF(1, 0.5, 1.3)
    basis, x = placed(kernel, 30), torch.linspace(-1.0, 1.0, 41)[:, None]
    gap = gram(basis, x, x) - kernel.evaluate(x).detach()
    assert float(gap.abs().max()) < 1e-3
    assert basis.captured() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("kind", "error"), [(Matern32, 2e-2), (Matern52, 1.5e-2)])
def test_rougher_kernels_and_more_inputs(kind, error):
    kernel = kind(2, [0.7, 1.1], 1.3)
    basis, x = placed(kernel, 1500, 3.0), inputs(20)
    gap = gram(basis, x, x) - kernel.evaluate(x).detach()
    assert float(gap.abs().max()) < error


def test_functions_are_orthonormal_on_the_box():
    basis = placed(RBF(1, 0.4), 9, 2.0, low=1.0, high=5.0)
    centres = -1.0 + 8.0 * (torch.arange(4000) + 0.5) / 4000  # of cells of the box [-1, 7]
    phi = basis(centres[:, None])
    torch.testing.assert_close(phi.mT @ phi * (8.0 / 4000), torch.eye(9), rtol=0, atol=1e-10)


def test_the_lowest_frequencies_are_taken():
    basis = placed(RBF(3, [0.5, 1.0, 2.0]), 25, 2.0)
    steps = (0.25, 0.5, 1.0)  # lengthscale over half-width
    every = itertools.product(range(1, 26), repeat=3)
    cost = sorted(sum((s * j) ** 2 for s, j in zip(steps, js, strict=True)) for js in every)
    found = (basis.orders.double() * torch.tensor(steps)).square().sum(1)
    torch.testing.assert_close(found, torch.tensor(cost[:25]))
    assert len({tuple(row) for row in basis.orders.tolist()}) == 25
    # and carry the largest variances of the kernel
    logs = basis.log_variances().detach()
    torch.testing.assert_close(logs, logs.sort(descending=True).values)


def test_variances_follow_the_kernel():
    basis = placed(RBF(2, [0.5, 1.0], 1.3), 8)
    omega = basis.orders * math.pi / 2.0 / 3.0
    want = 1.3 * 2.0 * math.pi * 0.5 * torch.exp(-0.5 * (omega * torch.tensor([0.5, 1.0])) ** 2)
    want = want.prod(1) / (1.3 * 2.0 * math.pi * 0.5)
    torch.testing.assert_close(basis.log_variances().exp(), want)


def test_what_lies_beyond_and_too_few_functions_are_warned_of():
    basis = placed(RBF(1, 0.5), 30)
    with pytest.warns(UserWarning, match="1 of 2 inputs lie beyond the box"):
        phi = basis(torch.tensor([[0.0], [3.5]]))
    assert float(phi[1].abs().max()) < 1e-12
    assert not basis.warn_of_few()
    with pytest.warns(UserWarning, match=r"have \d+ % of the kernel's variance.*take more"):
        assert placed(RBF(1, 0.1), 10).warn_of_few()


def test_a_box_that_is_too_narrow_is_told_from_functions_that_are_too_few():
    narrow = placed(RBF(1, 3.0), 30)
    orders, width = narrow.orders.clone(), narrow.half_width.clone()
    assert narrow.captured() < 0.9
    # all functions there are have what a kernel has less its mirror images in the boundary
    images = torch.arange(-30, 31).double() * 2.0 * width / 3.0
    signs = 1.0 - 2.0 * (torch.arange(-30, 31) % 2).double()
    want = float((signs * torch.exp(-0.5 * images**2)).sum())
    assert narrow.captured() == pytest.approx(want, abs=1e-6)
    with pytest.warns(UserWarning, match="too long for so narrow a box; take a larger boundary"):
        assert narrow.warn_of_few()
    assert torch.equal(narrow.orders, orders)
    assert torch.equal(narrow.half_width, width)


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="RBF or Matern kernel of all inputs, got Linear"):
        LaplacianEigenfunctions(Linear(1), 10, 1)
    with pytest.raises(ConfigError, match="RBF or Matern kernel of all inputs, got Periodic"):
        LaplacianEigenfunctions(Periodic(1), 10, 1)
    with pytest.raises(ConfigError, match=r"boundary=1\.0 must be above 1"):
        LaplacianEigenfunctions(RBF(1), 10, 1, boundary=1.0)
    with pytest.raises(ShapeError, match="made for 2 inputs, got 3 columns"):
        LaplacianEigenfunctions(RBF(2), 10, 2)(torch.zeros(4, 3))


def test_precisions_are_finite_in_single_precision():
    basis = placed(RBF(2, 1.0), 2000, 1.5, low=-2.0, high=2.0).float().requires_grad_(False)
    assert float(basis.log_variances().min()) < -100.0
    precision = basis.precision_diagonal()
    assert precision.dtype == torch.float32
    assert bool(precision.log().sum().isfinite())
    logs = basis.log_variances()
    large = logs > -80.0
    torch.testing.assert_close(precision[large].log().double(), -logs[large], rtol=1e-5, atol=1e-4)
