"""KL on average over the model and below: golden values, simulation, dense truth, growth."""

import math

import golden_g1 as g1
import pytest
import torch
from draws import double
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.diagnostics import (
    effective_dimension,
    expected_kl,
    expected_kl_bracket,
    expected_kl_lower_bound,
    kl_lower_bound,
    points_for_expected_kl,
    worst_kl_lower_bound,
)
from gpx.diagnostics.evidence_bounds import collapsed_bound_value
from gpx.diagnostics.expected_kl import sufficient_trace_error
from gpx.errors import ConfigError
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF, Matern32


def golden_kernel():
    kernel = RBF().double()
    kernel.lengthscale, kernel.outputscale = double(0.7), double(g1.VARIANCE)
    return kernel


def evidence_of(matrix, y):
    factor = torch.linalg.cholesky(matrix)
    white = torch.linalg.solve_triangular(factor, y, upper=False)
    logs = factor.diagonal().log().sum() + 0.5 * len(matrix) * math.log(2 * math.pi)
    return -0.5 * white.square().sum(0) - logs


@torch.no_grad()
def test_golden_values():
    noise, values = double(g1.NOISE), torch.linalg.eigvalsh(g1.K_xx).flip(0)
    assert float(effective_dimension(values, noise)) == pytest.approx(18.0454881, rel=1e-7)
    assert float(kl_lower_bound(values, noise, 20)) == pytest.approx(0.01029976836, rel=1e-7)
    assert float(expected_kl_lower_bound(values, noise, 20)) == pytest.approx(0.172910225, rel=1e-7)
    found = expected_kl(golden_kernel(), g1.x[:, None], g1.z[:, None], noise)
    assert float(found) == pytest.approx(1.004670677, rel=1e-7)
    q = NystromMatrix.of(golden_kernel(), g1.x[:, None], g1.z[:, None], g1.y, noise)
    low, high = expected_kl_bracket(q.sums.trace_error, noise)
    assert float(low) == pytest.approx(0.9442316, rel=1e-6)
    assert float(high) == pytest.approx(1.8884632, rel=1e-6)


@torch.no_grad()
def test_three_matrices_are_held_at_a_time():
    x = torch.linspace(0.0, 6.0, 300, dtype=torch.float64)[:, None]
    with torch.profiler.profile(profile_memory=True) as profile:
        expected_kl(golden_kernel(), x, x[::30], double(0.1))
    held, most = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert 2 * 8 * 300**2 < most < 3.3 * 8 * 300**2


@torch.no_grad()
def test_average_over_simulated_targets():
    x = torch.linspace(0, 6, 50, dtype=torch.float64)[:, None]
    kernel, noise, z = Matern32().double(), double(0.2), x[2::7]
    k = kernel.evaluate(x) + noise * torch.eye(50, dtype=torch.float64)
    draws = torch.randn(50, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.linalg.cholesky(k) @ draws
    q = NystromMatrix.of(kernel, x, z, y[:, 0], noise)
    dense = q.matmul(torch.eye(50, dtype=torch.float64))
    kl = evidence_of(k, y) - evidence_of(dense, y) + 0.5 * q.sums.trace_error / noise
    want = float(expected_kl(kernel, x, z, noise))
    assert abs(float(kl.mean()) - want) < 4 * float(kl.std()) / math.sqrt(2000)
    low, high = expected_kl_bracket(q.sums.trace_error, noise)
    assert float(low) <= want <= float(high)
    values = torch.linalg.eigvalsh(k - noise * torch.eye(50, dtype=torch.float64)).flip(0)
    assert float(expected_kl_lower_bound(values, noise, len(z))) <= want
    assert float(kl_lower_bound(values, noise, len(z))) <= float(kl.min())


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(3, 40),
    log_noise=st.floats(-3, 1),
    log_scale=st.floats(-1, 1),
    share=st.floats(0, 0.99),
)
@torch.no_grad()
def test_lower_bounds_lie_below_for_any_points_and_targets(seed, n, log_noise, log_scale, share):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1 + seed % 2, generator=draws, dtype=torch.float64)
    m = 1 + int(share * (n - 1))
    kernel, noise = Matern32(lengthscale=10**log_scale).double(), double(10**log_noise)
    z = x[torch.randperm(n, generator=draws)[:m]] + 0.05 * (seed % 3)
    k_xx = kernel.evaluate(x)
    k = k_xx + noise * torch.eye(n, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(k_xx)
    values = values.flip(0)
    q = NystromMatrix.of(kernel, x, z, x[:, 0], noise)
    trace = float(q.sums.trace_error)
    # the worst target of these points: along the largest eigenvector of Q^{-1} - K^{-1}
    inverse = q.solve(torch.eye(n, dtype=torch.float64)) - torch.linalg.inv(k)
    worst = 3.0 * torch.linalg.eigh(0.5 * (inverse + inverse.mT))[1][:, -1]
    for y in (worst, torch.randn(n, generator=draws, dtype=torch.float64), vectors[:, 0]):
        one = q.with_target(y)
        kl = float(evidence_of(k, y[:, None])[0] - collapsed_bound_value(one, y))
        slack = 1e-8 * (1.0 + abs(float(y @ y / noise)) + n)
        assert float(kl_lower_bound(values, noise, m)) <= kl + slack
        if y is worst:
            lower = worst_kl_lower_bound(values, noise, m, y @ y)
            assert float(lower) <= kl + slack
    average = float(expected_kl(kernel, x, z, noise))
    assert 0.5 * trace / float(noise) - 1e-9 <= average <= trace / float(noise) + 1e-9
    assert float(expected_kl_lower_bound(values, noise, m)) <= average + 1e-8


@pytest.mark.parametrize(("n", "want"), [(200, 2468.5), (500, 6161.6)])
@torch.no_grad()
def test_white_enough_kernels_defeat_any_half_of_the_points(n, want):
    x = torch.arange(n, dtype=torch.float64)
    matrix = torch.exp(-(x[:, None] - x[None, :]).square())
    values = torch.linalg.eigvalsh(matrix).flip(0)
    found = float(kl_lower_bound(values, double(0.01), n // 2))
    assert found == pytest.approx(want, rel=2e-5)
    assert float(kl_lower_bound(values[: 3 * n // 4], double(0.01), n // 2)) < found
    assert float(worst_kl_lower_bound(values, double(0.01), n, double(1.0))) == 0.0


@torch.no_grad()
def test_greedy_points_until_the_average_is_small():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=draws, dtype=torch.float64)
    kernel, noise = RBF(lengthscale=1.5).double(), 0.05
    found = points_for_expected_kl(kernel, x, noise, 0.3)
    assert found.trace_error <= 0.3 * noise
    assert float(expected_kl(kernel, x, found.points, double(noise))) <= 0.3
    fewer = NystromMatrix.of(kernel, x, found.points[:-1], x[:, 0], double(noise))
    assert float(fewer.sums.trace_error) > 0.3 * noise
    y = x.sum(1).sin()
    sure = points_for_expected_kl(kernel, x, noise, 0.3, squared_norm=float(y @ y))
    assert len(sure.points) > len(found.points)
    q = NystromMatrix.of(kernel, x, sure.points, y, double(noise))
    k = kernel.evaluate(x) + noise * torch.eye(120, dtype=torch.float64)
    assert float(evidence_of(k, y[:, None])[0] - collapsed_bound_value(q, y)) <= 0.3
    few = points_for_expected_kl(kernel, x, noise, 0.3, max_points=5)
    assert len(few.points) == 5
    assert few.trace_error > 0.3 * noise


@pytest.mark.parametrize("squared_norm", [0.0, 1.0, 1e8])
@pytest.mark.parametrize("tolerance", [1e-6, 0.1, 100.0])
def test_the_trace_error_allowed_is_the_root(squared_norm, tolerance):
    noise = 0.03
    t = sufficient_trace_error(noise, tolerance, squared_norm)
    assert t * (1 + squared_norm / (t + noise)) == pytest.approx(2 * noise * tolerance, rel=1e-9)


def test_mistakes_are_explained():
    with pytest.raises(ConfigError, match=r"noise=0.0 must be positive"):
        points_for_expected_kl(RBF(), torch.zeros(3, 1), 0.0, 0.1)
