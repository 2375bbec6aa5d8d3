"""Shares: dense integrals, tails, quantiles within 0 and 1, and runs on a curve of shares."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri

import gpx
from gpx.errors import ConfigError, DataError
from gpx.likelihoods import Beta
from gpx.likelihoods.quantiles import cdf, quantile
from gpx.metrics import crps

LINE = torch.linspace(-12.0, 12.0, 24_001, dtype=torch.float64)
MASS = torch.exp(-0.5 * LINE.square()) / torch.exp(-0.5 * LINE.square()).sum()
MEAN = torch.tensor([-1.5, 0.2, 1.0, 3.0], dtype=torch.float64)
Y = torch.tensor([0.1, 0.7, 0.6, 0.98], dtype=torch.float64)
LINKS = {"logit": stats.logistic.cdf, "probit": stats.norm.cdf}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("precision", [0.7, 12.0, 900.0])
def test_the_law_is_the_beta_of_that_mean_and_precision(link, precision):
    likelihood = Beta(precision, link).double()
    m = LINKS[link](MEAN.numpy())
    theirs = stats.beta(precision * m, precision * (1.0 - m))
    np.testing.assert_allclose(theirs.var(), m * (1.0 - m) / (1.0 + precision), rtol=1e-9)
    found = likelihood.log_prob(Y, MEAN).detach().numpy()
    np.testing.assert_allclose(found, theirs.logpdf(Y.numpy()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("link", LINKS)
def test_far_means_leave_finite_densities_and_gradients(link):
    """Where the mean is 0 or 1 to rounding: log p falls like the logarithm of the mean."""
    likelihood = Beta(5.0, link).double()
    f = torch.tensor([-60.0, -60.0, 60.0, 60.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.2, 0.9, 0.2, 0.9], dtype=torch.float64)
    found = likelihood.log_prob(y, f)
    (slope,) = torch.autograd.grad(found.sum(), f)
    assert found.isfinite().all()
    if link == "logit":
        torch.testing.assert_close(slope, -f.sign().detach(), rtol=1e-12, atol=0)
    single = likelihood.float().log_prob(y.float(), f.detach().float()).detach()
    torch.testing.assert_close(single.double(), found.detach(), rtol=1e-5, atol=0)


def test_shares_that_single_precision_rounds_to_0_and_1_have_densities():
    """They count as the nearest number of float32 between the two."""
    y = torch.tensor([1e-46, 1.0 - 1e-9], dtype=torch.float64).float()
    assert y.tolist() == [0.0, 1.0]
    f = torch.zeros(2, requires_grad=True)
    found = Beta(5.0).log_prob(y, f)
    (slope,) = torch.autograd.grad(found.sum(), f)
    assert slope.isfinite().all()
    expected = stats.beta(2.5, 2.5).logpdf([2.0**-126, 1.0 - 2.0**-24])
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("precision", [2.0, 50.0])
@pytest.mark.parametrize("deviation", [0.1, 0.7, 1.2])
def test_expectations_and_predictions_against_dense_integrals(link, precision, deviation):
    likelihood = Beta(precision, link).double()
    variance = torch.full_like(MEAN, deviation**2)
    with torch.no_grad():
        f = MEAN + deviation * LINE[:, None]
        dense = likelihood.log_prob(Y, f)
        found = likelihood.expected_log_prob(Y, MEAN, variance)
        # the probit link bends more; errors grow with the precision
        torch.testing.assert_close(found, MASS @ dense, rtol=1e-4, atol=1e-4)
        law = likelihood.predictive(MEAN, variance)
        wide = precision * deviation**2 > (30.0 if link == "logit" else 10.0)
        error = 5e-3 if wide else 2e-4
        torch.testing.assert_close(law.log_prob(Y), (MASS @ dense.exp()).log(), rtol=0, atol=error)
        m = torch.from_numpy(LINKS[link](f.numpy()))
        mean = MASS @ m
        spread = MASS @ (m * (1.0 - m) / (1.0 + precision) + (m - mean).square())
        torch.testing.assert_close(law.mean, mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(law.variance, spread, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("precision", [60.0, 900.0, 1e5])
def test_precise_shares_of_an_uncertain_mean_have_a_smooth_density(link, precision):
    """And not the separate peaks of 60 components, between which it was up to 8 nats lower."""
    likelihood = Beta(precision, link).double()
    mean = torch.tensor([1.2, -0.3, 1.2, -0.3]).double().requires_grad_()
    variance = torch.tensor([6.5, 2.0, 0.3, 0.01]).double()
    law = likelihood.predictive(mean, variance)
    with torch.no_grad():
        f = mean + variance.sqrt() * LINE[:, None]
        m = torch.from_numpy(LINKS[link](f.numpy()))
        for q in (0.1, 0.3, 0.52, 0.7, 0.9):
            y = torch.from_numpy(LINKS[link]((mean + variance.sqrt() * ndtri(q)).numpy()))
            dense = likelihood.log_prob(y, f)
            want = (MASS.log()[:, None] + dense).logsumexp(0)
            torch.testing.assert_close(law.log_prob(y), want, rtol=0, atol=0.08)
        want = MASS @ m
        torch.testing.assert_close(law.mean, want, rtol=0, atol=1e-4)
        spread = MASS @ (m * (1.0 - m) / (1.0 + precision) + (m - want).square())
        torch.testing.assert_close(law.variance, spread, rtol=1e-3, atol=0)
    (slope,) = torch.autograd.grad(law.log_prob(y).sum(), mean)
    assert slope.isfinite().all()
    for far in (-60.0, 60.0):
        at = torch.full((1,), far, dtype=torch.float64, requires_grad=True)
        value = likelihood.predictive(at, variance[:1]).log_prob(y[:1]).sum()
        (slope,) = torch.autograd.grad(value, at)
        assert slope.isfinite().all()


def test_quantiles_stay_within_0_and_1():
    """Of laws so skewed that normal guesses and Chebyshev's brackets leave the interval."""
    likelihood = Beta(3.0).double()
    mean = torch.tensor([-6.0, -2.0, 0.0, 7.0]).double()
    with torch.no_grad():
        law = likelihood.predictive(mean, torch.full_like(mean, 0.3))
        for q in (0.025, 0.5, 0.975):
            at = quantile(law, q)
            assert ((at >= 0.0) & (at <= 1.0)).all()
            around = 1e-9 * law.stddev
            assert ((cdf(law, at - around) <= q) & (cdf(law, at + around) >= q)).all()
            torch.testing.assert_close(cdf(law, at)[1:3], torch.full((2,), q).double())
        outside = torch.tensor([-0.5, 0.0, 1.0, 2.0]).double()
        assert cdf(law, outside).tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0])
        y = torch.tensor([0.01, 0.3, 0.4, 0.97]).double()
        line = torch.linspace(0.0, 1.0, 4_001).double()[:, None]
        below = cdf(law, line[1:] - 1.25e-4)
        dense = (below - (line[1:] - 1.25e-4 >= y).double()).square().mean(0)
        torch.testing.assert_close(crps(law, y), dense, rtol=1e-2, atol=3e-4)


def shares(rows, precision=20.0, seed=0):
    """Inputs, and shares of mean sigmoid(1.5 sin 2 x)."""
    draws = np.random.default_rng(seed)
    x = draws.uniform(-2.0, 2.0, (rows, 1))
    m = 1.0 / (1.0 + np.exp(-1.5 * np.sin(2.0 * x[:, 0])))
    return x, draws.beta(precision * m, precision * (1.0 - m))


def test_runs_learn_the_precision_and_predict_shares():
    x, y = shares(140)
    fitted = gpx.fit(
        *(x[:100], y[:100], "approx=svgp", "approx.num_inducing=8", "kernel=rbf"),
        *("likelihood=beta", "optimizer=svgp_natural", "trainer.max_steps=60"),
        *("optimizer.settled=null", "trainer.baselines=false"),
        **{"test": (x[100:], y[100:]), "quiet": True, "keep": False},
    )
    assert 10.0 < float(fitted.model.hyperparameters["likelihood.precision"]) < 35.0
    predicted = fitted.predict(x[100:])
    assert ((predicted.lower > 0.0) & (predicted.upper < 1.0)).all()
    # of 40 intervals of 95 % fewer than 33 hold their target once in 2 000 runs
    assert fitted.metrics["test.coverage_95"] > 0.8
    assert fitted.metrics["test.msll"] < -0.3
    drawn = fitted.sample(x[:5], 20, targets=True)
    assert ((drawn > 0.0) & (drawn < 1.0)).all()


@pytest.mark.parametrize("wrong", [0.0, 1.0, 1.4, -0.2])
def test_other_targets_are_refused_in_a_sentence(wrong):
    x, y = shares(20)
    y[3] = wrong
    with pytest.raises(
        DataError, match=f"found {wrong:g} .*expected a proportion above 0 and below 1"
    ):
        gpx.fit(x, y, "approx=svgp", "likelihood=beta", quiet=True, keep=False)


def test_links_and_precisions_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="expected one of logit, probit"):
        Beta(link="cauchit")
    with pytest.raises(ConfigError, match="precision was set to -1; it must be above its floor"):
        Beta(-1.0)
