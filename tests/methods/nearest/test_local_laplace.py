"""Laplace's approximation on near rows: it agrees with local regressions, and on all rows."""

import pytest
import torch
from draws import draws

from gpx.inference.neighbour_conditional import local_regression
from gpx.kernels import RBF, Matern52
from gpx.likelihoods import Bernoulli, Gamma, Gaussian, Ordinal, Poisson
from gpx.means import Constant
from gpx.methods.nearest.local_laplace import local_laplace
from gpx.models import LaplaceGP

NUM = 50


def data():
    generator = draws()
    x = torch.randn(NUM, 2, generator=generator).double()
    return x, x.sin().sum(1) + 0.3 * torch.randn(NUM, generator=generator).double()


def kernel():
    return Matern52(2, lengthscale=[0.8, 1.3], outputscale=1.4).double()


QUERIES = torch.randn(7, 2, generator=draws(1)).double()
TARGETS = {
    "classes": (Bernoulli, lambda y: y.sign()),
    "grades": (
        lambda: Ordinal(3),
        lambda y: torch.bucketize(y, torch.tensor([-0.5, 0.5]).double()),
    ),
    "counts": (Poisson, lambda y: (2.0 * y).exp().round()),
    "durations": (lambda: Gamma(3.0), lambda y: y.exp()),
}


def test_of_gaussian_noise_it_is_the_local_regression():
    x, y = data()
    noise = torch.tensor(0.1).double()
    want = local_regression(kernel(), noise, x, y - 0.2, QUERIES, 9)
    prior = torch.full_like(y, 0.2)
    found = local_laplace(kernel(), Gaussian(0.1).double(), prior, x, y, None, QUERIES, 9)
    torch.testing.assert_close(found[0], want.mean.detach(), rtol=0.0, atol=1e-8)
    torch.testing.assert_close(found[1], want.variance.detach(), rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("name", TARGETS)
def test_on_all_rows_it_is_laplaces_approximation(name):
    make, of = TARGETS[name]
    x, y = data()
    y, likelihood = of(y).double(), make().double()
    whole = LaplaceGP(kernel=kernel(), mean=Constant(0.2), likelihood=likelihood).double()
    want = whole.condition(x, y).predict(QUERIES)
    mean, variance = local_laplace(
        kernel(), likelihood, torch.full_like(x[:, 0], 0.2), x, y, None, QUERIES, NUM
    )
    torch.testing.assert_close(mean + 0.2, want.mean, rtol=0.0, atol=1e-3)
    torch.testing.assert_close(variance, want.variance, rtol=0.0, atol=1e-3)


def test_counts_of_thousands_are_found_from_a_mean_of_one():
    """Whole steps of Newton from there would go to f = 3,000, and exp(f) overflow."""
    x, y = data()
    counts = (8.0 + y).exp().round()
    whole = LaplaceGP(kernel=kernel(), mean=Constant(0.0), likelihood=Poisson()).double()
    want = whole.condition(x, counts).predict(QUERIES)
    prior = torch.zeros_like(y)
    mean, variance = local_laplace(kernel(), Poisson(), prior, x, counts, None, QUERIES, NUM)
    torch.testing.assert_close(mean, want.mean, rtol=0.0, atol=1e-3)
    torch.testing.assert_close(variance, want.variance, rtol=0.0, atol=1e-3)


def test_large_amounts_are_found_from_a_mean_of_one():
    """Far below its target each step of Newton changes f by one, and here 28 are needed."""
    x, y = data()
    amounts = 1e12 * y.exp()
    whole = LaplaceGP(kernel=kernel(), mean=Constant(0.0), likelihood=Gamma(3.0).double()).double()
    want = whole.condition(x, amounts).predict(QUERIES)
    prior, likelihood = torch.zeros_like(y), Gamma(3.0).double()
    mean, variance = local_laplace(kernel(), likelihood, prior, x, amounts, None, QUERIES, NUM)
    torch.testing.assert_close(mean, want.mean, rtol=0.0, atol=1e-3)
    torch.testing.assert_close(variance, want.variance, rtol=0.0, atol=1e-3)


def rough(name):
    """A prior mean, outputscale, likelihood and targets for which whole steps go too far."""
    _, y = data()
    if name == "ordered classes":
        likelihood = Ordinal(3).double()
        with torch.no_grad():
            likelihood.first_cut.fill_(-48.0)
        likelihood.gaps = 121.0
        return 48.0, 1.6e4, likelihood, TARGETS["grades"][1](y).double()
    zero = torch.randn(NUM, generator=draws(2)) < 0.0
    return -6.0, 100.0, Poisson(), (1e4 * y.exp()).round().masked_fill(zero, 0.0)


@pytest.mark.parametrize("name", ["ordered classes", "zeros among large counts"])
def test_steps_that_go_too_far_are_shortened(name):
    prior, outputscale, likelihood, y = rough(name)
    x, _ = data()
    x[NUM // 2 :] = x[: NUM // 2] + 1e-4  # neighbours of another class, or none of whose count
    smooth = RBF(2, lengthscale=[0.8, 1.3], outputscale=outputscale).double()
    mean, variance = local_laplace(
        smooth, likelihood, torch.full_like(y, prior), x, y, None, QUERIES, NUM
    )
    whole = LaplaceGP(kernel=smooth, mean=Constant(prior), likelihood=likelihood).double()
    want = whole.condition(x, y).predict(QUERIES)
    deviation = want.variance.sqrt()
    assert float(((mean + prior - want.mean).abs() / deviation).max()) < 1e-2
    torch.testing.assert_close(variance, want.variance, rtol=1e-2, atol=0.0)


def test_rows_count_by_their_weights():
    x, y = data()
    counts, twice = y.exp().round(), torch.arange(NUM)
    twice[-1] = 0
    x, counts = x[twice], counts[twice]
    prior = torch.zeros_like(counts)
    want = local_laplace(kernel(), Poisson(), prior, x, counts, None, QUERIES, NUM)
    wrong, shares = counts.clone(), torch.ones_like(counts)
    wrong[-1], shares[-1], shares[0] = 50.0, 0.0, 2.0
    found = local_laplace(kernel(), Poisson(), prior, x, wrong, shares, QUERIES, NUM)
    for ours, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-4)


def test_targets_that_are_not_numbers_leave_the_prior():
    x, y = data()
    mean, variance = local_laplace(
        kernel(), Poisson(), torch.zeros_like(y), x, y * torch.nan, None, QUERIES, 9
    )
    assert (mean == 0.0).all()
    torch.testing.assert_close(variance, torch.full_like(mean, 1.4), rtol=1e-6, atol=0.0)
