"""Rules for predictive variances at tiny noise, against extended precision: bounds hold or warn."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError
from gpx.kernels import RBF, Linear, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import UnconvergedWarning
from gpx.means import Zero
from gpx.models import ExactGP, IterativeOptions

N = 40


def conditioned(kernel, noise, rank, steps, rule, seed, neighbours=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64) * 4
    model = ExactGP(
        kernel=kernel(ard_num_dims=2, lengthscale=[0.8, 1.5], outputscale=1.4),
        mean=Zero(),
        likelihood=Gaussian(noise, noise_floor=1e-10),
        solver="iterative",
        iterative=IterativeOptions(
            rank=rank, variance_steps=steps, variance=rule, variance_neighbours=neighbours
        ),
    ).double()
    at = torch.rand(15, 2, generator=generator, dtype=torch.float64) * 5
    return model.condition(x, x.sum(1).sin()), x, at


def in_extended_precision(matrix, right):
    """right^T matrix^{-1} right per column by a Cholesky factorisation in long double."""
    a, b = matrix.numpy().astype(np.longdouble), right.numpy().astype(np.longdouble)
    for i in range(len(a)):
        a[i, i] = np.sqrt(a[i, i] - (a[i, :i] ** 2).sum())
        a[i + 1 :, i] = (a[i + 1 :, i] - a[i + 1 :, :i] @ a[i, :i]) / a[i, i]
        b[i] = (b[i] - a[i, :i] @ b[:i]) / a[i, i]
    return torch.from_numpy((b**2).sum(0).astype(np.float64))


@settings(max_examples=15, deadline=None)
@given(
    kernel=st.sampled_from([Matern32, RBF]),
    exponent=st.floats(-8.0, -2.0),
    rank=st.integers(1, N),
    steps=st.integers(0, 40),
    rule=st.sampled_from(["lanczos", "exact", "subset", "nystrom"]),
    seed=st.integers(0, 100),
    neighbours=st.integers(0, N),
)
# all points: the variance is exact but for rounding, by which it is too low, and too high
@example(Matern32, -3.0, N, 0, "subset", 6, 0)
@example(Matern32, -3.0, N, 0, "subset", 0, 0)
def test_certificates_hold_at_tiny_noise_and_wide_ones_are_reported(
    kernel, exponent, rank, steps, rule, seed, neighbours
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior, x, at = conditioned(kernel, 10.0**exponent, rank, steps, rule, seed, neighbours)
        caught.clear()  # of the mean
        variance = posterior.predict(at).variance
    noise = posterior.likelihood.noise_variance
    matrix = posterior.kernel.evaluate(x, x) + noise * torch.eye(N, dtype=torch.float64)
    cross = posterior.kernel.evaluate(x, at)
    prior = posterior.kernel.diagonal(at)
    want = prior - in_extended_precision(matrix, cross)
    found = posterior._rule(cross, prior)
    # what the sums k^T v and v^T K v round to: v = K^-1 k is large where K is nearly singular
    weights = torch.linalg.solve(matrix, cross).abs()
    terms = (cross.abs() * weights).sum(0) + (weights * (matrix.abs() @ weights)).sum(0)
    slack = torch.finfo(torch.float64).eps * (4.0 * terms + N * prior)
    assert bool((found.variance >= want - slack).all())
    assert bool((found.variance - found.gap <= want + slack).all())
    bound = posterior.facts()["variance_error_bound"]
    assert bool((variance - want <= bound * (want + noise) + slack).all())
    warned = any("predictive variances are certified" in str(w.message) for w in caught)
    assert warned == (bound > posterior.options.tolerance)


@pytest.mark.parametrize("kernel", [Matern32, RBF])
@pytest.mark.parametrize("noise", [1e-8, 1e-4])
def test_a_cache_as_wide_as_the_data_is_exact_or_says_it_is_not(kernel, noise):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnconvergedWarning)
        posterior, x, at = conditioned(kernel, noise, N, 40, "lanczos", 0)
        got = posterior.predict(at).variance
    matrix = posterior.kernel.evaluate(x, x)
    matrix += posterior.likelihood.noise_variance * torch.eye(N, dtype=torch.float64)
    cross = posterior.kernel.evaluate(x, at)
    want = posterior.kernel.diagonal(at) - in_extended_precision(matrix, cross)
    assert float(((got - want).abs() / (want + noise)).max()) < 0.01
    assert math.isfinite(posterior.facts()["variance_error_bound"])


@pytest.mark.parametrize("kernel", [Matern32, RBF])
def test_neighbours_lower_a_projection_to_the_exact_variance(kernel):
    variances = []
    for neighbours in (0, 5, 15, N):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnconvergedWarning)
            posterior, x, at = conditioned(kernel, 1e-2, 6, 4, "lanczos", 0, neighbours)
            variances.append(posterior.predict(at).variance)
    matrix = posterior.kernel.evaluate(x, x)
    matrix += posterior.likelihood.noise_variance * torch.eye(N, dtype=torch.float64)
    cross = posterior.kernel.evaluate(x, at)
    exact = posterior.kernel.diagonal(at) - (cross * torch.linalg.solve(matrix, cross)).sum(0)
    excess = [(v - exact).detach() for v in variances]
    assert all(bool((e > -1e-10).all()) for e in excess)  # bounds from above
    assert all(b.mean() < 0.5 * a.mean() for a, b in itertools.pairwise(excess))
    torch.testing.assert_close(variances[-1], exact, rtol=1e-7, atol=1e-9)


def test_a_training_row_with_which_no_row_covaries_starts_nothing():
    """One at the origin under a linear kernel: its covariances are a vector of zeros."""
    x = torch.linspace(-1.0, 1.0, N, dtype=torch.float64)[:, None].clone()
    x[[0, N // 2, N - 1]] = 0.0
    model = ExactGP(
        kernel=Linear(),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        solver="iterative",
        iterative=IterativeOptions(variance="lanczos"),
    ).double()
    at = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
    found = model.condition(x, x[:, 0]).predict(at).variance
    want = at[:, 0] ** 2 / (1.0 + x.square().sum() / 0.1)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=0.0)


def test_rank_of_the_projection_and_its_neighbours_are_checked():
    with pytest.raises(ConfigError, match="variance_neighbours=-1 must be at least 0"):
        IterativeOptions(variance_neighbours=-1)
    with pytest.raises(ConfigError, match="variance_rank=0 must be at least 1"):
        IterativeOptions(variance_rank=0)


def test_a_sandwich_is_as_wide_as_rounding_makes_it(monkeypatch):
    """Twice the rounding, once at each end: where data are near, the lower end is above zero."""
    from gpx.inference import predictive_variance

    posterior, x, _ = conditioned(RBF, 0.5, 10, 5, "nystrom", 0)
    rule = predictive_variance.sandwich_rule(posterior.system(), posterior.options)
    cross, prior = 0.3 * posterior.kernel.evaluate(x, x[:6]), torch.full((6,), 1.4).double()
    plain = rule(cross, prior)
    original = predictive_variance._quadratic
    monkeypatch.setattr(
        predictive_variance, "_quadratic", lambda *given: (original(*given)[0], 1e-3)
    )
    rounded = rule(cross, prior)
    assert (plain.variance - plain.gap > 0.1).all()
    torch.testing.assert_close(rounded.variance - plain.variance, torch.full((6,), 1e-3).double())
    torch.testing.assert_close(rounded.gap - plain.gap, torch.full((6,), 2e-3).double())
