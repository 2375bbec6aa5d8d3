"""Sums over the data: streamed, merged, subtracted, weighted; the posterior of the weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_features import draw, features_and_targets, log_density

from gpx.bases import RandomFourier
from gpx.bases.fixed_functions import sufficient_statistics
from gpx.bases.sufficient_statistics import (
    FittedWeights,
    SufficientStatistics,
    accumulate_statistics,
)
from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF

N, M = 40, 8


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randn(N, generator=generator, dtype=torch.float64).to(dtype)
    return RandomFourier(RBF(2), M).to(dtype), x, y


@torch.no_grad()
def dense(basis, x, y):
    phi = basis(x).double()
    y = y.double()
    return phi.mT @ phi, phi.mT @ y, y @ y


def same(found, want, rtol=1e-12):
    for name, value in zip(("gram", "projected", "squared"), want, strict=True):
        torch.testing.assert_close(getattr(found, name), value, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("rows", [1, 7, N, None])
def test_streamed_sums_equal_dense_products(rows):
    basis, x, y = problem()
    found = sufficient_statistics(basis, x, y, rows=rows)
    same(found, dense(basis, x, y))
    assert found.num_data == N


def test_float32_features_are_multiplied_in_float64():
    basis, x, y = problem(torch.float32)
    phi = basis(x).detach()
    blocks = [(phi[i : i + 5].mT, y[i : i + 5], None) for i in range(0, N, 5)]
    found = accumulate_statistics(blocks, M, x)
    assert found.gram.dtype == found.projected.dtype == found.squared.dtype == torch.float64
    same(found, dense(basis, x, y))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, N))
def test_halves_merge_and_come_apart_again(cut):
    basis, x, y = problem()
    whole = sufficient_statistics(basis, x, y)
    first = sufficient_statistics(basis, x[:cut], y[:cut])
    second = sufficient_statistics(basis, x[cut:], y[cut:])
    same(first + second, dense(basis, x, y))
    left = whole - second
    assert left.num_data == cut
    same(left, (first.gram, first.projected, first.squared), rtol=1e-11)
    empty = SufficientStatistics.empty(M)
    same(empty + whole, dense(basis, x, y))


def test_statistics_about_a_prior_mean_are_those_of_the_residual():
    basis, x, y = problem()
    mu = torch.linspace(-1.0, 2.0, M, dtype=torch.float64)
    with torch.no_grad():
        residual = y - basis(x) @ mu
    same(sufficient_statistics(basis, x, y).about(mu), dense(basis, x, residual))


def test_mistakes_are_explained():
    basis, x, y = problem()
    some = sufficient_statistics(basis, x[:5], y[:5])
    whole = sufficient_statistics(basis, x, y)
    with pytest.raises(ConfigError, match="40 rows cannot be taken from statistics of 5"):
        some - whole
    with pytest.raises(ShapeError, match="of 8 and 3 basis functions"):
        whole + SufficientStatistics.empty(3)


# --- posterior of the weights ---------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_the_posterior_equals_function_space(weighted):
    """With one noise variance, and with one per row, which weights the sums."""
    phi, y = features_and_targets(30, 6)
    at, scale = draw(5, 6, seed=7), draw(6, seed=8).exp()
    noise = draw(30, seed=9).exp() if weighted else torch.full((30,), 0.3, dtype=torch.float64)
    blocks = [(phi[i : i + 7].mT, y[i : i + 7], noise[i : i + 7]) for i in range(0, 30, 7)]
    if weighted:
        found = FittedWeights(accumulate_statistics(blocks, 6, phi), scale)
    else:
        sums = accumulate_statistics([(f, r, None) for f, r, _ in blocks], 6, phi)
        found = FittedWeights(sums, scale, noise[0])
    covariance = phi * scale.square() @ phi.mT + noise.diag()
    value = -0.5 * (found.fit + found.log_determinant + 30 * LOG_TWO_PI)
    torch.testing.assert_close(value, log_density(y, covariance), rtol=1e-10, atol=0)
    cross = at * scale.square() @ phi.mT
    solve = torch.linalg.solve(covariance, cross.mT)
    left = at * scale.square() @ at.mT - cross @ solve
    mean, variance = found.marginals(at.mT)
    torch.testing.assert_close(mean, solve.mT @ y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(variance, left.diagonal(), rtol=1e-9, atol=1e-9)
    drawn = found.draw(40_000, generator=torch.Generator().manual_seed(0)) @ at.mT
    size = float(left.diagonal().max())
    # 40,000 draws: standard errors below 1 % of the largest variance
    assert float((drawn.mean(0) - mean).abs().max()) < 0.03 * size**0.5
    assert float((drawn.mT.cov() - left).abs().max()) < 0.05 * size
