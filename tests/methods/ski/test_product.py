"""Interpolated product kernels against the dense E K_UU E^T, and beside SKI."""

import math

import pytest
import torch

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.kernels import RBF, AxisProduct, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import RegularAxis
from gpx.linalg.interpolation import interpolate
from gpx.means import Constant, Zero
from gpx.methods.ski.product import InterpolatedProduct
from gpx.models import SKI, ExactGP
from gpx.objectives import ExactMLL, IterativeMLL, SKIEvidence

AXES = [(-1.5, 1.5, 9), (-1.2, 1.4, 7), (-1.3, 1.3, 8), (-1.5, 1.2, 6)]


def kernel(d, name="rbf"):
    if name == "rbf":
        return RBF(d, torch.linspace(0.7, 1.1, d).tolist(), 1.3)
    return AxisProduct("matern32", d, lengthscale=0.9, outputscale=1.3)


def inputs(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.rand(n, d, generator=generator, dtype=torch.float64) - 1.0


def dense(plain, x, axes, method):
    """E K_UU E^T on the whole grid, as a matrix."""
    regular = [RegularAxis(a, (b - a) / (m - 1), m) for a, b, m in axes]
    places, values = interpolate(x, regular, method=method, boundary="keys")
    points = torch.cartesian_prod(*[axis.points(x) for axis in regular])
    weights = values.new_zeros(len(x), len(points)).scatter_add(1, places, values)
    return weights @ plain.evaluate(points) @ weights.mT


@pytest.mark.parametrize("name", ["rbf", "matern"])
@pytest.mark.parametrize("method", ["cubic", "linear"])
def test_it_is_the_interpolated_grid(name, method):
    x, axes = inputs(15, 3), AXES[:3]
    plain = kernel(3, name).double()
    found = InterpolatedProduct(plain, axes, method).double()
    want = dense(plain, x, axes, method)
    torch.testing.assert_close(found.evaluate(x), want, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.evaluate(x[:4], x), want[:4], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.diagonal(x), want.diagonal(), rtol=1e-11, atol=1e-12)
    weight = inputs(15, 15, 1)
    values = [(matrix * weight).sum() for matrix in (found.evaluate(x), want)]
    gradients = [torch.autograd.grad(value, list(plain.parameters())) for value in values]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_at_points_of_the_axes_it_is_the_kernel():
    plain = kernel(4).double()
    found = InterpolatedProduct(plain, AXES).double()
    generator = torch.Generator().manual_seed(0)
    places = torch.stack([torch.randint(m, (12,), generator=generator) for _, _, m in AXES], 1)
    step = torch.tensor([(b - a) / (m - 1) for a, b, m in AXES], dtype=torch.float64)
    x = torch.tensor([a for a, _, _ in AXES], dtype=torch.float64) + places * step
    torch.testing.assert_close(found.evaluate(x), plain.evaluate(x), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("d", [2, 3])
def test_with_few_inputs_it_is_structured_interpolation(d):
    """Evidence, its gradient and predictions of ``SKI`` on the same grid."""
    x = inputs(60, d)
    y = (2.0 * x).sin().sum(1)
    parts = {"mean": Constant(0.2), "likelihood": Gaussian(0.05)}
    axes = [(-1.4, 1.4, 8 + i) for i in range(d)]
    grid = SKI(
        kernel=kernel(d), num_inputs=d, grid_size=[8 + i for i in range(d)], **parts
    ).double()
    grid.initialise(x, y, generator=torch.Generator().manual_seed(0))
    axes = [(a.start, a.start + a.spacing * (a.size - 1), a.size) for a in grid.grid.axes]
    exact = ExactGP(kernel=InterpolatedProduct(grid.kernel, axes), **parts).double()
    one = ExactMLL().evidence(exact, x, y).value
    other = SKIEvidence(logdet="cholesky").evidence(grid, x, y).value
    torch.testing.assert_close(one, other, rtol=1e-10, atol=0.0)
    parameters = list(grid.kernel.parameters())
    for first, second in zip(
        torch.autograd.grad(one, parameters), torch.autograd.grad(other, parameters), strict=True
    ):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-8)
    with torch.no_grad():
        at = 0.9 * inputs(9, d, 3)
        means = [model.condition(x, y).predict(at).mean for model in (exact, grid)]
    torch.testing.assert_close(*means, rtol=1e-6, atol=1e-7)


def test_six_inputs_are_solved_without_a_grid():
    """A grid of 12^6 points, in the evidence by conjugate gradients, near the kernel's own."""
    x = inputs(150, 6)
    y = x.sum(1).sin()
    axes = [(-1.4, 1.4, 12)] * 6
    values = []
    for own in (InterpolatedProduct(RBF(6, 1.2), axes), RBF(6, 1.2)):
        model = ExactGP(kernel=own, mean=Zero(), likelihood=Gaussian(0.05)).double()
        values.append(float(ExactMLL().evidence(model, x, y).value.detach()))
        model.solver = "iterative"
        found = IterativeMLL(probes=64).evidence(
            model, x, y, generator=torch.Generator().manual_seed(0)
        )
        assert math.isclose(float(found.value.detach()), values[-1], abs_tol=1.0)
    assert math.isclose(*values, rel_tol=0.01)


def test_float32_inputs_have_the_kernel_in_float32():
    found = InterpolatedProduct(kernel(2), AXES[:2])
    x = inputs(6, 2)
    assert found.evaluate(x.float()).dtype == torch.float32
    torch.testing.assert_close(found.evaluate(x).float(), found.evaluate(x.float()))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: InterpolatedProduct(Matern32(2), AXES[:2]), "no product of one-dimensional"),
        (lambda: InterpolatedProduct(RBF(1), [(0.0, 1.0, 3)]), "axis 0 has 3 points from 0 to 1"),
        (lambda: InterpolatedProduct(RBF(1), [(1.0, 1.0, 8)]), "a last point above the first"),
        (lambda: InterpolatedProduct(RBF(1), [(0.0, 1.0, 8.5)]), "size=8.5: expected a whole"),
        (lambda: InterpolatedProduct(RBF(1), []), "the first and the last point of every input"),
        (lambda: InterpolatedProduct(RBF(1), AXES[:1], "spline"), "interpolation=spline"),
    ],
)
def test_invalid_setups_are_refused(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_inputs_beyond_the_axes_are_refused():
    found = InterpolatedProduct(kernel(2), AXES[:2]).double()
    with pytest.raises(DataError, match=r"axis 0, from -1\.5 to 1\.5, does not hold all inputs"):
        found.evaluate(torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64))
    with pytest.raises(ShapeError, match="axes are given for 2 inputs and x has 3 columns"):
        found.evaluate(inputs(4, 3))
