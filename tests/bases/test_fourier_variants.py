"""Orthogonal, structured and quadrature frequencies: one contract, better kernel approximations."""

import itertools
import math

import pytest
import torch

from gpx.bases import (
    GaussHermiteFourier,
    OrthogonalFourier,
    QuasiMonteCarloFourier,
    RandomFourier,
    StructuredOrthogonalFourier,
)
from gpx.bases.orthogonal_features import hadamard_rows, hadamard_transform, random_signs
from gpx.bases.quadrature_features import halton
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32

RANDOM = [OrthogonalFourier, StructuredOrthogonalFourier, QuasiMonteCarloFourier]


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make(cls, m=64, seed=0, kernel=None, limit=8):
    kernel = kernel or RBF(ard_num_dims=2, lengthscale=(0.7, 1.3), outputscale=1.7)
    return cls(kernel, m, seed, limit)


def inputs(n=20, d=2, seed=1):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cls", [*RANDOM, GaussHermiteFourier])
def test_any_subset_of_columns_is_that_of_all_and_zero_lag_is_exact(cls):
    basis, x = make(cls), inputs()
    full = basis(x)
    blocks = torch.tensor([3, 0, 3])
    torch.testing.assert_close(
        basis.block_features(x, blocks), full[:, basis.columns_of(blocks)], rtol=0, atol=1e-13
    )
    chosen = torch.tensor([63, 0, 17, 33, 33])
    torch.testing.assert_close(basis(x, chosen), full[:, chosen], rtol=0, atol=1e-13)
    torch.testing.assert_close(full.square().sum(1), torch.full((20,), 1.7))
    single = basis(x[:4].float().double(), chosen)
    torch.testing.assert_close(single, full[:4, chosen], rtol=0, atol=1e-5)


@pytest.mark.parametrize("cls", [*RANDOM, GaussHermiteFourier])
def test_features_are_differentiable_in_the_lengthscales(cls):
    basis, x = make(cls, m=16), inputs(3)
    (gradient,) = torch.autograd.grad(
        basis(x, torch.tensor([1, 6])).sum(), basis.kernel.parametrizations.lengthscale.original
    )
    assert gradient.shape == (2,)
    assert bool((gradient != 0).all())


def kernel_error(cls, m, seeds, kernel, x):
    """Mean over seeds of phi phi^T - K, and its root mean square."""
    exact = kernel.evaluate(x).detach()
    gaps = []
    for seed in range(seeds):
        features = cls(kernel, m, seed, 64)(x).detach()
        gaps.append(features @ features.T - exact)
    gaps = torch.stack(gaps)
    return gaps.mean(0).abs().max(), gaps.square().mean().sqrt()


@pytest.mark.parametrize("cls", [OrthogonalFourier, QuasiMonteCarloFourier])
@pytest.mark.parametrize("name", [RBF, Matern32])
def test_kernel_is_unbiased_and_better_than_with_independent_frequencies(cls, name):
    kernel, x = name(2, 1.0, 1.0), inputs(8) * 0.5
    bias, spread = kernel_error(cls, 64, 60, kernel, x)
    _, independent = kernel_error(RandomFourier, 64, 60, kernel, x)
    assert float(bias) < 8 * float(spread) / math.sqrt(60)
    assert float(spread) < 0.95 * float(independent)


def test_structured_features_are_close_to_unbiased_and_better_in_many_dimensions():
    kernel, x = RBF(16, 4.0, 1.0), inputs(8, 16)
    bias, spread = kernel_error(StructuredOrthogonalFourier, 64, 60, kernel, x)
    _, independent = kernel_error(RandomFourier, 64, 60, kernel, x)
    assert float(bias) < 0.06
    assert float(spread) < 0.9 * float(independent)


@pytest.mark.parametrize(("cls", "rate"), [(OrthogonalFourier, 0.5), (QuasiMonteCarloFourier, 0.7)])
def test_error_falls_with_the_number_of_functions(cls, rate):
    kernel, x = RBF(2, 1.0, 1.0), inputs(8)
    _, few = kernel_error(cls, 64, 30, kernel, x)
    _, many = kernel_error(cls, 1024, 30, kernel, x)
    assert math.log(float(few / many)) / math.log(16) > rate - 0.12


def test_directions_of_a_group_are_orthogonal_with_chi_lengths():
    kernel = RBF(3, 1.0, 1.0)
    basis = OrthogonalFourier(kernel, 6000, 0)
    omega = basis.frequencies(torch.arange(3000), 3, torch.float64).detach().view(1000, 3, 3)
    gram = omega @ omega.mT
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-12
    # squared lengths are chi-square with 3 degrees of freedom: mean 3, variance 6
    squares = gram.diagonal(dim1=1, dim2=2)
    assert float((squares.mean() - 3.0).abs()) < 5 * math.sqrt(6 / 3000)
    assert float((squares.var() - 6.0).abs()) < 1.0


def test_hadamard_rows_signs_and_transform():
    rows = hadamard_rows(torch.arange(8), 8)
    torch.testing.assert_close(rows @ rows.T, 8 * torch.eye(8))
    v = torch.randn(5, 8)
    torch.testing.assert_close(hadamard_transform(v), v @ rows)
    signs = random_signs(7, torch.arange(4000), 3, 5)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    flat = signs.view(4000, -1)
    correlation = flat.T @ flat / 4000 - torch.eye(15)
    assert float(correlation.abs().max()) < 5 / math.sqrt(4000)


def test_halton_points_are_the_radical_inverses():
    want = [[1 / 2, 1 / 3], [1 / 4, 2 / 3], [3 / 4, 1 / 9], [1 / 8, 4 / 9]]
    torch.testing.assert_close(halton(torch.arange(4), 2), torch.tensor(want))


def test_gauss_hermite_integrates_polynomials_of_the_frequency():
    kernel = RBF(2, (0.5, 2.0), 1.0)
    basis = GaussHermiteFourier(kernel, 36)
    indices = torch.arange(18)
    omega = basis.frequencies(indices, 2, torch.float64).detach() * torch.tensor([0.5, 2.0])
    weights = basis.frequency_weights(indices)
    moments = {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0, 4: 3.0, 6: 15.0, 8: 105.0, 10: 945.0}
    for a, b in itertools.product(moments, repeat=2):
        if (a + b) % 2:
            continue  # zero by symmetry of the pair (w, -w), of which one is kept
        value = (weights * omega[:, 0] ** a * omega[:, 1] ** b).sum()
        assert float(value) == pytest.approx(moments[a] * moments[b], rel=1e-9, abs=1e-9)


def test_gauss_hermite_is_exact_to_rounding_at_short_lags():
    kernel = RBF(2, 1.0, 1.3)
    x = inputs(10) * 0.4
    features = GaussHermiteFourier(kernel, 24**2)(x).detach()
    error = (features @ features.T - kernel.evaluate(x).detach()).abs().max()
    assert float(error) < 1e-10


@pytest.mark.parametrize(
    ("kernel", "m"), [(Matern32(2), 16), (RBF(), 16), (RBF(2), 15), (RBF(2), 9), (RBF(1), 66)]
)
def test_gauss_hermite_says_what_it_needs(kernel, m):
    with pytest.raises(ConfigError, match="Gauss-Hermite"):
        GaussHermiteFourier(kernel, m)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("cls", [*RANDOM, GaussHermiteFourier])
def test_features_are_the_same_on_cuda(cls):
    basis, x = make(cls), inputs()
    here = basis(x).detach()
    there = basis.cuda()(x.cuda()).detach().cpu()
    torch.testing.assert_close(here, there, rtol=0, atol=1e-10)
