"""Upper bounds on KL(q || posterior): golden values, dense truth, order, limits."""

import math
from itertools import pairwise

import golden_g1 as g1
import pytest
import torch
from draws import double
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.diagnostics.evidence_bounds import bounds_rounding, collapsed_bound_value
from gpx.inference.auxiliary import AuxiliarySolver
from gpx.inference.kl_bounds import (
    kl_upper_bound,
    kl_upper_bound_cg,
    kl_upper_bound_trace,
    quadratic_gap,
    total_variation_bound,
)
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF, Matern12, Matern32, Matern52


@pytest.fixture(scope="module")
def golden():
    kernel = RBF(lengthscale=0.7).double()
    kernel.lengthscale, kernel.outputscale = double(0.7), double(g1.VARIANCE)
    with torch.no_grad():
        return NystromMatrix.of(kernel, g1.x[:, None], g1.z[:, None], g1.y, double(g1.NOISE))


@torch.no_grad()
def test_golden_values(golden):
    error = torch.linalg.eigvalsh(g1.K - g1.Q)[-1]
    assert float(error) == pytest.approx(0.05780980518, rel=1e-6)
    v = torch.linalg.solve(g1.K, g1.y)
    sums, s = golden.sums, golden.noise
    for found, want in (
        (kl_upper_bound(sums, s), 56.68250808),
        (kl_upper_bound_trace(sums, s), 708.5050297),
        (kl_upper_bound_trace(sums, s, largest_error=error), 581.2612653),
        (kl_upper_bound_cg(golden, g1.y, v, g1.y - g1.K @ v), -11.97036245 + 15.39090192),
    ):
        assert float(found) == pytest.approx(want, rel=1e-7)


@torch.no_grad()
def test_gap_without_cancellation_is_the_dense_one(golden):
    shift = golden.sums.trace_error * torch.eye(200, dtype=torch.float64)
    dense = g1.y @ torch.linalg.solve(g1.Q, g1.y) - g1.y @ torch.linalg.solve(g1.Q + shift, g1.y)
    assert float(quadratic_gap(golden.sums, golden.noise).value) == pytest.approx(
        float(dense), rel=1e-8
    )


KERNELS = (RBF, Matern12, Matern32, Matern52)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 60),
    log_noise=st.floats(-5, 1.5),
    log_scale=st.floats(-1, 1),
    log_size=st.floats(-1, 2),
    share=st.floats(0, 1),
)
@torch.no_grad()
def test_never_below_the_exact_divergence(seed, n, log_noise, log_scale, log_size, share):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1 + seed % 3, generator=draws, dtype=torch.float64)
    y = 10**log_size * (x.sum(1).sin() + 0.3 * torch.randn(n, generator=draws).double())
    m = 1 + int(share * (n - 1))
    kernel = KERNELS[seed % 4](lengthscale=10**log_scale).double()
    noise = double(10**log_noise)
    z = x[torch.randperm(n, generator=draws)[:m]] + 0.05 * (seed % 2)
    q = NystromMatrix.of(kernel, x, z, y, noise)
    k = kernel.evaluate(x) + noise * torch.eye(n, dtype=torch.float64)
    factor = torch.linalg.cholesky(k)
    exact = torch.cholesky_solve(y[:, None], factor)[:, 0]
    logdet = 2.0 * factor.diagonal().log().sum()
    evidence = -0.5 * (y @ exact + logdet + n * math.log(2 * math.pi))
    kl = evidence - collapsed_bound_value(q, y)
    start = q.shifted_solve(y)
    found = AuxiliarySolver(epsilon=1e-2).solve(
        AuxiliarySolver().matrix(kernel, x, noise), q, y, start
    )
    tightest = kl_upper_bound_cg(q, y, exact, y - k @ exact)
    bounds = [
        kl,
        kl_upper_bound_cg(q, y, found.vector, found.residual),
        kl_upper_bound(q.sums, noise),
        kl_upper_bound_trace(q.sums, noise),
    ]
    slack = 2.0 * float(bounds_rounding(q, y))
    # the dense reference rounds as well: differences of evidences of this size
    slack += 8.0 * torch.finfo(torch.float64).eps * float(evidence.abs() + y @ exact + logdet.abs())
    for lower, upper in pairwise(bounds):
        assert float(lower) <= float(upper) + slack
    assert float(kl) <= float(tightest) + slack
    assert float(tightest) <= float(bounds[1]) + slack
    assert all(float(b) >= 0.0 for b in bounds[1:])


@torch.no_grad()
def test_falls_to_zero_with_more_inducing_points():
    x = torch.linspace(0, 4, 40, dtype=torch.float64)[:, None]
    kernel, y, noise = Matern32().double(), x[:, 0].sin(), double(0.1)
    found = [
        float(kl_upper_bound(NystromMatrix.of(kernel, x, x[:m], y, noise).sums, noise))
        for m in (1, 5, 10, 20, 39, 40)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-2] > 1e-4
    assert found[-1] < 1e-9


@torch.no_grad()
def test_jitter_only_loosens_it(golden):
    kernel, x = golden.store.whitener.kernel, g1.x[:, None]
    found = []
    for jitter in (0.0, *(10.0 ** -(10 - i) for i in range(9))):
        q = NystromMatrix.of(kernel, x, g1.z[:, None], g1.y, double(g1.NOISE), jitter=jitter)
        found.append(
            (float(kl_upper_bound(q.sums, q.noise)), float(collapsed_bound_value(q, g1.y)))
        )
    assert all(a[0] <= b[0] and a[1] >= b[1] for a, b in pairwise(found))


def test_total_variation():
    assert total_variation_bound(0.0) == 0.0
    assert total_variation_bound(0.1) == pytest.approx(math.sqrt(0.05))
    assert total_variation_bound(5.0) == pytest.approx(math.sqrt(1.0 - math.exp(-5.0)))
