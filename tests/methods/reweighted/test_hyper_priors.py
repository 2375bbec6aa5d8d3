"""Hyper-priors as densities of logarithms: Student-t weights, log-normals by mode and variance."""

import math

import pytest
import torch
from torch.distributions import Gamma, Normal, StudentT
from torch.distributions import LogNormal as Reference

from gpx.errors import ConfigError
from gpx.models import HyperPriors, InverseGamma, LogNormal, WeightPriors


def logs():
    return torch.linspace(-60.0, 60.0, 1201, dtype=torch.float64)


def densities(prior, grid):
    return torch.stack([prior.density(u[None])[0] for u in grid.unbind()])


@pytest.mark.parametrize(("mode", "freedom"), [(1.0, 1.0), (0.3, 4.0), (5.0, 30.0)])
def test_a_gamma_precision_makes_the_weight_student_t(mode, freedom):
    """Integral of N(w; 0, g) p(log g) over log g, by the trapezoidal rule."""
    grid = logs()
    prior = densities(InverseGamma(mode, freedom), grid)
    assert float(torch.trapezoid(prior.exp(), grid)) == pytest.approx(1.0, rel=1e-8)
    reference = StudentT(freedom, 0.0, math.sqrt(mode))
    for w in (0.0, 0.4, 3.0, 20.0):
        joint = Normal(0.0, (0.5 * grid).exp()).log_prob(torch.tensor(w).double()) + prior
        found = float(torch.trapezoid(joint.exp(), grid).log())
        assert found == pytest.approx(float(reference.log_prob(torch.tensor(w).double())), rel=1e-6)


def test_it_is_the_gamma_density_of_the_precision():
    """p(log g) = Gamma(1 / g; freedom / 2, freedom mode / 2) / g, with its mode and variance."""
    prior, u = InverseGamma(0.3, 5.0), torch.linspace(-4.0, 3.0, 9).double()
    law = Gamma(torch.tensor(2.5).double(), torch.tensor(0.75).double())
    want = law.log_prob((-u).exp()) - u
    torch.testing.assert_close(densities(prior, u), want, rtol=1e-9, atol=1e-9)
    assert float(prior.density(torch.tensor([0.3]).double().log())[1]) == pytest.approx(
        0.0, abs=1e-6
    )
    grid = logs()
    mass = densities(prior, grid).exp()
    mean = torch.trapezoid(mass * grid, grid)
    variance = torch.trapezoid(mass * (grid - mean).square(), grid)
    assert prior.log_variance == pytest.approx(float(variance), rel=1e-6)


@pytest.mark.parametrize("weight", [LogNormal(1.0, 100.0), InverseGamma(2.0, 3.0)])
def test_gradients_are_those_of_the_densities(weight):
    priors = HyperPriors(weight, LogNormal(0.1, 0.04))
    u = torch.tensor([0.3, -1.2, 2.0, -1.5], dtype=torch.float64, requires_grad=True)
    value, slope = priors.density(u)
    (want,) = torch.autograd.grad(value, u)
    torch.testing.assert_close(slope.detach(), want, rtol=1e-12, atol=1e-12)
    variances = priors.variances(u.detach())
    assert variances.tolist() == [*[weight.log_variance] * 3, priors.noise.log_variance]


def test_options_choose_the_family():
    assert WeightPriors(2.0, 50.0).weight() == LogNormal(2.0, 50.0)
    assert WeightPriors(2.0, weight_freedom=3.0).weight() == InverseGamma(2.0, 3.0)
    assert WeightPriors().noise(0.3).mode == 0.3
    assert WeightPriors(noise_mode=0.1).noise(0.3).mode == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_variance": 0.0}, "needs a positive mode and variance"),
        ({"noise_mode": -1.0}, "needs a positive mode and variance"),
        ({"weight_freedom": 0.0}, "positive and finite scale and freedom"),
        ({"weight_freedom": 2.0, "weight_mode": -1.0}, "positive and finite scale and freedom"),
    ],
)
def test_invalid_setups_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        WeightPriors(**options)


@pytest.mark.parametrize(
    ("mode", "variance", "log_variance", "log_mean"),
    [
        (1.0, 100.0, 1.237004, 1.237004),
        (0.1, 0.04, 0.558703, -1.743882),
        (1.0, 0.04, 0.035344, 0.035344),
    ],
)
def test_reference_values(mode, variance, log_variance, log_mean):
    prior = LogNormal(mode, variance)
    assert prior.log_variance == pytest.approx(log_variance, abs=5e-7)
    assert prior.log_mean == pytest.approx(log_mean, abs=5e-7)


@pytest.mark.parametrize("mode", [1e-6, 0.3, 1e4])
@pytest.mark.parametrize("variance", [1e-12, 0.04, 1e8])
def test_mode_and_variance_come_back(mode, variance):
    prior = LogNormal(mode, variance)
    reference = Reference(
        torch.tensor(prior.log_mean, dtype=torch.float64),
        torch.tensor(prior.log_variance, dtype=torch.float64).sqrt(),
    )
    assert float(reference.mode) == pytest.approx(mode, rel=1e-10)
    # through expm1, which the reference does not lose digits in either
    assert float(reference.variance) == pytest.approx(variance, rel=1e-9)
    assert math.isfinite(prior.log_mean)


@pytest.mark.parametrize(("mode", "variance"), [(1e300, 1.0), (1e-300, 1.0), (1.0, 1e300)])
def test_a_spread_that_overflows_is_refused(mode, variance):
    with pytest.raises(ConfigError, match="squared modes"):
        LogNormal(mode, variance)


@pytest.mark.parametrize(("mode", "variance"), [(1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0)])
def test_log_normals_without_mode_or_variance_are_refused(mode, variance):
    with pytest.raises(ConfigError, match="needs a positive mode and variance"):
        LogNormal(mode, variance)
