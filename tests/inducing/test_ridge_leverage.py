"""Ridge leverage scores against dense algebra, and the guarantees of their samples."""

import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.inducing import AdaptiveRidgeLeverage, RidgeLeverage, ridge_leverage
from gpx.inducing.ridge_leverage import (
    RecursionData,
    _inclusion_probabilities,
    approximate_scores,
)
from gpx.kernels import RBF


def data(n=200, d=2, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draws, dtype=torch.float64)


def ridge_leverage_scores(kernel, x, ridge):
    """diag(K (K + ridge I)^{-1}) (n,)."""
    gram = kernel.evaluate(x, x)
    shifted = gram + ridge * torch.eye(len(x), dtype=torch.float64)
    return torch.linalg.solve(shifted, gram).diagonal()


@torch.no_grad()
def test_scores_from_a_sample_with_weights_of_one_are_never_too_small():
    x, kernel, ridge = data(), RBF(lengthscale=0.6).double(), 0.2
    exact = ridge_leverage_scores(kernel, x, ridge)
    weights = torch.ones(40, dtype=torch.float64)
    few = approximate_scores(kernel, x, x[:40], weights, ridge)
    assert bool((few >= exact - 1e-9).all())
    heavy = approximate_scores(kernel, x, x[:40], 10.0 * weights, ridge)
    assert bool((heavy < exact - 1e-3).any())  # larger weights say more than the data do
    # all rows with weight one give the conditional variance of the exact scores
    every = approximate_scores(kernel, x, x, torch.ones(200, dtype=torch.float64), ridge)
    torch.testing.assert_close(every, exact, rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_recursive_scores_overestimate_with_the_constants_of_the_theory():
    kernel, size = RBF(lengthscale=0.6).double(), 8
    good = total = 0
    for seed in range(5):
        x = data(300, seed=seed)
        sampler = RidgeLeverage(oversampling=5.0, num_scores=size)
        data_set = RecursionData(x, kernel, size, 20, torch.Generator().manual_seed(seed))
        chances, ridge = sampler.chances(data_set, torch.arange(300), 1 / 33)
        exact = ridge_leverage_scores(kernel, x, ridge) * math.log(2 * size * 33)
        good += int((chances >= exact.clamp(max=1.0) - 1e-9).sum())
        total += 300
    assert good >= 0.95 * total


def largest_error(gram, z):
    explained = gram[:, z] @ torch.linalg.lstsq(gram[z][:, z], gram[z], driver="gelsd").solution
    return float(torch.linalg.eigvalsh(gram - 0.5 * (explained + explained.T))[-1])


@torch.no_grad()
def test_largest_error_is_within_the_guarantee():
    # many repeated neighbourhoods, so that a sample well below n is enough
    kernel, size, kept, smaller = RBF(lengthscale=2.0).double(), 3, 0, 0
    for seed in range(12):
        x = data(600, 1, seed=seed)
        draws = torch.Generator().manual_seed(seed)
        sampler = RidgeLeverage(oversampling=5.0)
        data_set = RecursionData(x, kernel, size, 20, draws)
        rows = sampler.sample(data_set, torch.arange(600), sampler.failure).rows
        gram = kernel.evaluate(x, x)
        bound = float(torch.linalg.eigvalsh(gram)[:-size].sum()) / size
        kept += largest_error(gram, rows) <= bound
        smaller += len(rows) < 400
    assert kept >= 11
    assert smaller >= 11


@torch.no_grad()
def test_a_given_ridge_bounds_the_error_and_sets_the_size():
    kernel, x = RBF(lengthscale=2.0).double(), data(600, 1)
    gram = kernel.evaluate(x, x)
    sizes = []
    for ridge in (0.3, 0.01):
        sampler = AdaptiveRidgeLeverage(ridge=ridge, oversampling=1.5)
        found = sampler.select(x, kernel, 600, generator=torch.Generator().manual_seed(0))
        assert largest_error(gram, found.indices) <= ridge
        sizes.append(len(found.indices))
    assert sizes[0] < sizes[1] < 600


def test_more_rows_than_were_asked_for_are_never_drawn_on_the_way(monkeypatch):
    # a ridge that calls for every row: uncut, the samples are the data and the cost cubic
    kernel, x, sizes = RBF(lengthscale=0.2).double(), data(3000, 3), []

    def counted(kernel, x, z, weights, ridge):
        sizes.append(len(z))
        assert bool((weights >= 1.0).all())  # one over the root of a probability
        return approximate_scores(kernel, x, z, weights, ridge)

    monkeypatch.setattr(ridge_leverage, "approximate_scores", counted)
    sampler = AdaptiveRidgeLeverage(ridge=1e-3)
    chosen = sampler.select(x, kernel, 50, generator=torch.Generator().manual_seed(0))
    assert chosen.indices.unique().numel() == 50
    assert len(sizes) == 6  # 3,000 rows halved until 64 are left
    # expected 50 or fewer, as a sum of coin flips: 50 + 6 sqrt(50) has a chance below 1e-7
    assert max(sizes[1:]) <= 92


def test_probabilities_are_scaled_to_their_limit():
    chances = torch.tensor([0.2, 40.0, 0.0, 3.0, 0.5, 1.5, 0.8], dtype=torch.float64)
    for limit in (1, 2, 3, 4):
        found = _inclusion_probabilities(chances, limit)
        assert float(found.sum()) == pytest.approx(limit, rel=1e-12)
        assert float(found.max()) <= 1.0
        ratios = (found / chances)[(found < 1.0) & (chances > 0.0)]
        torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(_inclusion_probabilities(chances, 5), chances.clamp(max=1.0))
    assert torch.equal(_inclusion_probabilities(torch.zeros(3), 2), torch.zeros(3))


def test_size_is_kept_and_cut():
    kernel, x = RBF(lengthscale=0.5).double(), data(400)
    draws = torch.Generator().manual_seed(0)
    for m in (1, 7, 399, 400):
        chosen = RidgeLeverage().select(x, kernel, m, generator=draws)
        assert chosen.indices.unique().numel() == m
    assert len(AdaptiveRidgeLeverage(ridge=1e-4).select(x, kernel, 9, generator=draws).points) == 9


def test_repeated_inputs():
    kernel, x = RBF(lengthscale=0.5).double(), data(10).repeat(30, 1)
    draws = torch.Generator().manual_seed(0)
    chosen = RidgeLeverage().select(x, kernel, 25, generator=draws)
    assert chosen.indices.unique().numel() == 25


def test_options():
    with pytest.raises(ConfigError, match="oversampling"):
        RidgeLeverage(oversampling=0.0)
    with pytest.raises(ConfigError, match="num_scores"):
        RidgeLeverage(num_scores=0)
    with pytest.raises(ConfigError, match=r"ridge=\S+ must be positive"):
        AdaptiveRidgeLeverage(ridge=0.0)
