"""Noise that varies: dense integrals over both functions, its limit, and data that have it."""

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian, Heteroscedastic
from gpx.likelihoods.quantiles import cdf, quantile

LINE = torch.linspace(-11.0, 11.0, 1_101, dtype=torch.float64)
MASS = torch.exp(-0.5 * LINE.square()) / torch.exp(-0.5 * LINE.square()).sum()
Y = torch.tensor([-1.0, 0.3, 4.0], dtype=torch.float64)
MEAN = torch.tensor([[0.2, -1.0], [0.1, 0.5], [0.5, 0.0]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.1, 0.4], [0.5, 0.02], [0.3, 1.0]], dtype=torch.float64)


def test_the_expectation_is_the_integral_over_both_functions():
    likelihood = Heteroscedastic(0.3, 0.7).double()
    f = MEAN[:, 0, None, None] + VARIANCE[:, 0, None, None].sqrt() * LINE[:, None]
    g = MEAN[:, 1, None, None] + VARIANCE[:, 1, None, None].sqrt() * LINE
    both = torch.stack(torch.broadcast_tensors(f, g), -1)
    with torch.no_grad():
        dense = likelihood.log_prob(Y[:, None, None], both)
        expected = torch.einsum("nfg,f,g->n", dense, MASS, MASS)
        found = likelihood.expected_log_prob(Y, MEAN, VARIANCE)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_predictive_law_is_the_scale_mixture():
    """Its variance v + s^2 exp(k m + k^2 w / 2) is exact, its density that of the integral over g,
    its quantiles those of its distribution function."""
    likelihood = Heteroscedastic(0.3, 0.7, num_nodes=30).double()
    with torch.no_grad():
        law = likelihood.predictive(MEAN, VARIANCE)
        noise = 0.3 * (0.7 * MEAN[:, 1] + 0.5 * 0.49 * VARIANCE[:, 1]).exp()
        torch.testing.assert_close(law.mean, MEAN[:, 0])
        torch.testing.assert_close(law.variance, VARIANCE[:, 0] + noise, rtol=1e-7, atol=0)
        g = MEAN[:, 1] + VARIANCE[:, 1].sqrt() * LINE[:, None]
        width = (VARIANCE[:, 0] + 0.3 * (0.7 * g).exp()).sqrt()
        dense = MASS @ torch.distributions.Normal(MEAN[:, 0], width).log_prob(Y).exp()
        torch.testing.assert_close(law.log_prob(Y).exp(), dense, rtol=1e-5, atol=0)
        at = quantile(law, 0.975)
        torch.testing.assert_close(cdf(law, at), torch.full((3,), 0.975).double())
        normal = torch.distributions.Normal(law.mean, law.stddev)
        assert (
            law.log_prob(law.mean + 6.0 * law.stddev) > normal.log_prob(law.mean + 6.0 * law.stddev)
        ).all()


def test_without_spread_it_is_gaussian_noise():
    varying, constant = Heteroscedastic(0.3, 2e-6).double(), Gaussian(0.3).double()
    f, v = MEAN[:, 0], VARIANCE[:, 0]
    with torch.no_grad():
        for found, expected in (
            (varying.log_prob(Y, MEAN), constant.log_prob(Y, f)),
            (varying.expected_log_prob(Y, MEAN, VARIANCE), constant.expected_log_prob(Y, f, v)),
            (
                varying.predictive(MEAN, VARIANCE).log_prob(Y),
                constant.predictive(f, v).log_prob(Y),
            ),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_its_start_and_its_function_are_those_of_constant_noise():
    likelihood = Heteroscedastic(0.3, 0.7).double()
    assert float(likelihood.output(0).noise_variance) == pytest.approx(0.3, rel=1e-5)
    mean, variance = likelihood.outputs(MEAN, VARIANCE)
    assert torch.equal(mean, MEAN[:, 0])
    assert torch.equal(variance, VARIANCE[:, 0])
    likelihood.start_at(0.05)
    assert float(likelihood.noise_variance) == pytest.approx(0.05, rel=1e-5)
    likelihood.start_at(0.0)
    assert 0.0 < float(likelihood.noise_variance) < 1e-5


def noisy_curve(rows, seed=0):
    """sin 2 x in the unit of 10, with noise of deviation exp(x - 1.5)."""
    draws = np.random.default_rng(seed)
    x = draws.uniform(-2.0, 2.0, (rows, 1))
    noise = np.exp(x[:, 0] - 1.5)
    return x, 10.0 * (np.sin(2.0 * x[:, 0]) + noise * draws.normal(size=rows))


def test_it_predicts_better_than_any_constant_noise_where_noise_varies():
    """Of one variance v, its mean (e - e^-7) / 8 at best, nobody is below log(2 pi e v) / 2 on
    average over test rows, who knows the function or not; the truth is 0.96 below that."""
    (x, y), test = noisy_curve(150), noisy_curve(200, seed=1)
    varying = gpx.fit(
        *(x, y, "approx=svgp", "approx.num_inducing=8", "kernel=rbf", "likelihood=heteroscedastic"),
        *(
            "init=constants",
            "optimizer=svgp_natural",
            "optimizer.groups.variational.lr=0.5",
            "optimizer.settled=null",
        ),
        *("trainer.max_steps=40", "trainer.eval_every=0", "trainer.baselines=false"),
        **{"test": test, "quiet": True, "keep": False},
    )
    constant = 0.5 * np.log(2.0 * np.pi * np.e * 100.0 * (np.exp(1.0) - np.exp(-7.0)) / 8.0)
    assert varying.metrics["test.mnlp_original"] < constant - 0.4
    # of 200 intervals of 95 % fewer than 177 hold their target once in 10 000 runs
    assert varying.metrics["test.coverage_95"] > 0.88
    where = np.array([[-1.5], [1.5]])
    spread, known = varying.predict(where), varying.latent(where)
    assert spread.std[1] > 4.0 * spread.std[0]
    assert known.mean.shape == (2,)
    assert known.mean == pytest.approx(spread.mean)
    assert (known.std < spread.std).all()
    assert varying.sample(where, 3).shape == (3, 2)
    drawn = varying.sample(where, 400, targets=True).std(0)
    assert drawn == pytest.approx(spread.std, rel=0.25)


def test_methods_of_one_function_refuse_it_in_a_sentence():
    x, y = noisy_curve(30)
    for method in ("vnngp", "swsgp", "qsgp"):
        options = [f"approx={method}", "kernel=rbf", "likelihood=heteroscedastic"]
        with pytest.raises(ConfigError, match="one latent function, got Heteroscedastic with 2"):
            gpx.fit(x, y, *options, quiet=True, keep=False)
