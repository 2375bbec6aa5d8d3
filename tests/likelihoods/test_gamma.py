"""Positive targets: dense integrals, limits, the law of new targets, and what runs learn."""

import numpy as np
import pytest
import torch
from scipy import stats

import gpx
from gpx.errors import DataError
from gpx.kernels import RBF
from gpx.likelihoods import Gamma
from gpx.likelihoods.quantiles import cdf, central_interval
from gpx.means import Constant
from gpx.models import LaplaceGP
from gpx.objectives import LaplaceEvidence

LINE = torch.linspace(-12.0, 12.0, 24_001, dtype=torch.float64)
MASS = torch.exp(-0.5 * LINE.square()) / torch.exp(-0.5 * LINE.square()).sum()
MEAN = torch.tensor([-2.0, 0.3, 2.0, 5.0], dtype=torch.float64)
Y = torch.tensor([1e-3, 3.0, 2.0, 170.0], dtype=torch.float64)


def averaged(function, mean, variance):
    """E function(f), f ~ N(mean, variance), by the trapezoid rule: (n,)."""
    return MASS @ function(mean + variance.sqrt() * LINE[:, None])


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0, 1e6])
def test_the_law_is_the_gamma_distribution(shape):
    likelihood = Gamma(shape).double()
    mean = MEAN.exp().numpy()
    theirs = stats.gamma(shape, scale=mean / shape)
    np.testing.assert_allclose(theirs.var(), mean**2 / shape)
    y = torch.from_numpy(theirs.ppf(0.2))
    expected = torch.from_numpy(theirs.logpdf(y.numpy()))
    found = likelihood.log_prob(y, MEAN).detach()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_of_shape_one_it_is_the_exponential_law():
    expected = torch.distributions.Exponential((-MEAN).exp()).log_prob(Y)
    torch.testing.assert_close(Gamma(1.0).double().log_prob(Y, MEAN).detach(), expected)


def test_of_a_large_shape_it_is_the_lognormal_law():
    y = (MEAN + torch.tensor([0.003, -0.01, 0.0, 0.02])).exp()
    expected = torch.distributions.LogNormal(MEAN, 1e-2).log_prob(y)
    found = Gamma(1e4).double().log_prob(y, MEAN).detach()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("deviation", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("shape", [0.3, 4.0])
def test_the_expectation_is_exact(shape, deviation):
    likelihood = Gamma(shape).double()
    variance = torch.full_like(MEAN, deviation**2)
    with torch.no_grad():
        expected = averaged(lambda f: likelihood.log_prob(Y, f), MEAN, variance)
        found = likelihood.expected_log_prob(Y, MEAN, variance)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_single_precision_keeps_its_digits_of_a_large_shape():
    """shape log(shape) and its kin are a million nats each."""
    exact, single = Gamma(1e5).double(), Gamma(1e5)
    y = (MEAN + torch.tensor([0.003, -0.001, 0.0, 0.002])).exp().float()
    mean = MEAN.float()
    with torch.no_grad():
        expected = exact.log_prob(y.double(), mean.double())
        found = single.log_prob(y, mean)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("shape", [0.5, 20.0, 1e4])
@pytest.mark.parametrize(
    ("variance", "allowed"), [(0.01, 0.03), (1.0, 0.03), (2.0, 0.03), (4.0, 0.2)]
)
def test_the_density_of_new_targets_has_no_separate_peaks(shape, variance, allowed):
    """Of a shape of 10^4 twenty components a hundredth wide would be a comb."""
    likelihood = Gamma(shape).double()
    mean = torch.tensor(1.3, dtype=torch.float64)
    spread = torch.tensor(variance, dtype=torch.float64)
    y = (mean + spread.sqrt() * torch.linspace(-2.0, 2.0, 81, dtype=torch.float64)).exp()
    with torch.no_grad():
        law = likelihood.predictive(mean.expand_as(y), spread.expand_as(y))
        f = mean + spread.sqrt() * LINE[:, None]
        densities = likelihood.log_prob(y, f)
        expected = torch.logsumexp(MASS.log()[:, None] + densities, 0)
        assert float((law.log_prob(y) - expected).abs().max()) <= 1e-6
        assert float((law.mixture.log_prob(y) - expected).abs().max()) <= allowed
        torch.testing.assert_close(law.mean[0], (mean + 0.5 * spread).exp(), rtol=1e-3, atol=0)
        second = (1.0 + 1.0 / shape) * (2.0 * mean + 2.0 * spread).exp()
        square = law.variance[0] + law.mean[0].square()
        torch.testing.assert_close(square, second, rtol=2e-2, atol=0)


def test_rows_of_both_kinds_are_those_of_their_own_laws():
    """One wide row sends all through the branch with the even grid."""
    likelihood = Gamma(50.0).double()
    mean, spread = MEAN[:2], torch.tensor([1e-3, 3.0], dtype=torch.float64)
    y = torch.tensor([0.14, 2.0], dtype=torch.float64)
    with torch.no_grad():
        both = likelihood.predictive(mean, spread)
        for row in range(2):
            alone = likelihood.predictive(mean[row : row + 1], spread[row : row + 1])
            torch.testing.assert_close(both.log_prob(y)[row], alone.log_prob(y[row])[0])
            torch.testing.assert_close(cdf(both, y)[row], cdf(alone, y[row])[0])


def test_intervals_contain_what_they_say():
    likelihood = Gamma(0.7).double()
    with torch.no_grad():
        law = likelihood.predictive(MEAN, torch.full_like(MEAN, 0.3))
        low, high = central_interval(law, 0.9)
        torch.testing.assert_close(cdf(law, low), torch.full_like(MEAN, 0.05))
        torch.testing.assert_close(cdf(law, high), torch.full_like(MEAN, 0.95))
    assert (low > 0.0).all()


def times(num, shape, seed=0):
    """Inputs (n, 1), targets (n,) of a smooth function, and the function (n,)."""
    random = np.random.default_rng(seed)
    x = random.uniform(-3.0, 3.0, (num, 1))
    f = 1.5 * np.sin(2.0 * x[:, 0]) + 2.0
    return x, random.gamma(shape, np.exp(f) / shape), f


def fit(x, y, *options, **choices):
    """Without baselines, of which no test speaks."""
    quick = ("trainer.baselines=false", *options)
    return gpx.fit(x, y, *quick, likelihood="gamma", keep=False, quiet=True, **choices)


@pytest.mark.parametrize("approx", ["laplace", "ep", "svgp"])
def test_runs_learn_the_shape_and_the_function(approx):
    x, y, _ = times(300, 4.0)
    new, _, f = times(100, 4.0, seed=1)
    options = ("approx.num_inducing=30", "trainer.max_steps=300") if approx == "svgp" else ()
    fitted = fit(x, y, f"approx={approx}", *options)
    assert 3.0 < fitted.hyperparameters["likelihood.shape"] < 5.3
    latent = fitted.latent(new)
    assert np.sqrt(np.mean((latent.mean - f) ** 2)) < 0.15
    predicted = fitted.predict(new)
    np.testing.assert_allclose(predicted.mean, np.exp(f), rtol=0.5)
    assert (predicted.lower > 0.0).all()


@pytest.mark.parametrize("unit", [1.0, 1e9])
@pytest.mark.parametrize("approx", ["vnngp", "swsgp"])
def test_nearest_neighbours_find_the_function_in_any_unit(approx, unit):
    """From a prior mean of zero and a shape of one both end far from it, and differ by the unit."""
    x, y, _ = times(300, 4.0)
    new, _, f = times(100, 4.0, seed=1)
    options = (f"approx={approx}", "approx.num_neighbours=20", "trainer.max_steps=60")
    fitted = fit(x, unit * y, *options)
    assert 2.5 < fitted.hyperparameters["likelihood.shape"] < 6.5
    found = fitted.latent(new).mean - np.log(unit)
    assert np.sqrt(np.mean((found - f) ** 2)) < 0.2


def test_few_rows_have_laplaces_approximation_by_default():
    x, y, _ = times(60, 4.0)
    fitted = fit(x, y, "kernel=rbf", "trainer.max_steps=5")
    assert fitted.metrics["model.choice"].startswith("approx=laplace")


def test_a_fixed_shape_is_the_exponential_likelihood():
    x, y, _ = times(60, 1.0)
    fitted = fit(x, y, "approx=laplace", fixed=["likelihood.shape"])
    assert fitted.hyperparameters["likelihood.shape"] == pytest.approx(1.0)


def test_missing_inputs_are_averaged_over():
    x, y, _ = times(120, 4.0)
    x = np.hstack([x, np.random.default_rng(2).normal(size=x.shape)])
    x[:60:2, 1] = np.nan
    options = ("approx=laplace", "data.missing=mean")
    fitted = fit(x, y, *options)
    predicted = fitted.predict([[0.5, np.nan]])
    assert 0.0 < float(predicted.lower[0]) < float(predicted.mean[0])


def test_targets_that_are_not_positive_are_refused():
    x, y, _ = times(30, 4.0)
    y[3] = 0.0
    with pytest.raises(DataError, match="expected a number above 0"):
        fit(x, y, "approx=laplace")
    model = LaplaceGP(kernel=RBF(), mean=Constant(), likelihood=Gamma()).double()
    with pytest.raises(
        DataError, match=r"the first is 0 in row 3: it takes finite numbers above 0"
    ):
        LaplaceEvidence().evidence(model, torch.from_numpy(x), torch.from_numpy(y))
