"""The logistic function averaged under a normal: against a finer sum, far into the tails."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit

from gpx.likelihoods import Bernoulli
from gpx.likelihoods.logistic_normal import log_logistic_normal, logistic_normal


def finer(mean, deviation):
    """Z and its derivatives by a trapezoid rule over f of 2 million points around both bends."""
    reach = 14.0 * deviation + deviation**2 + 40.0
    f = np.linspace(mean - reach, mean + reach, 2_000_001)
    weights = np.exp(-0.5 * ((f - mean) / deviation) ** 2)
    weights /= np.sqrt(2.0 * np.pi) * deviation / (f[1] - f[0])
    slope = expit(f) * expit(-f)
    return weights @ expit(f), weights @ slope, weights @ (slope * (expit(-f) - expit(f)))


@pytest.mark.parametrize("deviation", [0.05, 1.0, 1.999, 2.001, 5.0, 60.0])
@pytest.mark.parametrize("mean", [-55.0, -20.0, -3.0, 0.0, 0.7, 25.0])
def test_value_and_derivatives(mean, deviation):
    at = torch.tensor([[mean], [deviation**2]], dtype=torch.float64)
    found = torch.cat(logistic_normal(*at)).numpy()
    value, slope, bend = finer(mean, deviation)
    assert found[0] == pytest.approx(value, rel=1e-10)
    # next to a step of height 1 the derivatives are known to rounding of that height
    assert found[1] == pytest.approx(slope, rel=1e-10, abs=1e-15)
    assert found[2] == pytest.approx(bend, rel=1e-10, abs=1e-14)


def test_no_variance_is_the_function_itself():
    mean = torch.linspace(-30.0, 30.0, 13, dtype=torch.float64)
    value, slope, _ = logistic_normal(mean, torch.zeros_like(mean))
    torch.testing.assert_close(value, torch.sigmoid(mean), rtol=1e-13, atol=0)
    torch.testing.assert_close(slope, torch.sigmoid(mean) * torch.sigmoid(-mean))


def test_information_is_never_negative_and_leaves_a_variance():
    mean = torch.linspace(-200.0, 200.0, 81, dtype=torch.float64).repeat(4)
    variance = torch.tensor([1e-8, 1.0, 30.0, 1e4]).double().repeat_interleave(81)
    for label in (-1.0, 1.0):
        y = torch.full_like(mean, label)
        found = Bernoulli("logit").tilted(y, mean, variance)
        assert bool(torch.isfinite(found.log_normaliser).all())
        assert bool((found.information >= 0.0).all())
        assert bool((variance * found.information < 1.0).all())


def test_a_label_that_is_all_but_impossible():
    """Far below zero the function is exp(f): log Z = m + v / 2."""
    mean = torch.tensor([-500.0, -80.0, -45.0], dtype=torch.float64)
    variance = torch.tensor([200.0, 9.0, 0.1], dtype=torch.float64)
    found = Bernoulli("logit").tilted(torch.ones(3).double(), mean, variance)
    torch.testing.assert_close(found.log_normaliser, mean + 0.5 * variance, rtol=1e-13, atol=0)
    torch.testing.assert_close(found.gradient, torch.ones(3).double(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("mean", "variance"), [(-77.3, 50.3), (-59.0, 40.0), (-130.0, 100.0), (-200.0, 150.0)]
)
def test_moments_have_digits_where_the_probability_is_tiny(mean, variance):
    """Z of 1e-17 to 1e-54: the slope was 1e4 in place of 1, and moments were never matched."""
    deviation = math.sqrt(variance)
    f = torch.linspace(
        mean - 12 * deviation, mean + variance + 14 * deviation, 200_001, dtype=torch.float64
    )
    log_weight = -0.5 * ((f - mean) / deviation).square() + torch.nn.functional.logsigmoid(f)
    weight = log_weight.softmax(0)
    given = (weight * f).sum()
    spread = (weight * (f - given).square()).sum()
    found = log_logistic_normal(torch.tensor([mean]).double(), torch.tensor([variance]).double())
    assert float(found.slope) == pytest.approx(float((given - mean) / variance), abs=1e-6)
    assert float(found.bend) == pytest.approx(float((spread - variance) / variance**2), abs=1e-6)
