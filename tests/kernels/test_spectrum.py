"""Spectral densities and frequency samplers."""

import math
from itertools import pairwise

import pytest
import torch

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import (
    RBF,
    AxisProduct,
    Cosine,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Scale,
    SpectralMixture,
    Wendland,
)

pytestmark = pytest.mark.usefixtures("float64_by_default")


@pytest.mark.parametrize(
    ("kernel", "omega", "golden"),
    [
        (RBF, 0.0, 2.5066283),
        (RBF, 0.5, 0.018027378),
        (Matern12, 0.0, 2.0),
        (Matern12, 0.2, 0.77545327),
        (Matern32, 0.0, 2.3094011),
        (Matern32, 1.0, 0.011518746),
        (Matern52, 0.2, 1.0469285),
    ],
)
def test_golden_densities_in_one_dimension(kernel, omega, golden):
    found = kernel(1).spectral_density(torch.tensor([[omega]])).item()
    assert found == pytest.approx(golden, rel=1e-7)


def test_smoother_kernels_have_faster_decaying_spectra():
    """Density of high frequencies, and eigenvalues of the operator on [0, 1] (uniform grid)."""
    order = [Matern12(1), Matern32(1), Matern52(1), RBF(1)]
    with torch.no_grad():
        densities = [k.double().spectral_density(torch.tensor([[3.0]])).item() for k in order]
        assert densities == sorted(densities, reverse=True)
        x = (torch.arange(600.0)[:, None] + 0.5) / 600.0
        tails = []
        for kernel in order:
            values = torch.linalg.eigvalsh(kernel.evaluate(x, x)).flip(0).clamp(min=0.0) / 600.0
            tails.append(values[5:20])
            if kernel is not order[-1]:
                # m^-(2 nu + 1), approached from above
                slope = math.log(float(values[100] / values[30])) / math.log(101 / 31)
                nu = (0.5, 1.5, 2.5)[order.index(kernel)]
                assert slope == pytest.approx(-(2 * nu + 1), abs=0.3)
    for rough, smooth in pairwise(tails):
        assert bool((smooth < rough).all())


def test_log_densities_go_where_densities_are_no_numbers():
    for kernel in (RBF(2, [0.8, 1.5], 1.7), Scale(Matern32(2, 0.8), 0.5), SpectralMixture(2, 3)):
        omega = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
        found = kernel.double().log_spectral_density(omega.double())
        torch.testing.assert_close(found, kernel.spectral_density(omega.double()).log())
    omega = torch.full((1, 800), 0.2)
    far = torch.cat((omega, 1.01 * omega)).double()
    log_density = RBF(800, 1.0).double().log_spectral_density(far).detach()
    want = -2 * math.pi**2 * 800 * 0.04 * (1.01**2 - 1)  # difference of the exponents
    assert float(log_density[1] - log_density[0]) == pytest.approx(want)
    assert bool(Matern12(800, 1.0).double().log_spectral_density(far).isfinite().all())


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(2, [0.8, 1.5], 1.7),
        Matern52(2, [0.8, 1.5], 1.7),
        Scale(RBF(2, [0.8, 1.5], 1.7), 0.5),
        SpectralMixture(2, 3, 1.7, 0.5, 0.15),
    ],
)
def test_density_transforms_back_to_the_kernel(kernel):
    kernel = kernel.double()
    # a grid sum is exact to the aliasing and truncation of the spectrum (Matern 5/2: 1e-4)
    step, reach = 0.02, 4.0
    axis = torch.arange(-reach, reach + step / 2, step)
    omega = torch.cartesian_prod(axis, axis)
    density = kernel.spectral_density(omega)
    tau = torch.tensor([[0.0, 0.0], [0.3, -0.2], [1.0, 0.7]])
    found = (2 * math.pi * tau @ omega.mT).cos() @ density * step**2
    wanted = kernel.evaluate(tau, torch.zeros(1, 2))[:, 0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=3e-4)


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(2, [0.8, 1.5], 1.7),
        Matern12(2, [0.8, 1.5], 1.7),
        Matern32(2, [0.8, 1.5], 1.7),
        Matern52(2, [0.8, 1.5], 1.7),
        Scale(Matern32(2, [0.8, 1.5], 1.7), 0.5),
        Cosine(2, [0.8, 1.5], 1.7),
        SpectralMixture(2, 3, 1.7, 0.5, 0.15),
    ],
    ids=lambda k: type(k).__name__,
)
def test_frequencies_reproduce_the_kernel(kernel):
    """Cosines lie in [-1, 1], so Hoeffding bounds a false alarm of one entry by 1e-9."""
    kernel = kernel.double()
    draws, tau = 200_000, torch.tensor([[0.0, 0.0], [0.3, -0.2], [1.0, 0.7], [2.5, -2.0]])
    normals = torch.randn(
        draws, kernel.spectral_normals, generator=torch.Generator().manual_seed(0)
    )
    w = kernel.spectral_frequencies(normals)
    found = kernel.outputscale * (tau @ w.mT).cos().mean(1)
    wanted = kernel.evaluate(tau, torch.zeros(1, 2))[:, 0]
    slack = math.sqrt(2 * math.log(2 / 1e-9) / draws) * kernel.outputscale.item()
    assert slack < 0.03
    assert (found - wanted).abs().max().item() < slack


@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
def test_lengthscale_gradients_flow_through_frequencies(kernel):
    k = kernel(2, [0.8, 1.5])
    normals = torch.randn(6, k.spectral_normals, generator=torch.Generator().manual_seed(1))
    w = k.spectral_frequencies(normals)
    (gradient,) = torch.autograd.grad(w.sum(), k.parametrizations.lengthscale.original)
    # w is inversely proportional to the lengthscale; softplus has the slope 1 - exp(-value)
    slope = 1 - torch.exp(-(k.lengthscale - 1e-6))
    torch.testing.assert_close(gradient, -(w.sum(0) / k.lengthscale * slope).detach())


def test_what_is_missing_is_said_in_one_sentence():
    with pytest.raises(ConfigError, match="set ard_num_dims"):
        _ = RBF().spectral_normals
    assert RBF().num_spectral_normals(5) == 5
    assert Matern32().num_spectral_normals(5) == 8
    silent: list[Kernel] = [RationalQuadratic(2), RBF(2) + Matern12(2), RBF(2) * Matern12(2)]
    for kernel in silent:
        with pytest.raises(ConfigError, match="no such spectral representation"):
            _ = kernel.spectral_normals
    with pytest.raises(ConfigError, match="select the columns"):
        RBF(2, active_dims=[0, 1]).spectral_frequencies(torch.zeros(1, 2))


def test_a_product_over_axes_has_the_spectra_of_its_factors_side_by_side():
    lengthscale = torch.tensor([0.7, 1.0, 1.6])
    laplace = AxisProduct("matern12", 3, None, lengthscale.tolist(), 1.3)
    omega = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    cauchy = 2.0 * lengthscale / (1.0 + (2.0 * math.pi * omega * lengthscale).square())
    torch.testing.assert_close(laplace.spectral_density(omega), 1.3 * cauchy.prod(1))
    normals = torch.randn(5, laplace.spectral_normals, generator=torch.Generator().manual_seed(1))
    want = normals[:, :3] / normals[:, 3:].abs() / lengthscale
    torch.testing.assert_close(laplace.spectral_frequencies(normals), want)
    # columns in the order of the data, whatever the order of the axes
    mixed = AxisProduct(["rbf", "matern32"], 3, [[2], [0, 1]], lengthscale.tolist())
    normals = torch.randn(5, mixed.spectral_normals, generator=torch.Generator().manual_seed(2))
    found = mixed.spectral_frequencies(normals)
    torch.testing.assert_close(found[:, 2], normals[:, 2] / 1.6)
    stretch = (3.0 / normals[:, 3:].square().sum(1, keepdim=True)).sqrt()
    torch.testing.assert_close(found[:, :2], normals[:, :2] * stretch / lengthscale[:2])


def test_products_that_leave_out_columns_have_no_frequencies():
    partial = AxisProduct("rbf", 3, [[0], [2]])
    for ask in (
        lambda: partial.spectral_normals,
        lambda: partial.spectral_density(torch.zeros(1, 3)),
        lambda: partial.spectral_frequencies(torch.zeros(1, 3)),
    ):
        with pytest.raises(ConfigError, match=r"leaves out input columns \(axes=\[\[0\], \[2\]\]"):
            ask()
    with pytest.raises(ShapeError, match="of 3 inputs makes a frequency of 3 normals, got 2"):
        AxisProduct("rbf", 3).spectral_frequencies(torch.zeros(1, 2))


@pytest.mark.parametrize("family", [Periodic, RationalQuadratic, Wendland])
def test_what_factors_do_not_know_their_product_does_not_either(family):
    product = AxisProduct(family, 2)
    for ask in (
        lambda: family(1).log_spectral_density(torch.zeros(1, 1)),
        lambda: product.spectral_normals,
        lambda: product.spectral_density(torch.zeros(1, 2)),
        lambda: product.draw_frequencies(3, 2, generator=torch.Generator()),
    ):
        with pytest.raises(ConfigError, match=f"{family.__name__} has no such spectral represent"):
            ask()
