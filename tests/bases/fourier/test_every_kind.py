"""Fourier features of every kind: one contract, better kernel approximations."""

import copy
import math
import pickle

import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx.bases import (
    FastfoodFourier,
    GaussHermiteFourier,
    OrthogonalFourier,
    QuasiMonteCarloFourier,
    RandomFourier,
    StructuredOrthogonalFourier,
)
from gpx.bases.fourier.spread import automatic_spread
from gpx.errors import ConfigError
from gpx.kernels import RBF, Cosine, Matern12, Matern32, Scale, SpectralMixture

RANDOM = [
    RandomFourier,
    OrthogonalFourier,
    StructuredOrthogonalFourier,
    FastfoodFourier,
    QuasiMonteCarloFourier,
]
FOURIER = [*RANDOM, GaussHermiteFourier]


pytestmark = pytest.mark.usefixtures("float64_by_default")


def make(cls, m=64, seed=0, kernel=None, limit=8):
    kernel = kernel or RBF(ard_num_dims=2, lengthscale=(0.7, 1.3), outputscale=1.7)
    return cls(kernel, m, seed, limit)


def inputs(n=20, d=2, seed=1):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cls", FOURIER)
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


@pytest.mark.parametrize("cls", FOURIER)
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


@pytest.mark.parametrize("name", [RBF, Matern12])
def test_fastfood_is_unbiased_also_where_inputs_are_padded(name):
    kernel, x = name(5, 1.0, 1.0), inputs(8, 5) * 0.5
    exact, apart = kernel.evaluate(x).detach(), ~torch.eye(8, dtype=torch.bool)
    with torch.no_grad():
        features = [FastfoodFourier(kernel, 640, seed)(x) for seed in range(200)]
    gaps = torch.stack([phi @ phi.T - exact for phi in features])[:, apart]
    # mean over all pairs of one set of frequencies: five standard errors
    means = gaps.mean(1)
    assert float(means.mean().abs()) < 5 * float(means.std()) / math.sqrt(200)


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


PUBLISHED = [
    (16, RandomFourier, 5.9e-3),
    (16, OrthogonalFourier, 2.1e-3),
    (16, StructuredOrthogonalFourier, 2.4e-3),
    (64, RandomFourier, 1.37e-3),
    (64, OrthogonalFourier, 3.75e-4),
    (64, StructuredOrthogonalFourier, 3.80e-4),
    (64, FastfoodFourier, 2.3e-3),
]
"""Mean squared error of an RBF kernel of lengthscale sqrt(d) between unit normal inputs, 4 d
frequencies."""


@pytest.mark.parametrize(("d", "cls", "error"), PUBLISHED)
def test_errors_are_those_of_the_table(d, cls, error):
    x = inputs(30, d)
    kernel = RBF(d, math.sqrt(d), 1.0)
    exact, apart = kernel.evaluate(x).detach(), ~torch.eye(30, dtype=torch.bool)
    with torch.no_grad():
        features = [cls(kernel, 8 * d, seed, 4 * d)(x) for seed in range(25)]
    gaps = torch.stack([phi @ phi.T - exact for phi in features])[:, apart]
    assert float(gaps.square().mean()) == pytest.approx(error, rel=0.3)


@pytest.mark.parametrize(("cls", "rate"), [(OrthogonalFourier, 0.5), (QuasiMonteCarloFourier, 0.7)])
def test_error_falls_with_the_number_of_functions(cls, rate):
    kernel, x = RBF(2, 1.0, 1.0), inputs(8)
    _, few = kernel_error(cls, 64, 30, kernel, x)
    _, many = kernel_error(cls, 1024, 30, kernel, x)
    assert math.log(float(few / many)) / math.log(16) > rate - 0.12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("cls", FOURIER)
def test_features_are_the_same_on_cuda(cls):
    basis, x = make(cls), inputs()
    here = basis(x).detach()
    there = basis.cuda()(x.cuda()).detach().cpu()
    torch.testing.assert_close(here, there, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cls", FOURIER)
def test_features_stand_for_the_kernel_and_follow_the_seed(cls):
    kernel, x = RBF(1, 1.5, 1.7), torch.linspace(-1.0, 1.0, 5)[:, None]
    with torch.no_grad():
        first, again, other = (cls(kernel, 64, seed)(x) for seed in (0, 0, 1))
        want = kernel.evaluate(x)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (cls is GaussHermiteFourier)  # a rule, nothing is drawn
    assert float((first @ first.mT - want).abs().max()) < 0.4 * 1.7


def test_a_prime_number_of_frequencies_is_refused():
    with pytest.raises(
        ConfigError, match="blocks of a single frequency, because num_basis / 2 = 47"
    ):
        RandomFourier(RBF(2), 94, block_frequencies=40)


@pytest.mark.parametrize("cls", RANDOM)
def test_random_frequencies_are_spread(cls):
    assert cls(RBF(2), 64, spread="auto").spread == automatic_spread(RBF(2))
    assert cls(RBF(2), 64, spread=(1.0, 2.0)).spread == (1.0, 2.0)
    assert cls(RBF(2), 64).spread == (1.0,)


def test_which_spreads_and_kernels_do_not_go():
    with pytest.raises(ConfigError, match="auto or factors"):
        RandomFourier(RBF(2), 64, spread="wide")
    # frequencies of a spectral mixture have centres: longer normals would be another kernel's
    for kernel in (Cosine(2), SpectralMixture(2, 3), Scale(SpectralMixture(2, 3)), RBF(None)):
        with pytest.raises(ConfigError, match="needs kernel=RBF"):
            RandomFourier(kernel, 60, spread=1.2)
        RandomFourier(kernel, 60, 0, 10)


def test_a_spread_that_leaves_the_prior_to_few_functions_is_a_warning():
    for spread in (3.0, 100.0):  # few of the right frequencies, and none
        with pytest.warns(UserWarning, match=r"functions carry the prior"):
            RandomFourier(RBF(8), 2000, spread=spread)
    for kernel in (RBF(8), Matern32(8)):  # warnings are errors
        RandomFourier(kernel, 2000, spread="auto")


def test_on_a_gpu_normals_are_read_from_a_table_that_copies_share():
    """A table of the numbers themselves: the same features, at the launches of one lookup."""
    basis = RandomFourier(RBF(3), 400, seed=5, block_frequencies=20, spread=2.0)
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    blocks = torch.tensor([3, 0, 7])
    expected = basis.block_features(x, blocks).detach()
    with claimed_cuda():
        there = copy.deepcopy(basis).cuda()
        found = there.block_features(x.cuda(), blocks.cuda()).detach()
        assert len(there._known.tables) == 1
        again = copy.deepcopy(there)
        assert again._known is there._known
        tables = pickle.loads(pickle.dumps(there._known)).tables
        found = found.cpu()
    assert tables == {}
    torch.testing.assert_close(found, expected)


def test_features_for_many_inputs_in_turn_are_those_for_each():
    for kind in (RandomFourier, OrthogonalFourier, QuasiMonteCarloFourier):
        basis = kind(RBF(2), 40, block_frequencies=5)
        blocks = torch.tensor([1, 3])
        features = basis.features_of(blocks)
        for seed, dtype in ((0, torch.float32), (1, torch.float64), (2, torch.float32)):
            x = torch.randn(6, 2, generator=torch.Generator().manual_seed(seed)).to(dtype)
            assert torch.equal(features(x), basis.block_features(x, blocks))
