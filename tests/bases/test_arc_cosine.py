"""Random features of arc-cosine kernels: unbiased, at the errors of the table."""

import math

import pytest
import torch

from gpx.bases import ArcCosineFeatures
from gpx.errors import ConfigError
from gpx.kernels import RBF, ArcCosine

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n=20, d=16, seed=1):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("order", "error"), [(0, 0.006), (1, 0.008), (2, 0.017)])
def test_relative_errors_are_those_of_the_table(order, error):
    # Frobenius norm, 64,000 units, 16 inputs; an eighth of the units has the error times sqrt 8
    x, kernel = inputs(), ArcCosine(order, 16, 1.3, 0.7)
    exact = kernel.evaluate(x).detach()
    with torch.no_grad():
        features = [ArcCosineFeatures(kernel, 8000, 16, seed)(x) for seed in range(12)]
    squares = [(phi @ phi.T - exact).square().sum() for phi in features]
    found = math.sqrt(float(torch.stack(squares).mean() / exact.square().sum() / 8.0))
    assert found == pytest.approx(error, rel=0.3)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("directions", ["independent", "orthogonal", "fastfood"])
def test_the_kernel_is_the_mean_of_the_features(order, directions):
    x, kernel = inputs(6, 3), ArcCosine(order, 3, [0.7, 1.0, 1.6], 1.3)
    exact, gaps = kernel.evaluate(x).detach(), []
    for seed in range(100):
        phi = ArcCosineFeatures(kernel, 120, 3, seed, directions)(x).detach()
        gaps.append(phi @ phi.T - exact)
    gaps = torch.stack(gaps)
    # 21 entries: five standard errors are a false alarm in 80,000
    assert bool((gaps.mean(0).abs() < 5 * gaps.std(0) / 10.0).all())


@pytest.mark.parametrize(
    ("directions", "error"), [("independent", 0.031), ("orthogonal", 0.019), ("structured", 0.018)]
)
def test_tied_directions_have_the_errors_of_the_table(directions, error):
    # relative squared error of 256 rectified linear units in 64 inputs
    x, kernel = inputs(30, 64), ArcCosine(1, 64, 8.0)
    exact = kernel.evaluate(x).detach()
    with torch.no_grad():
        made = [ArcCosineFeatures(kernel, 256, 64, s, directions)(x) for s in range(25)]
    gaps = torch.stack([phi @ phi.T - exact for phi in made])
    found = float(gaps.square().mean() / exact.square().mean())
    assert found == pytest.approx(error, rel=0.3)


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="of an ArcCosine kernel of all inputs, got RBF"):
        ArcCosineFeatures(RBF(2), 10, 2)
    with pytest.raises(ConfigError, match=r"got ArcCosine; .* active_dims=None"):
        ArcCosineFeatures(ArcCosine(1, active_dims=[0]), 10, 2)
    with pytest.raises(ConfigError, match="directions=any: expected one of independent"):
        ArcCosineFeatures(ArcCosine(1), 10, 2, directions="any")
    with pytest.raises(ConfigError, match="num_basis=0 must be at least 1"):
        ArcCosineFeatures(ArcCosine(1), 0, 2)
