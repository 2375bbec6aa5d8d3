"""Frequencies drawn farther out: the same kernel, a better posterior from as many functions."""

import math

import pytest
import torch

from gpx.bases import OrthogonalFourier, QuasiMonteCarloFourier, RandomFourier
from gpx.bases.fourier import random_fourier
from gpx.bases.fourier.spread import (
    MATERN_SPREADS,
    SECOND_MOMENT,
    automatic_spread,
    effective_share,
)
from gpx.errors import ConfigError
from gpx.kernels import RBF, Cosine, Matern32, Matern52, Scale
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import QSGP

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n, d, seed=1):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def prior_variances(basis):
    return 1.0 / basis.precision_diagonal()


@pytest.mark.parametrize("cls", [RandomFourier, OrthogonalFourier, QuasiMonteCarloFourier])
@pytest.mark.parametrize(
    ("kernel", "spread"),
    [
        (RBF(3, [0.7, 1.3, 2.0], 1.7), 1.4),
        (Matern32(3, [0.7, 1.3, 2.0], 1.7), MATERN_SPREADS),
        (Scale(Matern52(3, 0.9), 0.5), (1.0, 3.0)),
    ],
)
def test_the_kernel_stays_unbiased(cls, kernel, spread):
    kernel = kernel.double().requires_grad_(False)
    basis, x = cls(kernel, 8_000, 0, 500, spread), 0.5 * inputs(4, 3)
    variances = prior_variances(basis)
    # one value of k(x, z) per frequency, so that the error of their mean is known
    features, weights = basis(x), variances
    waves = features.unflatten(1, (basis.num_blocks, 2, basis.per_block))
    share = weights.view(basis.num_blocks, 2, basis.per_block)
    each = torch.einsum("abwf,cbwf,bwf->acbf", waves, waves, share).flatten(2)
    found, count = each.sum(2), each.shape[2]
    error = each.std(2) * math.sqrt(count)
    gap = (found - kernel.evaluate(x, x)).abs()
    assert bool((gap < 5 * error).all())
    assert bool((error < 0.2).all())


def test_weights_are_the_ratio_of_the_densities():
    basis = RandomFourier(RBF(3, [0.7, 1.3, 2.0], 1.7), 200, 0, 50, 1.4)
    normals = basis.normals(torch.arange(100), 3, torch.float64)
    assert torch.equal(normals, 1.4 * basis.draws(torch.arange(100), 3, torch.float64))
    ratio = 1.4**3 * (-0.5 * (1 - 1.4**-2) * normals.square().sum(1)).exp()
    found = prior_variances(basis).view(2, 2, 50)
    torch.testing.assert_close(found[:, 0].reshape(-1), ratio)
    assert torch.equal(found[:, 0], found[:, 1])  # a cosine and its sine alike


def test_weights_do_not_move_with_hyperparameters_and_are_those_of_any_subset(monkeypatch):
    kernel = Matern32(2, [0.7, 1.3], 1.7)
    basis = RandomFourier(kernel, 120, 3, 10, (1.0, 2.0))
    before = basis.precision_diagonal()
    assert not before.requires_grad
    chosen = torch.tensor([119, 0, 17, 33, 33])
    torch.testing.assert_close(basis.precision_diagonal(chosen), before[chosen])
    kernel.lengthscale, kernel.outputscale = torch.tensor([0.2, 9.0]), torch.tensor(0.1)
    torch.testing.assert_close(basis.precision_diagonal(), before)
    monkeypatch.setattr(random_fourier, "CHUNK_ENTRIES", 7)
    torch.testing.assert_close(basis.precision_diagonal(), before)
    assert float(prior_variances(basis).max()) <= 2.0


@pytest.mark.parametrize("d", [1, 3, 8, 30])
def test_automatic_spread_has_the_mean_square_weight_it_promises(d):
    (factor,) = automatic_spread(Scale(RBF(d, 0.5), 2.0))
    exact = (factor**2 / math.sqrt(2 * factor**2 - 1)) ** d
    assert exact == pytest.approx(SECOND_MOMENT)
    weights = prior_variances(RandomFourier(RBF(d, 0.5), 40_000, 0, 500, factor))
    assert float(weights.square().mean()) == pytest.approx(SECOND_MOMENT, rel=0.1)
    assert float(weights.mean()) == pytest.approx(1.0, abs=0.05)
    assert automatic_spread(Matern32(d)) == MATERN_SPREADS
    assert automatic_spread(Cosine(d)) == (1.0,)
    assert automatic_spread(RBF(None)) == (1.0,)


@pytest.mark.parametrize("kernel", [RBF(8, 2.0, 1.0), Matern32(8, 8.0, 20.0)])
def test_evidence_of_exact_inference_is_nearer_that_of_the_kernel(kernel):
    kernel = kernel.double().requires_grad_(False)
    n, noise = 120, 0.003
    x = inputs(n, 8)
    covariance = kernel.evaluate(x, x) + noise * torch.eye(n)
    y = torch.linalg.cholesky(covariance) @ inputs(n, 1, 2)[:, 0]

    def evidence(covariance):
        return float(torch.distributions.MultivariateNormal(torch.zeros(n), covariance).log_prob(y))

    def lost(seed, spread):
        basis = RandomFourier(kernel, 360, seed, 30, spread)
        features = basis(x) * prior_variances(basis).sqrt()
        return evidence(covariance) - evidence(features @ features.T + noise * torch.eye(n))

    seeds = range(5)
    plain = [lost(seed, 1.0) for seed in seeds]
    spread = [lost(seed, automatic_spread(kernel)) for seed in seeds]
    assert sum(spread) < 0.8 * sum(plain)


def test_far_too_wide_spreads_leave_numbers():
    basis = RandomFourier(RBF(8), 2000, 0, 500, (1.0, 6.0)).float()
    precision = basis.precision_diagonal()
    assert precision.dtype == torch.float32
    assert float(precision.max()) == pytest.approx(1e8)
    assert float(precision.min()) >= 0.5


@pytest.mark.parametrize(
    "spread", [0.5, 0.0, (), (1.0, math.inf), math.nan, None, True, "wide", (1.0, "a")]
)
def test_spreads_that_are_none(spread):
    with pytest.raises(ConfigError, match="spread"):
        RandomFourier(RBF(2), 60, 0, 10, spread)


def test_the_whole_posterior_of_a_spread_basis_has_the_evidence_of_its_kernel():
    x = inputs(40, 2)
    y = torch.sin(2 * x[:, 0]) + x[:, 1]
    kernel = RBF(2)
    basis = RandomFourier(kernel, 60, block_frequencies=10, spread=1.5)
    whole = QSGP(
        kernel=kernel, mean=Zero(), likelihood=Gaussian(0.1), covariance="full", basis=basis
    )
    whole.initialise(x, y, generator=torch.Generator().manual_seed(0))
    features = whole.basis(x) * prior_variances(whole.basis).sqrt()
    covariance = (features @ features.T + 0.1 * torch.eye(40)).detach()
    test = inputs(5, 2, 3)
    cross = (whole.basis(test) * prior_variances(whole.basis).sqrt()).detach() @ features.T.detach()
    want = cross @ torch.linalg.solve(covariance, y)
    with torch.no_grad():
        found = whole.condition(x, y).predict(test)
    torch.testing.assert_close(found.mean, want, rtol=0, atol=1e-8)
    within = whole.basis(test) * prior_variances(whole.basis).sqrt()
    prior = within.detach().square().sum(1)
    reduction = (cross * torch.linalg.solve(covariance, cross.T).T).sum(1)
    torch.testing.assert_close(found.variance, prior - reduction, rtol=0, atol=1e-8)


def test_share_that_carries_the_prior():
    equal = torch.zeros(100, dtype=torch.float64)
    equal[:20] = 5.0
    assert effective_share(equal) == pytest.approx(0.2)
    assert effective_share(torch.ones(7)) == 1.0
    assert effective_share(torch.full((7,), 1e-8)) == pytest.approx(1e-8)
