"""Targets near the ends of the range of numbers: what works, and what says why it does not."""

import numpy as np
import pytest
import torch

import gpx
from gpx.data.target_transform import TargetTransform
from gpx.errors import ConfigError, DataError

QUICK = ("kernel=rbf", "trainer.max_steps=3", "trainer.baselines=false")


def data(rows=40):
    draws = np.random.default_rng(0)
    x = draws.uniform(-3.0, 3.0, (rows, 1))
    return x, np.sin(x[:, 0]) + 0.1 * draws.normal(size=rows)


def fit(x, y, *options, **choices):
    return gpx.fit(x, y, *QUICK, *options, keep=False, quiet=True, **choices)


@pytest.mark.parametrize("unit", [1e160, 1e-165, 1e300])
def test_box_cox_does_not_depend_on_the_unit(unit):
    """Powers of the targets themselves are infinite there, or all the same."""
    x, y = data()
    here, far = (
        fit(x, c * (y + 3.0), "approx=exact", "data.target_transform=boxcox") for c in (1.0, unit)
    )
    expected = here.predict(x[:3])
    found = far.predict(x[:3])
    np.testing.assert_allclose(found.lower / unit, expected.lower, rtol=1e-5)
    np.testing.assert_allclose(found.upper / unit, expected.upper, rtol=1e-5)


def test_a_box_cox_transform_of_earlier_versions_is_the_same():
    y = np.random.default_rng(1).gamma(3.0, 2.0, 200)
    made = TargetTransform.fitted("boxcox", y)
    state = made.state()
    assert TargetTransform.from_state(state) == made
    del state["log_unit"]
    old = TargetTransform.from_state({**state, "shift": 0.0, "scale": 1.0})
    at = torch.from_numpy(y)
    np.testing.assert_allclose(old(at), (y**made.power - 1.0) / made.power, rtol=1e-9)
    np.testing.assert_allclose(old.inverse(old(at)), y, rtol=1e-9)
    np.testing.assert_allclose(made.inverse(made(at)), y, rtol=1e-9)
    high, low = (made(at * (1.0 + step)) for step in (1e-6, -1e-6))
    np.testing.assert_allclose(made.log_slope(at).exp(), (high - low) / (2e-6 * at), rtol=1e-6)


def test_known_noise_of_targets_in_a_tiny_unit_is_divided_by_their_scale_twice():
    """The square of a scale of 1e-163 is zero: the noise was infinite, or no number."""
    x, y = data()
    here = fit(x, y, "approx=exact", noise=np.full(len(y), 0.01))
    far = fit(x, 1e-158 * y, "approx=exact", noise=np.full(len(y), 1e-318))
    np.testing.assert_allclose(
        far.predict(x[:3]).mean / 1e-158, here.predict(x[:3]).mean, rtol=1e-2
    )
    none = fit(x, 1e-165 * y, "approx=exact", noise=np.zeros(len(y)))
    assert np.isfinite(none.predict(x[:3]).mean).all()


@pytest.mark.parametrize("unit", [1e156, 1e-165])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_positive_targets_that_no_variance_can_be_given_of_are_told_so(unit, dtype):
    """They were said to be infinite, or zero, or had predictions near 1e130 at the most."""
    x, y = data()
    options = ("approx=svgp", "likelihood=gamma", f"trainer.dtype={dtype}")
    with pytest.raises(DataError, match=f"beyond the numbers of {dtype}: give them in another"):
        fit(x, unit * np.exp(y), *options)


@pytest.mark.parametrize("unit", [1e100, 1e-140])
def test_positive_targets_within_the_range_of_float64_have_predictions(unit):
    x, y = data()
    options = ("approx=svgp", "likelihood=gamma", "trainer.dtype=float64")
    here, far = (fit(x, c * np.exp(y), *options).predict(x[:3]) for c in (1.0, unit))
    np.testing.assert_allclose(far.mean / unit, here.mean, rtol=0.05)


@pytest.mark.parametrize("unit", [1e160, 1e-165])
def test_a_covariance_beyond_the_range_of_numbers_is_refused(unit):
    x, y = data()
    fitted = fit(x, unit * y, "approx=exact")
    assert np.isfinite(fitted.predict(x[:3]).std / unit).all()
    with pytest.raises(ConfigError, match="whose square is beyond the numbers of float64"):
        fitted.covariance(x[:3])
