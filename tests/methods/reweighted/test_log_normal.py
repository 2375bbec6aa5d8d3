"""Log-normal priors by mode and variance."""

import math

import pytest
import torch
from torch.distributions import LogNormal as Reference

from gpx.errors import ConfigError
from gpx.models import LogNormal


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
def test_mistakes_are_explained(mode, variance):
    with pytest.raises(ConfigError, match="needs a positive mode and variance"):
        LogNormal(mode, variance)
