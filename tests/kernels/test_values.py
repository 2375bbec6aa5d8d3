"""Every kernel against its closed form in NumPy, and against GPyTorch where that has it."""

import gpytorch
import kernel_functions
import numpy as np
import pytest
import torch

from gpx import kernels
from gpx.errors import ConfigError, ShapeError

L = np.array([0.7, 1.0, 1.6])


pytestmark = pytest.mark.usefixtures("float64_by_default")


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 3)) + 5.0, rng.normal(size=(30, 3)) + 5.0


def evaluate(kernel, points):
    return kernel.evaluate(*map(torch.as_tensor, points)).detach().numpy()


CASES = {
    "rbf": (lambda: kernels.RBF(3, L, 1.3), lambda x, z: kernel_functions.rbf(x, z, L, 1.3)),
    "matern12": (
        lambda: kernels.Matern12(3, L, 1.3),
        lambda x, z: kernel_functions.matern(x, z, L, 1.3, 0.5),
    ),
    "matern32": (
        lambda: kernels.Matern32(3, L, 1.3),
        lambda x, z: kernel_functions.matern(x, z, L, 1.3, 1.5),
    ),
    "matern52": (
        lambda: kernels.Matern52(3, L, 1.3),
        lambda x, z: kernel_functions.matern(x, z, L, 1.3, 2.5),
    ),
    "rational_quadratic": (
        lambda: kernels.RationalQuadratic(3, L, 1.3, alpha=0.8),
        lambda x, z: kernel_functions.rational_quadratic(x, z, L, 1.3, 0.8),
    ),
    "periodic": (
        lambda: kernels.Periodic(3, L, 1.3, period=[1.1, 2.0, 3.0]),
        lambda x, z: kernel_functions.periodic(x, z, L, 1.3, np.array([1.1, 2.0, 3.0])),
    ),
    "linear": (
        lambda: kernels.Linear(3, [0.5, 1.0, 2.0]),
        lambda x, z: kernel_functions.linear(x, z, np.array([0.5, 1.0, 2.0])),
    ),
    "polynomial": (
        lambda: kernels.Polynomial(3, 0.7, 0.2),
        lambda x, z: kernel_functions.polynomial(x, z, 3, 0.7, 0.2),
    ),
    "polynomial with lengthscales": (
        lambda: kernels.Polynomial(3, 1.0, 0.2, ard_num_dims=3, lengthscale=[0.5, 1.0, 2.0]),
        lambda x, z: kernel_functions.polynomial(
            x / [0.5, 1.0, 2.0], z / [0.5, 1.0, 2.0], 3, 1, 0.2
        ),
    ),
    "cosine": (
        lambda: kernels.Cosine(3, [1.5, 2.0, 4.0], 1.3),
        lambda x, z: kernel_functions.cosine(x, z, np.array([1.5, 2.0, 4.0]), 1.3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_closed_form_to_twelve_digits(name, points):
    make, expected = CASES[name]
    wanted = expected(*points)
    np.testing.assert_allclose(
        evaluate(make(), points), wanted, rtol=0, atol=1e-12 * np.abs(wanted).max()
    )


def test_spectral_mixture_closed_form(points):
    kernel = kernels.SpectralMixture(3, 2, 1.3, 0.4, 0.2)
    values = [kernel.weight, kernel.frequency, kernel.scale]
    wanted = kernel_functions.spectral_mixture(*points, *[v.detach().numpy() for v in values])
    np.testing.assert_allclose(evaluate(kernel, points), wanted, rtol=0, atol=1e-12)


def scaled(base, outputscale=1.3, **settings):
    for name, value in settings.items():
        setattr(base, name, torch.as_tensor(value))
    kernel = gpytorch.kernels.ScaleKernel(base)
    kernel.outputscale = outputscale
    return kernel


PEERS = {
    "rbf": lambda: scaled(gpytorch.kernels.RBFKernel(ard_num_dims=3), lengthscale=L),
    "matern12": lambda: scaled(gpytorch.kernels.MaternKernel(0.5, ard_num_dims=3), lengthscale=L),
    "matern32": lambda: scaled(gpytorch.kernels.MaternKernel(1.5, ard_num_dims=3), lengthscale=L),
    "matern52": lambda: scaled(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=3), lengthscale=L),
    "rational_quadratic": lambda: scaled(
        gpytorch.kernels.RQKernel(ard_num_dims=3), lengthscale=L, alpha=0.8
    ),
    # GPyTorch divides sin^2 by the lengthscale, gpx by its square
    "periodic": lambda: scaled(
        gpytorch.kernels.PeriodicKernel(ard_num_dims=3),
        lengthscale=L**2,
        period_length=[1.1, 2.0, 3.0],
    ),
    "linear": lambda: scaled(
        gpytorch.kernels.LinearKernel(ard_num_dims=3), 1.0, variance=[[0.5, 1.0, 2.0]]
    ),
    "polynomial": lambda: scaled(gpytorch.kernels.PolynomialKernel(3), 0.2, offset=0.7),
}


@pytest.mark.parametrize("name", PEERS)
def test_gpytorch_gives_the_same(name, points):
    x, z = map(torch.as_tensor, points)
    theirs = PEERS[name]()(x, z).to_dense().detach().numpy()
    ours = evaluate(CASES[name][0](), points)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10 * np.abs(theirs).max())


def test_gpytorch_cosine_in_one_dimension_has_half_the_period(points):
    x, z = (torch.as_tensor(p[:, :1]) for p in points)
    theirs = gpytorch.kernels.CosineKernel()
    theirs.period_length = 0.75
    ours = kernels.Cosine(1, 1.5).evaluate(x, z)
    torch.testing.assert_close(ours, theirs(x, z).to_dense(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("num_mixtures", "d"), [(3, 1), (1, 2)])
def test_gpytorch_spectral_mixture_where_the_definitions_agree(points, num_mixtures, d):
    """GPyTorch multiplies one-dimensional mixtures: the same for one dimension or one component."""
    x, z = (torch.as_tensor(p[:, :d]) for p in points)
    ours = kernels.SpectralMixture(d, num_mixtures, 1.0, 0.4, 0.2)
    theirs = gpytorch.kernels.SpectralMixtureKernel(num_mixtures, d)
    theirs.mixture_weights = ours.weight.detach()
    theirs.mixture_means = ours.frequency.detach().unsqueeze(1)
    theirs.mixture_scales = ours.scale.detach().unsqueeze(1)
    torch.testing.assert_close(ours.evaluate(x, z), theirs(x, z).to_dense(), rtol=0, atol=1e-10)


def test_constant_takes_the_dtype_of_its_inputs(points):
    x, z = (torch.as_tensor(p, dtype=torch.float64) for p in points)
    kernel = kernels.Constant(1.3).float()  # K_zz of a float32 model is evaluated in float64
    assert kernel.evaluate(x, z).dtype == torch.float64
    assert kernel.diagonal(x).dtype == torch.float64


def test_lengthscales_of_a_polynomial():
    x = torch.ones(2, 3)
    with pytest.raises(ConfigError, match=r"ard_num_dims=3 of a polynomial kernel .* give length"):
        kernels.Polynomial(ard_num_dims=3)
    with pytest.raises(ShapeError, match="Polynomial has 2 lengthscales but the inputs have 3"):
        kernels.Polynomial(ard_num_dims=2, lengthscale=1.0).evaluate(x)
    one, several = (
        kernels.Polynomial(lengthscale=0.5),
        kernels.Polynomial(ard_num_dims=3, lengthscale=0.5),
    )
    torch.testing.assert_close(one.evaluate(x), several.evaluate(x))
    assert "lengthscale" not in str(kernels.Polynomial().state_dict())
