"""Recalibration of the spread of numbers."""

import pytest
import torch
from torch.distributions import Normal

from gpx.calibration import Conformal, Variance
from gpx.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(n, factor=2.5, seed=0):
    """Residuals whose deviation is ``factor`` times the predicted one, which differs by row."""
    generator = torch.Generator().manual_seed(seed)
    mean, deviation = torch.randn(n, generator=generator), torch.rand(n, generator=generator) + 0.1
    y = mean + factor * deviation * torch.randn(n, generator=generator)
    return Normal(mean, deviation), y


@pytest.mark.parametrize("factor", [0.4, 2.5])
@pytest.mark.parametrize("make", [Variance, Conformal])
def test_the_factor_is_found(make, factor):
    """Standard errors at 5,000 rows: 1 % of the deviation, 2 % of the quantile; 5 of them."""
    made = make()
    made.fit(*problem(5000, factor))
    assert made.facts()["factor"] == pytest.approx(factor, rel=0.1)
    predictive, y = problem(20_000, factor, seed=1)
    found = made(predictive)
    torch.testing.assert_close(found.mean, predictive.mean)
    inside = (y - found.mean).abs() < 1.959964 * found.stddev
    assert float(inside.double().mean()) == pytest.approx(0.95, abs=0.02)


def test_variance_is_the_most_likely_factor():
    predictive, y = problem(100)
    made = Variance()
    made.fit(predictive, y)
    best = made(predictive).log_prob(y).mean()
    for other in (0.99, 1.01):
        scaled = Normal(predictive.mean, other * made.factor * predictive.stddev)
        assert scaled.log_prob(y).mean() < best
    assert predictive.log_prob(y).mean() < best


@pytest.mark.parametrize("law", ["normal", "heavy"])
def test_intervals_cover_as_promised_whatever_the_law(law):
    """Mean coverage over 4,000 calibrations on 39 rows: 0.9 of 40 places exactly.

    The coverage of one has a beta law, of deviation 0.047: 4.5 standard errors are 0.0034.
    """
    n, level, sets = 39, 0.9, 4000
    generator = torch.Generator().manual_seed(0)
    residuals = torch.randn(sets, n, generator=generator)
    if law == "heavy":
        residuals = residuals.sign() * (residuals.abs() + residuals.abs() ** 3)
    made = Conformal(level)
    width = 1.6448536269514722
    ends = torch.stack([made.factor_of(row) for row in residuals]) * width
    if law == "heavy":  # back to the normal residual of the same size: t + t^3 = end
        low, high = torch.zeros_like(ends), ends.clone()
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = middle + middle**3 < ends
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        ends = low
    covered = torch.erf(ends / 2**0.5)
    assert float(covered.mean()) == pytest.approx(0.9, abs=0.0034)


def test_what_cannot_be_calibrated():
    with pytest.raises(DataError, match=r"18 held-out rows cannot promise .* takes 19 or more"):
        Conformal().fit(*problem(18))
    Conformal().fit(*problem(19))
    with pytest.raises(DataError, match="no held-out rows"):
        Variance().fit(*problem(0))
    with pytest.raises(ConfigError, match=r"level=1\.0 of an interval"):
        Conformal(1.0)
    with pytest.raises(ConfigError, match="takes one output, and there are several"):
        Variance().fit(Normal(torch.zeros(3, 2), torch.ones(3, 2)), torch.zeros(3, 2))
    with pytest.raises(ConfigError, match="Variance is for regression targets, and these are bin"):
        Variance().require_task("binary")
