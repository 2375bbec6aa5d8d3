"""Recalibration of the spread of numbers."""

import pytest
import torch
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    Normal,
    Poisson,
    StudentT,
)

from gpx.calibration import Conformal, Variance
from gpx.calibration.intervals import widened
from gpx.errors import ConfigError, DataError
from gpx.likelihoods.quantiles import central_interval, quantile

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


def test_a_skewed_law_that_is_right_is_left_alone():
    """Each side of an interval has its own half, here 0.56 and 2.27 at level 0.9."""
    n, generator = 5000, torch.Generator().manual_seed(0)
    place, width = torch.tensor([0.0, 2.0]).expand(n, 2), torch.tensor([0.1, 1.0]).expand(n, 2)
    shares = Categorical(torch.tensor([0.8, 0.2]).expand(n, 2))
    right = torch.rand(n, 1, generator=generator) < 0.2
    drawn = place + width * torch.randn(n, 2, generator=generator)
    made = Conformal(level=0.9)
    made.fit(MixtureSameFamily(shares, Normal(place, width)), drawn.gather(1, right.long())[:, 0])
    assert made.facts()["factor"] == pytest.approx(1.0, rel=0.1)


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
    ends = torch.stack([made.factor_of_scores(row.abs() / width) for row in residuals]) * width
    if law == "heavy":  # back to the normal residual of the same size: t + t^3 = end
        low, high = torch.zeros_like(ends), ends.clone()
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = middle + middle**3 < ends
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        ends = low
    covered = torch.erf(ends / 2**0.5)
    assert float(covered.mean()) == pytest.approx(0.9, abs=0.0034)


def heavy(n, factor=2.5, seed=0):
    """Student t residuals of 3 degrees of freedom, mixed over three centres, too narrow."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        noise = StudentT(3.0).sample((n,))
    centre = torch.randn(n, generator=generator)
    scale = torch.rand(n, generator=generator) + 0.1
    y = centre + factor * scale * noise
    offsets = torch.tensor([-0.1, 0.0, 0.1])
    parts = StudentT(3.0, centre.unsqueeze(1) + scale.unsqueeze(1) * offsets, scale.unsqueeze(1))
    return MixtureSameFamily(Categorical(probs=torch.ones(n, 3)), parts), y


@pytest.mark.parametrize("make", [Variance, Conformal])
def test_heavy_tails_stay_heavy(make):
    """The factor has a standard error of about 1.2 % (likelihood) and 2 % (coverage) there."""
    predictive, y = heavy(10_000)
    made = make()
    made.fit(predictive, y)
    assert made.facts()["factor"] == pytest.approx(2.5, rel=0.1)
    found = made(predictive)
    torch.testing.assert_close(found.mean, predictive.mean)
    for q in (0.001, 0.2, 0.999):
        before, after = quantile(predictive, q), quantile(found, q)
        expected = predictive.mean + made.factor * (before - predictive.mean)
        torch.testing.assert_close(after, expected)
    others, new = heavy(20_000, seed=1)
    lower, upper = central_interval(made(others), 0.99)
    inside = ((new >= lower) & (new <= upper)).double().mean()
    assert float(inside) == pytest.approx(0.99, abs=0.005)


def test_variance_of_heavy_tails_is_the_most_likely_factor():
    predictive, y = heavy(200)
    made = Variance()
    made.fit(predictive, y)
    best = made(predictive).log_prob(y).mean()
    for other in (0.99, 1.01):
        assert widened(predictive, other * made.factor).log_prob(y).mean() < best
    assert predictive.log_prob(y).mean() < best


def test_a_law_without_that_shape_is_refused():
    with pytest.raises(ConfigError, match="a Poisson cannot be widened"):
        Variance()(Poisson(torch.ones(2)))


def test_what_cannot_be_calibrated():
    with pytest.raises(DataError, match=r"18 held-out rows cannot promise .* takes 19 or more"):
        Conformal().fit(*problem(18))
    Conformal().fit(*problem(19))
    with pytest.raises(DataError, match="no held-out rows"):
        Variance().fit(*problem(0))
    with pytest.raises(ConfigError, match=r"level=1\.0 must be between 0 and 1"):
        Conformal(1.0)
    two = Normal(torch.zeros(3, 2), torch.ones(3, 2))
    for law in (two, Independent(two, 1)):
        with pytest.raises(ConfigError, match="takes one output, and there are 2;"):
            Variance().fit(law, torch.zeros(3, 2))
    with pytest.raises(ConfigError, match="Variance is for regression targets, and these are bin"):
        Variance().require_task("binary")


@pytest.mark.parametrize("make", [Variance, Conformal])
def test_rows_predicted_without_error_leave_some_spread(make):
    """Such as those of a target that is constant."""
    predictive = Normal(torch.zeros(40), torch.ones(40))
    made = make()
    made.fit(predictive, torch.zeros(40))
    assert 0.0 < float(made(predictive).stddev[0]) < 1e-4
