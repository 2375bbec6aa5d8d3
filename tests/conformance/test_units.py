"""Positive targets in another unit: the same predictions in that unit, from every approximation."""

from pathlib import Path

import numpy as np
import pytest

import gpx
from gpx.errors import ConfigError, GPXError

CONFIGS = Path(gpx.__file__).parents[1] / "configs" / "approx"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
FAST = {
    "dkl": ["approx.pretrain_steps=20"],
    "svdkl": ["approx.pretrain_steps=20"],
    "gpdnn": ["approx.pretrain_steps=20"],
    "qsgp": ["approx.num_basis=1000"],
}
TAKEN = {
    *("auto", "laplace", "ep", "vgp", "svgp", "vnngp", "swsgp", "qsgp"),
    *("deep_rf", "deep_svgp", "dkl", "svdkl", "gpdnn"),
    *("cnn", "cnn_rf", "cnn_sorf", "cnn_mcd", "cnn_deep_rf"),
}
"""Methods that take a gamma likelihood, here of one input column."""
NEW = np.linspace(-2.5, 2.5, 9)[:, None]
UNIT = 2.0**-30


def targets(rows=60):
    draws = np.random.default_rng(0)
    x = draws.uniform(-3.0, 3.0, (rows, 1))
    return x, draws.gamma(4.0, np.exp(np.sin(2.0 * x[:, 0]) + 1.0) / 4.0)


def fit(name, unit):
    x, y = targets()
    quick = ("trainer.max_steps=5", "trainer.eval_every=0", "trainer.baselines=false")
    options = (f"approx={name}", "likelihood=gamma", *quick, *FAST.get(name, ()))
    fitted = gpx.fit(x, unit * y, *options, keep=False, quiet=True)
    return fitted, fitted.predict(NEW), fitted.latent(NEW)


@pytest.mark.parametrize("name", sorted(TAKEN))
@pytest.mark.filterwarnings("ignore")
def test_predictions_are_those_of_another_unit(name):
    """Those of QSGP were e^4.6 too large in a unit of a thousandth; networks stayed at exp(0)."""
    (base, first, own), (scaled, second, other) = fit(name, 1.0), fit(name, UNIT)
    np.testing.assert_allclose(second.mean / UNIT, first.mean, rtol=0.05)
    np.testing.assert_allclose(second.upper / UNIT, first.upper, rtol=0.08)
    np.testing.assert_allclose(other.mean, own.mean + np.log(UNIT), atol=0.05)
    change = scaled.metrics["train.evidence"] - base.metrics["train.evidence"]
    assert change == pytest.approx(-54 * np.log(UNIT), abs=1.0)  # of 60 rows, 6 are for tests


def test_the_methods_are_all_that_take_such_targets():
    """Others say in a sentence that they do not, before they train."""
    x, y = targets(20)
    for name in sorted(set(NAMES) - TAKEN):
        with pytest.raises(GPXError) as found:
            gpx.fit(x, y, f"approx={name}", "likelihood=gamma", keep=False, quiet=True)
        assert isinstance(found.value, ConfigError) or "target" in str(found.value), name
