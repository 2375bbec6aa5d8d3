"""Rows of a subset of data: greedy scores against brute force."""

import pytest
import torch

from gpx.errors import ConfigError, DataError
from gpx.inducing import InformativeVectors
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SGPR

NOISE = torch.tensor(0.1, dtype=torch.float64)


def data(n=30):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y, RBF(2, lengthscale=0.8, outputscale=1.3).double()


def posterior(kernel, x, y, rows):
    """Mean and variance of f at all x given the rows, dense."""
    with torch.no_grad():
        k = kernel.evaluate(x, x)
        matrix = k[rows][:, rows] + NOISE * torch.eye(len(rows), dtype=x.dtype)
        solved = torch.linalg.solve(matrix, k[rows])
        return solved.mT @ y[rows], k.diagonal() - (solved * k[rows]).sum(0)


def brute_force(kernel, x, y, num, score):
    rows = []
    for _ in range(num):
        mean, variance = posterior(kernel, x, y, rows)
        new = variance * NOISE / (variance + NOISE)
        shift = variance / (variance + NOISE) * (y - mean)
        if score == "entropy":
            found = 0.5 * torch.log(variance / new)
        else:  # KL(N(mean + shift, new) || N(mean, variance))
            found = 0.5 * (new / variance - 1 - torch.log(new / variance) + shift**2 / variance)
        found[rows] = -torch.inf
        rows.append(int(found.argmax()))
    return rows


@pytest.mark.parametrize("score", ["entropy", "information_gain"])
def test_the_sequence_is_that_of_brute_force(score):
    x, y, kernel = data()
    found = InformativeVectors(score).rows(x, y, kernel, NOISE, 12)
    # entropy starts at a tie, which rounding of k(x, x) must not decide
    assert found.tolist() == brute_force(kernel, x, y, 12, score)


@pytest.mark.parametrize("score", ["entropy", "information_gain"])
def test_rows_of_much_noise_are_chosen_last(score):
    x, y, kernel = data()
    noise = torch.full((30,), NOISE).double()
    noise[::2] = 1e6
    found = InformativeVectors(score).rows(x, y, kernel, noise, 15)
    assert bool((found % 2 == 1).all())
    few = InformativeVectors(score, max_candidates=20)
    among = few.rows(x, y, kernel, noise, 5, generator=torch.Generator().manual_seed(0))
    assert bool((among % 2 == 1).all())


def test_entropy_picks_the_widest_posterior_and_the_targets_play_no_part():
    x, y, kernel = data()
    found = InformativeVectors().rows(x, y, kernel, NOISE, 10)
    assert torch.equal(found, InformativeVectors().rows(x, -5.0 * y, kernel, NOISE, 10))
    _, variance = posterior(kernel, x, y, found[:9].tolist())
    variance[found[:9]] = 0.0
    assert int(variance.argmax()) == int(found[9])


def test_information_gain_goes_where_the_surprise_is():
    x, y, kernel = data()
    y[17] = 30.0
    rows = InformativeVectors("information_gain").rows(x, y, kernel, NOISE, 5)
    assert int(rows[0]) == 17


def test_all_rows_are_a_permutation_of_the_data():
    x, y, kernel = data()
    x[5] = x[6]  # a repeated input is another row
    rows = InformativeVectors().rows(x, y, kernel, NOISE, 30)
    assert sorted(rows.tolist()) == list(range(30))


def test_candidates_are_a_subset_of_the_rows():
    x, y, kernel = data()
    draws = torch.Generator().manual_seed(0)
    few = InformativeVectors(max_candidates=10)
    rows = few.rows(x, y, kernel, NOISE, 6, generator=draws)
    among = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:10]
    assert set(rows.tolist()) <= set(among.tolist())
    assert len(set(rows.tolist())) == 6


def test_sparse_regressions_take_the_same_rows():
    x, y, kernel = data()
    selector = InformativeVectors("information_gain")
    made = SGPR(
        kernel=kernel,
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=2,
        num_inducing=8,
        selector=selector,
    ).double()
    with torch.no_grad():
        rows = selector.rows(x, y, kernel, made.likelihood.noise_variance, 8)
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made.inducing_points, x[rows])


def test_what_does_not_fit_is_said():
    x, y, kernel = data()
    with pytest.raises(DataError, match="31 rows were asked for but there are only 30"):
        InformativeVectors().rows(x, y, kernel, NOISE, 31)
    with pytest.raises(ConfigError, match="score=variance: expected one of entropy"):
        InformativeVectors("variance")
    with pytest.raises(ConfigError, match=r"max_candidates=\S+ must be at least 1"):
        InformativeVectors(max_candidates=0)
