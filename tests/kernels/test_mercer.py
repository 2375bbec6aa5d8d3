"""Mercer decomposition of the RBF kernel: reconstruction, orthonormality, tails, gradients."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32, Periodic
from gpx.kernels.mercer import leading_orders, mercer_spectrum, weighted_eigenfunctions

ZERO = torch.zeros(1, dtype=torch.float64)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def rbf(*lengthscale, outputscale=1.0):
    d = len(lengthscale)
    kernel = RBF(ard_num_dims=None if d == 1 else d).double()
    kernel.lengthscale = double(*lengthscale) if d > 1 else double(*lengthscale)[0]
    kernel.outputscale = double(outputscale)[0]
    return kernel


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
@torch.no_grad()
def test_sixty_terms_give_the_kernel_back(spread):
    x = double(-1.7, -0.4, 0.0, 0.9, 2.1)[:, None]
    orders = torch.arange(60)[:, None]
    for kernel in (rbf(1.0), rbf(0.9)):
        found = weighted_eigenfunctions(kernel, x, ZERO + 0.1, double(spread), orders)
        torch.testing.assert_close(found @ found.mT, kernel.evaluate(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
@torch.no_grad()
def test_eigenfunctions_are_orthonormal_under_the_density(spread):
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    x = 0.3 + spread * torch.from_numpy(nodes)[:, None]
    weights = torch.from_numpy(weights) / math.sqrt(2 * math.pi)
    spectrum = mercer_spectrum(rbf(1.0), double(spread), 5)
    found = weighted_eigenfunctions(rbf(1.0), x, ZERO + 0.3, double(spread), spectrum.orders)
    functions = found / spectrum.eigenvalues.sqrt()
    gram = functions.mT @ (weights[:, None] * functions)
    torch.testing.assert_close(gram, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1e-200])
def test_a_constant_input_has_order_zero(spread):
    found = mercer_spectrum(rbf(1.0, 2.0), double(1.0, spread), 20)
    one = mercer_spectrum(rbf(1.0), double(1.0), 20)
    assert not found.orders[:, 1].any()
    torch.testing.assert_close(found.eigenvalues, one.eigenvalues, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.tails, one.tails, rtol=1e-12, atol=0)


def test_eigenvalues_and_tails_of_one_input():
    spectrum = mercer_spectrum(rbf(1.0), double(1.0), 40)
    base = 2.6180339887498949
    assert float(spectrum.eigenvalues[0]) == pytest.approx(1 - 1 / base, rel=1e-13)
    want = base ** -torch.arange(41, dtype=torch.float64)
    torch.testing.assert_close(spectrum.tails, want, rtol=1e-12, atol=0)
    scaled = mercer_spectrum(rbf(0.5, outputscale=3.0), double(0.5), 40)  # the ratio alone counts
    torch.testing.assert_close(scaled.tails, 3.0 * want, rtol=1e-12, atol=0)


def test_eigenvalues_of_several_inputs_and_their_tails():
    spectrum = mercer_spectrum(rbf(1.0, 1.0, 1.0), double(1.0, 1.0, 1.0), 20)
    base, ratio = 2.6180339887498949, 1 - 1 / 2.6180339887498949
    level = spectrum.orders.sum(1)
    assert level.tolist() == [0] + 3 * [1] + 6 * [2] + 10 * [3]
    want = ratio**3 * base ** -level.double()
    torch.testing.assert_close(spectrum.eigenvalues, want, rtol=1e-12, atol=0)
    # negative binomial: mass of the levels above 3
    above = sum(math.comb(j + 2, 2) * ratio**3 * base**-j for j in range(4, 200))
    assert float(spectrum.tails[20]) == pytest.approx(above, rel=1e-12)
    ragged = mercer_spectrum(rbf(0.4, 1.1, 2.0, outputscale=1.7), double(1.0, 2.0, 0.7), 3000)
    assert float(ragged.tails[0]) == pytest.approx(1.7, rel=1e-12)
    assert bool((ragged.eigenvalues.diff() <= 1e-16).all())
    seventh = mercer_spectrum(rbf(0.4, 1.1, 2.0, outputscale=1.7), double(1.0, 2.0, 0.7), 7)
    torch.testing.assert_close(seventh.tails, ragged.tails[:8], rtol=1e-10, atol=0)


def test_orders_are_the_smallest_sums_and_hold_what_lies_below():
    weights = [0.9, 0.31, 2.0]
    found = leading_orders(weights, 60)
    box = torch.cartesian_prod(*(torch.arange(40),) * 3)
    sums = (box.double() @ double(*weights)).sort().values
    torch.testing.assert_close(found.double() @ double(*weights), sums[:60])
    rows = {tuple(row) for row in found.tolist()}
    assert len(rows) == 60
    for row in rows:
        for i in range(3):
            assert row[i] == 0 or (*row[:i], row[i] - 1, *row[i + 1 :]) in rows


@torch.no_grad()
def test_spectrum_of_a_sample_tends_to_it():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 1, generator=generator, dtype=torch.float64)
    values = torch.linalg.eigvalsh(rbf(1.0).evaluate(x)).flip(0)[:5] / len(x)
    want = mercer_spectrum(rbf(1.0), double(1.0), 5).eigenvalues
    # standard error of an eigenvalue about 3 %
    torch.testing.assert_close(values, want, rtol=0.1, atol=0)


class Features(nn.Module):
    def __init__(self, kernel, orders):
        super().__init__()
        self.kernel, self.orders = kernel, orders

    def forward(self, x):
        density = double(0.1, 0.0), double(1.0, 0.7)
        return weighted_eigenfunctions(self.kernel, x, *density, self.orders)


def test_gradient():
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    orders = torch.tensor([[0, 0], [3, 1], [2, 4]])

    module = Features(rbf(0.8, 1.3, outputscale=1.4), orders)
    names, values = zip(*module.named_parameters(), strict=True)

    def found(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(found, (x.requires_grad_(), *values))


@torch.no_grad()
def test_far_out_the_features_never_exceed_the_kernel():
    x = torch.logspace(-1, 6, 200, dtype=torch.float64)[:, None]
    for spread in (0.1, 1.0, 30.0):
        found = weighted_eigenfunctions(
            rbf(1.0), x, ZERO, double(spread), torch.arange(80)[:, None]
        )
        assert bool(torch.isfinite(found).all())
        assert float(found.square().sum(1).max()) <= 1.0 + 1e-10


def test_kernels_without_it_say_so():
    for kernel in (Matern32(), Periodic()):
        with pytest.raises(ConfigError, match=f"{kernel.name} has no Mercer decomposition"):
            mercer_spectrum(kernel, double(1.0), 3)
    with pytest.raises(ConfigError, match="without active_dims"):
        mercer_spectrum(RBF(active_dims=[0]), double(1.0), 3)
