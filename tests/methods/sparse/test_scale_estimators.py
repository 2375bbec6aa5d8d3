"""One scale for kernel and noise: what maximising the evidence, or a bound on it, estimates.

Targets are drawn from N(0, theta K). The log marginal likelihood is largest at y^T K^{-1} y / n, a
scaled chi-square; the collapsed bound at y^T Q^{-1} y / n, which is larger on average. Closed forms
of mean and variance: Burt thesis, sections 1.2.4 and 2.5.1.
"""

import math

import pytest
import torch
from scipy import stats

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg import nystrom_preconditioner
from gpx.means import Zero
from gpx.models import SGPR, ExactGP
from gpx.objectives import CollapsedELBO, ExactMLL

NOISE = 0.1
MOMENTS = {
    # M: mean and variance of the collapsed bound's estimate at theta = 1
    4: (4.3235, 6.2430),
    6: (2.0553, 0.82081),
    8: (1.2653, 0.084878),
    10: (1.0544, 0.024635),
    12: (1.00956, 0.020461),
    16: (1.00023, 0.020009),
}


def inputs(n=100):
    return torch.linspace(0, 10, n, dtype=torch.float64)[:, None]


def covariance(x, z=None):
    with torch.no_grad():
        return RBF().double().evaluate(x, x if z is None else z)


def noisy(x):
    return covariance(x) + NOISE * torch.eye(len(x), dtype=torch.float64)


def nystrom(x, m):
    z = torch.linspace(0, 10, m, dtype=torch.float64)[:, None]
    return nystrom_preconditioner(covariance(z), covariance(z, x), NOISE), z


def draws(x, count=2000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(len(x), count, generator=generator, dtype=torch.float64)
    return torch.linalg.cholesky(noisy(x)) @ white


@pytest.mark.parametrize("m", MOMENTS)
def test_moments_of_the_bounds_estimate(m):
    x = inputs()
    q, _ = nystrom(x, m)
    ratio = q.solve(noisy(x))
    mean, variance = float(ratio.trace()) / 100, 2.0 * float((ratio @ ratio).trace()) / 100**2
    assert mean == pytest.approx(MOMENTS[m][0], rel=1e-4)
    assert variance == pytest.approx(MOMENTS[m][1], rel=1e-4)
    y = draws(x)
    found = (y * q.solve(y)).sum(0) / 100
    assert abs(float(found.mean()) - mean) <= 3.0 * math.sqrt(variance / y.shape[1])
    if m == 4:
        assert float(((found - mean) / variance**0.5).pow(3).mean()) > 0.5  # skewed
    if m == 16:
        assert stats.kstest(100 * found.numpy(), stats.chi2(100).cdf).pvalue > 0.01


@pytest.mark.parametrize("n", [20, 100, 400])
def test_the_evidences_estimate_is_a_scaled_chi_square(n):
    x = inputs(n)
    y = draws(x)
    found = (y * torch.cholesky_solve(y, torch.linalg.cholesky(noisy(x)))).sum(0) / n
    assert stats.kstest(n * found.numpy(), stats.chi2(n).cdf).pvalue > 0.01
    assert abs(float(found.mean()) - 1.0) <= 3.0 * math.sqrt(2.0 / n / y.shape[1])
    assert float(found.std()) == pytest.approx(math.sqrt(2.0 / n), rel=0.1)


@pytest.mark.parametrize("objective", ["exact", "collapsed"])
def test_objectives_are_largest_at_the_closed_form(objective):
    """The slope along a common scale of kernel and noise vanishes there."""
    x = inputs()
    y = draws(x, 1).squeeze(1)
    q, z = nystrom(x, 6)
    if objective == "exact":
        scale = float(y @ torch.linalg.solve(noisy(x), y)) / 100
        model = ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian()).double()
        bound = ExactMLL()
    else:
        scale = float(y @ q.solve(y)) / 100
        model = SGPR(
            kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=6
        ).double()
        bound = CollapsedELBO()
        with torch.no_grad():
            model.inducing_points.copy_(z)

    def value(theta):
        model.kernel.outputscale = torch.tensor(theta, dtype=torch.float64)
        model.likelihood.noise_variance = torch.tensor(NOISE * theta, dtype=torch.float64)
        with torch.no_grad():
            return float(bound.evidence(model, x, y).value)

    step = 1e-4
    slope = (value(scale * (1 + step)) - value(scale * (1 - step))) / (2 * step)
    assert abs(slope) < 1e-4
    assert value(scale) > max(value(0.9 * scale), value(1.1 * scale))
