"""Kernels of the inputs on features of another number: rebuilt for these, or refused at once."""

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError
from gpx.kernels import RBF, SpectralMixture
from gpx.kernels.for_inputs import resized


def data():
    draws = np.random.default_rng(0)
    x = draws.uniform(-3.0, 3.0, (30, 3))
    return x, np.sin(x[:, 0]) + 0.1 * draws.normal(size=30)


def fit(kernel, *options):
    quick = ("trainer.max_steps=2", "trainer.baselines=false", "approx.pretrain_steps=2")
    x, y = data()
    fitted = gpx.fit(
        x, y, "approx=dkl", f"kernel={kernel}", *quick, *options, keep=False, quiet=True
    )
    return fitted.predict(x[:2])


@pytest.mark.parametrize("kernel", ["spectral_mixture", "spectral_mixture + rbf"])
def test_mixtures_are_rebuilt_for_the_features(kernel):
    """They were refused after the network had been trained, with advice on the data's columns."""
    assert np.isfinite(fit(kernel).mean).all()


@pytest.mark.parametrize("kernel", ["warped", "change_points"])
def test_others_that_keep_their_width_are_refused_with_what_to_do(kernel):
    with pytest.raises(ConfigError, match=r"of the 8 features of a layer.*keeps its width; make"):
        fit(kernel)
    assert np.isfinite(fit(kernel, "approx.num_features=3").mean).all()


def test_periods_are_refused_with_what_to_take_instead():
    with pytest.raises(ConfigError, match="a period for each of its 3 inputs, and here it gets 8"):
        fit("periodic")


def test_a_mixture_has_the_means_of_its_frequencies_and_widths():
    kernel = SpectralMixture(2, 2, weight=[0.3, 0.5], frequency=[[0.1, 0.3], [1.0, 2.0]], scale=0.2)
    made = resized(kernel.double(), 3)
    want = torch.tensor([[0.2] * 3, [1.5] * 3]).double()
    torch.testing.assert_close(made.frequency.detach(), want)
    torch.testing.assert_close(made.weight.detach(), kernel.weight.detach())
    x = torch.randn(5, 3, dtype=torch.float64)
    assert made.evaluate(x, x).shape == (5, 5)
    torch.testing.assert_close(made.diagonal(x).detach(), torch.full((5,), 0.8).double())
    assert kernel.num_inputs == 2  # the original stays
    both, few = kernel + RBF().double(), x[:, :2]
    torch.testing.assert_close(resized(both, 2).evaluate(few, few), both.evaluate(few, few))
