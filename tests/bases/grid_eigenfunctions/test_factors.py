"""One-dimensional squared exponentials at evenly spaced nodes: two exponentials a point."""

import pytest
import torch

from gpx.bases.grid_eigenfunctions.factors import ProductFactors, _even_step
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32, Periodic, Wendland

DOUBLE = torch.float64


def problem(lengthscale, *, dtype=DOUBLE, uneven=False, reach=1.3):
    generator = torch.Generator().manual_seed(0)
    nodes = torch.stack([torch.linspace(a, b, 10, dtype=DOUBLE) for a, b in ((-1, 1), (0, 5))])
    if uneven:
        nodes[1, 4] += 1e-12
    x = nodes.mean(1) + reach * (nodes[:, -1] - nodes.mean(1)) * (
        2.0 * torch.rand(50, 2, generator=generator, dtype=DOUBLE) - 1.0
    )
    kernel = RBF(ard_num_dims=2, lengthscale=lengthscale, outputscale=None).to(dtype)
    return ProductFactors(kernel, 2), kernel, nodes.to(dtype), x.to(dtype)


class Warped(RBF):
    """A squared exponential of exp(x)."""

    def coordinates(self, x):
        return x.exp() / self.lengthscale


class WarpedMatern(Matern32):
    """The same for another profile."""

    def coordinates(self, x):
        return x.exp() / self.lengthscale


class WarpedPeriodic(Periodic):
    """A periodic kernel of x^3."""

    def coordinates(self, x):
        return super().coordinates(x**3)


class LongTailed(RBF):
    """Another profile over several columns, which is no product."""

    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2)


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (Warped(1), "coordinates of its own"),
        (Warped(2, active_dims=[0, 1]), "coordinates of its own"),
        (WarpedMatern(1, active_dims=[1]), "coordinates of its own"),
        (WarpedPeriodic(1), "coordinates of its own"),
        (LongTailed(2), "over 2 columns is no product"),
    ],
)
def test_kernels_that_one_dimensional_profiles_do_not_give_are_refused(kernel, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ProductFactors(kernel, kernel.ard_num_dims if kernel.active_dims is None else 2)


@pytest.mark.parametrize("kind", [LongTailed, Wendland, Periodic])
def test_factors_of_one_column_are_its_covariances(kind):
    kernel = kind(1, lengthscale=0.7, outputscale=2.0).to(DOUBLE)
    nodes = torch.linspace(-1.0, 1.0, 4, dtype=DOUBLE)[None]
    x = torch.linspace(-2.0, 1.5, 6, dtype=DOUBLE)[:, None]
    factors = ProductFactors(kernel, 1)
    found = factors.outputscale * factors.evaluate(nodes, x)[0]
    torch.testing.assert_close(found, kernel.evaluate(nodes.mT, x))


def direct(kernel, nodes, x):
    scaled = (nodes.unsqueeze(2) - x.mT.unsqueeze(1)) / kernel.lengthscale[:, None, None]
    return (-0.5 * scaled.square()).exp()


@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize(
    ("lengthscale", "options", "stepped"),
    [
        ([0.3, 2.0], {}, True),
        ([40.0, 900.0], {}, True),
        ([0.3, 2.0], {"uneven": True}, False),
        ([0.02, 2.0], {}, False),  # 100 lengthscales from end to end: the first value vanishes
        ([0.3, 2.0], {"reach": 9.0}, False),  # and so it does for points far outside
    ],
)
def test_values_and_gradient_are_those_of_an_exponential_each(
    lengthscale, options, stepped, dtype, tolerance
):
    factors, kernel, nodes, x = problem(lengthscale, dtype=dtype, **options)
    with torch.no_grad():
        step = _even_step(nodes, x.mT, kernel.lengthscale.unsqueeze(1))
    assert (step is not None) == (stepped or (dtype != DOUBLE and "uneven" in options))
    got, want = factors.evaluate(nodes, x), direct(kernel, nodes, x)
    # relative wherever exponentials are ordinary numbers, also far below one
    torch.testing.assert_close(got, want, rtol=100 * tolerance, atol=1e-28)
    weight = torch.rand(want.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    gradients = [
        torch.autograd.grad((weight * value).sum(), tuple(kernel.parameters()))[0]
        for value in (got, want)
    ]
    torch.testing.assert_close(*gradients, rtol=1e3 * tolerance, atol=1e-25)
