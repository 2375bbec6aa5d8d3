"""How many points are needed, before data: golden numbers, and bounds against what happens."""

import pytest
import torch

from gpx.diagnostics import (
    determinantal_kl_bound,
    effective_dimension,
    expected_effective_dimension,
    expected_kl,
    leverage_kl_bound,
    suggest_num_inducing,
)
from gpx.errors import ConfigError
from gpx.inducing import Determinantal
from gpx.kernels import RBF, Matern32
from gpx.kernels.mercer import mercer_spectrum

BASE = 2.6180339887498949
ONE = torch.ones(1, dtype=torch.float64)


def rbf():
    kernel = RBF().double()
    kernel.lengthscale = kernel.outputscale = torch.ones((), dtype=torch.float64)
    return kernel


@pytest.mark.parametrize(
    ("tolerance", "want"), [(1.0, [10, 13, 15, 18, 20]), (0.1, [13, 15, 18, 20, 23])]
)
def test_golden_numbers_of_points(tolerance, want):
    found = [suggest_num_inducing(rbf(), ONE, 10**k, 0.1, tolerance) for k in range(2, 7)]
    assert [f.num_inducing for f in found] == want
    for k, f in zip(range(2, 7), found, strict=True):
        m = f.num_inducing
        assert f.tail == pytest.approx(BASE**-m, rel=1e-10)
        assert f.kl_bound == pytest.approx(10**k / 0.1 * (m + 1) * BASE**-m, rel=1e-10)
        assert f.kl_bound <= tolerance < 10**k / 0.1 * m * BASE ** -(m - 1)


def test_a_constant_input_needs_no_points():
    kernel = RBF().double()
    spread = torch.tensor([1.0, 0.0])
    assert suggest_num_inducing(kernel, spread, 1000, 0.1, 1.0) == pytest.approx(
        suggest_num_inducing(kernel, spread[:1], 1000, 0.1, 1.0)
    )


def test_the_number_is_found_beyond_the_first_eigenvalues():
    kernel = RBF(ard_num_dims=2, lengthscale=[0.7, 1.0]).double()
    spread = torch.ones(2, dtype=torch.float64)
    found = suggest_num_inducing(kernel, spread, 1000, 0.1, 1.0)
    assert found.num_inducing > 64
    tails = mercer_spectrum(kernel, spread, found.num_inducing).tails
    at = determinantal_kl_bound(tails[-1], found.num_inducing, 1000, 0.1)
    before = determinantal_kl_bound(tails[-2], found.num_inducing - 1, 1000, 0.1)
    assert float(at) <= 1.0 < float(before)


def test_formulas():
    assert float(determinantal_kl_bound(1e-3, 4, 100, 0.5)) == pytest.approx(1.0)
    other = determinantal_kl_bound(
        1e-3, 4, 100, 0.5, mean_square=2.0, density_ratio=3.0, prior_variance=1.5, accuracy=1e-2
    )
    assert float(other) == pytest.approx(100 * (15e-3 + 15e-3) * (1 + 400) * 0.5 / 0.5)
    assert float(leverage_kl_bound(1e-3, 5, 100, 0.5, 0.02)) == pytest.approx(1e4)
    any_law = leverage_kl_bound(1e-3, 5, 100, 0.5, 0.02, mean_square=2.0)
    assert float(any_law) == pytest.approx(0.5 * 1e4 * 0.02 * (1 + 200))


@torch.no_grad()
def test_determinantal_draws_keep_the_bounds():
    n, noise, kernel = 200, torch.tensor(0.1, dtype=torch.float64), rbf()
    spectrum = mercer_spectrum(kernel, ONE, 8)
    for m in (4, 8):
        kls, traces, beyond, dimensions = [], [], [], []
        for seed in range(6):
            draws = torch.Generator().manual_seed(seed)
            x = torch.randn(n, 1, generator=draws, dtype=torch.float64)
            z = Determinantal(steps=600)(x, kernel, m, generator=draws)
            kls.append(float(expected_kl(kernel, x, z, noise)))
            gram, cross = kernel.evaluate(z), kernel.evaluate(z, x)
            traces.append(n - float((cross * torch.linalg.solve(gram, cross)).sum()))
            values = torch.linalg.eigvalsh(kernel.evaluate(x)).flip(0)
            beyond.append(float(values[m:].sum()))
            dimensions.append(float(effective_dimension(values, noise)))
        mean = [sum(column) / 6 for column in (kls, traces, beyond)]
        bound = float(determinantal_kl_bound(spectrum.tails[m], m, n, float(noise)))
        assert mean[0] <= bound
        assert mean[1] <= (m + 1) * mean[2]
        assert mean[2] <= n * float(spectrum.tails[m])
        assert sum(dimensions) / 6 <= expected_effective_dimension(spectrum, n, float(noise))
    assert 0.1 < mean[0] < 10.0  # about one nat at eight points


def test_effective_dimension_and_its_bounds():
    x = torch.linspace(0, 5, 50, dtype=torch.float64)[:, None]
    noise = torch.tensor(0.1, dtype=torch.float64)
    with torch.no_grad():
        matrix = Matern32().double().evaluate(x)
    dense = (matrix @ torch.linalg.inv(matrix + noise * torch.eye(50, dtype=torch.float64))).trace()
    values = torch.linalg.eigvalsh(matrix).flip(0)
    found = float(effective_dimension(values, noise))
    assert found == pytest.approx(float(dense), rel=1e-9)
    assert all(found <= m + float(values[m:].sum() / noise) for m in range(50))


def test_mistakes_are_explained():
    with pytest.raises(ConfigError, match="no Mercer decomposition"):
        suggest_num_inducing(Matern32(), ONE, 100, 0.1, 1.0)
    with pytest.raises(ConfigError, match=r"tolerance=0.0 must be positive"):
        suggest_num_inducing(rbf(), ONE, 100, 0.1, 0.0)
    with pytest.raises(ConfigError, match=r"5 inducing points only bound .* nats, above"):
        suggest_num_inducing(rbf(), ONE, 100, 0.1, 1.0, most=5)
    with pytest.raises(ConfigError, match="between 0 and 1/32"):
        leverage_kl_bound(1e-3, 5, 100, 0.5, 0.1)
