"""Bounds on the log marginal likelihood: golden values and their order."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from draws import double
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.diagnostics import evidence_bounds
from gpx.diagnostics.evidence_bounds import (
    cg_lower_bound_value,
    cg_upper_bound,
    collapsed_bound_value,
    davies_lower_bound,
    logdet_lower,
    logdet_upper,
    logdet_upper_tight,
    titsias_quadratic,
    titsias_upper_bound,
)
from gpx.errors import DataError
from gpx.inducing import GreedyConditionalVariance
from gpx.inference.auxiliary import AuxiliarySolver, quadratic_lower, quadratic_upper
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF, Matern32, Matern52


class Case:
    """A problem with its dense truth."""

    def __init__(self, kernel, x, y, z, noise):
        self.kernel, self.x, self.y, self.z = kernel.double(), x, y, z
        self.noise = double(noise)
        with torch.no_grad():
            self.q = NystromMatrix.of(kernel, x, z, y, self.noise)
            self.matrix = AuxiliarySolver().matrix(kernel, x, self.noise)
            self.diagonal = kernel.diagonal(x)
            self.k = kernel.evaluate(x) + self.noise * torch.eye(len(y), dtype=x.dtype)
            factor = torch.linalg.cholesky(self.k)
        self.logdet = 2 * factor.diagonal().log().sum()
        self.solution = torch.cholesky_solve(y[:, None], factor)[:, 0]
        self.quadratic = y @ self.solution
        self.evidence = -0.5 * (self.quadratic + self.logdet + len(y) * np.log(2 * np.pi))

    def residual(self, v):
        return self.y - self.k @ v


@pytest.fixture(scope="module")
def golden():
    """Fixture G1: 200 points on [0, 10], 20 inducing points."""
    x = torch.arange(200, dtype=torch.float64) * (10.0 / 199.0)
    kernel = RBF(lengthscale=0.7, outputscale=1.3).double()
    kernel.lengthscale, kernel.outputscale = double(0.7), double(1.3)
    y = (2 * x).sin() + 0.3 * (7 * x).cos()
    return Case(kernel, x[:, None], y, x[5::10, None], 0.05)


@torch.no_grad()
def test_golden_log_determinants(golden):
    q = golden.q
    assert float(golden.logdet) == pytest.approx(-516.0157202, rel=1e-9)
    assert float(q.logdet()) == pytest.approx(-516.7462575, rel=1e-9)
    assert float(q.largest_eigenvalue()) == pytest.approx(44.47255854, rel=1e-9)
    assert float(logdet_lower(q)) == pytest.approx(-516.744139, rel=1e-9)
    tight = logdet_upper_tight(golden.matrix, q, golden.diagonal)
    assert float(tight) == pytest.approx(-515.8966492, rel=1e-9)
    linear = logdet_upper_tight(golden.matrix, q, golden.diagonal, linear=True)
    assert float(linear) == pytest.approx(-515.8948421, rel=1e-9)
    assert float(logdet_upper(q)) == pytest.approx(-514.8666543, rel=1e-9)
    assert float(logdet_upper(q, variational=True)) == pytest.approx(-514.8577943, rel=1e-9)


@torch.no_grad()
def test_golden_bounds(golden):
    q, y, v = golden.q, golden.y, golden.solution
    start = q.shifted_solve(y)
    none = torch.zeros_like(y)
    k_zz, k_zx = golden.kernel.evaluate(golden.z), golden.kernel.evaluate(golden.z, golden.x)
    davies = davies_lower_bound(k_zz, k_zx, golden.diagonal, golden.noise, y, v, golden.residual(v))
    for found, want in (
        (collapsed_bound_value(q, y), -15.39090192),
        (cg_lower_bound_value(q, y, none, y), -15.38647192),
        (cg_lower_bound_value(q, y, v, golden.residual(v)), -12.90910478),
        (titsias_upper_bound(q, y, refined=False), 41.29266543),
        (titsias_upper_bound(q, y), 41.29160615),
        (cg_upper_bound(q, y, start, golden.residual(start)), 22.33288025),
        (cg_upper_bound(q, y, v, golden.residual(v)), -11.97036245),
        (cg_upper_bound(q, y, v, golden.residual(v), refined=False), -11.96930317),
        (davies, -66.13819149),
    ):
        assert float(found) == pytest.approx(want, rel=1e-8)


def test_golden_bracket_after_one_nat(golden):
    zero = torch.zeros_like(golden.y)
    found = evidence_bounds(
        golden.kernel, golden.x, golden.z, golden.y, golden.noise, AuxiliarySolver(), start=zero
    )
    assert found.report.iterations == 1
    assert found.cg_lower == pytest.approx(-13.15869761, rel=1e-8)
    assert found.cg_upper == pytest.approx(-11.30235883, rel=1e-8)
    assert found.gap == pytest.approx(0.9175964454, rel=1e-8)
    assert 0.0 < found.rounding < 1e-6
    assert found.lower == found.cg_lower - found.rounding
    assert found.upper == found.cg_upper + found.rounding


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    log_noise=st.floats(-3, 1),
    log_scale=st.floats(-0.7, 0.7),
    m=st.integers(1, 40),
)
@torch.no_grad()
def test_every_order(seed, log_noise, log_scale, m):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 2, generator=draws, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(40, generator=draws, dtype=torch.float64)
    kernel = (RBF, Matern32, Matern52)[seed % 3](lengthscale=10**log_scale)
    case = Case(kernel, x, y, x[:m] + 0.01 * (seed % 2), 10**log_noise)
    q, v = case.q, case.solution
    lowest = logdet_lower(q, refined=False), logdet_lower(q), case.logdet
    tight = logdet_upper_tight(case.matrix, q, case.diagonal)
    linear = logdet_upper_tight(case.matrix, q, case.diagonal, linear=True)
    loose, last = logdet_upper(q), logdet_upper(q, variational=True)
    slack = 1e-8 * max(1.0, *(abs(float(t)) for t in (*lowest, last)))
    for order in ((*lowest, tight, linear, last), (case.logdet, tight, loose, last)):
        assert all(a <= b + slack for a, b in itertools.pairwise(order))

    start = q.shifted_solve(y)
    partial = 0.5 * v + 0.5 * start
    slack = 1e-8 * max(1.0, abs(float(case.quadratic)))
    assert titsias_quadratic(q, y) <= quadratic_lower(y, start, case.residual(start)) + slack
    anything = torch.randn(40, generator=draws, dtype=torch.float64) * v.norm()
    for w in (start, partial, v, torch.zeros_like(y), anything, v + 0.01 * anything):
        r = case.residual(w)
        assert quadratic_lower(y, w, r) <= case.quadratic + slack
        assert case.quadratic <= quadratic_upper(q, y, w, r) + slack
        assert quadratic_upper(q, y, w, r) <= (
            quadratic_lower(y, w, r) + r.square().sum() / case.noise + slack
        )
        lower = cg_lower_bound_value(q, y, w, r)
        assert lower <= case.evidence + max(slack, 1e-8 * abs(float(lower)))
        refined, older = cg_upper_bound(q, y, w, r), cg_upper_bound(q, y, w, r, refined=False)
        assert case.evidence <= refined + max(slack, 1e-8 * abs(float(refined)))
        assert refined <= older
    assert collapsed_bound_value(q, y) <= cg_lower_bound_value(q, y, v, case.residual(v)) + slack
    assert collapsed_bound_value(q, y) <= cg_lower_bound_value(q, y, torch.zeros_like(y), y) + slack
    uppers = [
        case.evidence,
        cg_upper_bound(q, y, v, case.residual(v)),
        cg_upper_bound(q, y, start, case.residual(start)),
        titsias_upper_bound(q, y),
        titsias_upper_bound(q, y, refined=False),
    ]
    slack = 1e-8 * max(1.0, *(abs(float(t)) for t in uppers))
    assert all(a <= b + slack for a, b in itertools.pairwise(uppers))


@torch.no_grad()
def test_a_poor_vector_takes_the_bound_below_the_collapsed_one(golden):
    v = 5.0 * golden.solution
    found = cg_lower_bound_value(golden.q, golden.y, v, golden.residual(v))
    assert found < collapsed_bound_value(golden.q, golden.y) - 1.0


ELEVATORS = [
    # lengthscale, noise, M, T, ELBO, bound at 0, at K^{-1} y, tight, U(K^{-1} y), U_T, steps (G3)
    (1.0, 1.0, 50, 948.767, -1868.965, -1728.180, -1474.520, -1473.895, -1143.932, -940.102, 7, 12),
    (
        1.0,
        1.0,
        400,
        555.037,
        -1610.978,
        -1554.209,
        -1489.898,
        -1476.213,
        -1271.074,
        -1067.614,
        4,
        8,
    ),
    (4.0, 0.1, 50, 429.922, -4089.656, -2773.825, -1215.340, -995.114, -381.965, 151.601, 16, 26),
    (4.0, 0.1, 400, 69.125, -1205.222, -1122.331, -906.647, -831.038, -643.993, -115.347, 5, 9),
]


@pytest.mark.parametrize("row", ELEVATORS, ids=lambda row: f"{row[0]:g}-{row[2]}")
@torch.no_grad()
def test_elevators(row):
    root = os.environ.get("GPX_DATA")
    path = Path(root or "") / "uci" / "elevators" / "data.csv.gz"
    if root is None or not path.is_file():
        pytest.skip("the elevators data are not in $GPX_DATA")
    lengthscale, noise, m, trace, elbo, at_zero, best, tight, upper, titsias, loose, fine = row
    rows = np.loadtxt(path, delimiter=",", max_rows=1000)
    rows = torch.from_numpy((rows - rows.mean(0)) / rows.std(0))
    x, y = rows[:, :-1].contiguous(), rows[:, -1].contiguous()
    kernel = Matern32(lengthscale=lengthscale).double()
    kernel.lengthscale, kernel.outputscale = double(lengthscale), double(1.0)
    case = Case(kernel, x, y, GreedyConditionalVariance().select(x, kernel, m).points, noise)
    q, v, none = case.q, case.solution, torch.zeros_like(y)
    r = case.residual(v)
    logdet = logdet_upper_tight(case.matrix, q, case.diagonal)
    tight_bound = -0.5 * (case.quadratic + logdet + len(y) * np.log(2 * np.pi))
    for found, want in (
        (q.sums.trace_error, trace),
        (collapsed_bound_value(q, y), elbo),
        (cg_lower_bound_value(q, y, none, y), at_zero),
        (cg_lower_bound_value(q, y, v, r), best),
        (tight_bound, tight),
        (cg_upper_bound(q, y, v, r), upper),
        (titsias_upper_bound(q, y), titsias),
    ):
        assert float(found) == pytest.approx(want, abs=6e-4)
    for epsilon, steps in ((1.0, loose), (1e-3, fine)):
        solved = AuxiliarySolver(epsilon=epsilon).solve(case.matrix, q, y, None)
        assert abs(solved.report.iterations - steps) <= 1  # rounding may decide one step
        assert solved.gap <= epsilon
    # conditioning decides whether the preconditioner pays: by at least 30 % when K is bad
    plain = {1.0: 6, 4.0: 34}[lengthscale]
    if lengthscale == 4.0:
        assert loose <= 0.7 * plain


def test_targets_that_are_not_finite_are_refused(golden):
    bad = golden.y.clone()
    bad[7] = float("inf")
    with pytest.raises(DataError, match="1 of 200 targets are not finite"):
        evidence_bounds(golden.kernel, golden.x, golden.z, bad, golden.noise, AuxiliarySolver())
