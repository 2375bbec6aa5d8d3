"""Overdispersed counts: dense integrals, the two limits, and what runs learn of the dispersion."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import gpx
from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF
from gpx.likelihoods import NegativeBinomial, Poisson
from gpx.likelihoods.quantiles import cdf, central_interval
from gpx.means import Constant
from gpx.metrics.ranked_probability import crps
from gpx.models import SVGP, LaplaceGP
from gpx.objectives import SVGPELBO, LaplaceEvidence
from gpx.training.first_order import FirstOrder

LINE = torch.linspace(-12.0, 12.0, 24_001, dtype=torch.float64)
MASS = torch.exp(-0.5 * LINE.square()) / torch.exp(-0.5 * LINE.square()).sum()
MEAN = torch.tensor([-2.0, 0.3, 2.0, 5.0], dtype=torch.float64)
Y = torch.tensor([0.0, 3.0, 2.0, 170.0], dtype=torch.float64)


def averaged(function, mean, variance):
    """E function(f), f ~ N(mean, variance), by the trapezoid rule: (n,)."""
    return MASS @ function(mean + variance.sqrt() * LINE[:, None])


@pytest.mark.parametrize("dispersion", [1e-4, 0.3, 4.0])
def test_the_law_is_the_negative_binomial(dispersion):
    likelihood = NegativeBinomial(dispersion).double()
    mean = MEAN.exp().numpy()
    r = 1.0 / dispersion
    theirs = stats.nbinom(r, r / (r + mean))
    np.testing.assert_allclose(theirs.var(), mean + dispersion * mean**2, rtol=1e-9)
    expected = torch.from_numpy(theirs.logpmf(Y.numpy()))
    torch.testing.assert_close(likelihood.log_prob(Y, MEAN).detach(), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("deviation", [0.1, 1.0, 1.99, 2.01, 5.0])
@pytest.mark.parametrize("dispersion", [1e-3, 0.3, 4.0])
def test_expectations_are_within_the_stated_error(dispersion, deviation):
    likelihood = NegativeBinomial(dispersion).double()
    variance = torch.full_like(MEAN, deviation**2)
    with torch.no_grad():
        expected = averaged(lambda f: likelihood.log_prob(Y, f), MEAN, variance)
        found = likelihood.expected_log_prob(Y, MEAN, variance)
    allowed = 1.2e-5 if deviation > 1.0 else 1e-10
    assert ((found - expected).abs() <= allowed * (Y + 1.0 / dispersion) + 1e-10).all()


def test_without_dispersion_it_is_the_poisson_likelihood():
    few, poisson = NegativeBinomial(1.1e-6).double(), Poisson().double()
    variance = torch.full_like(MEAN, 0.2)
    arguments = Y, MEAN, variance
    with torch.no_grad():
        for found, expected in (
            (few.log_prob(Y, MEAN), poisson.log_prob(Y, MEAN)),
            (few.expected_log_prob(*arguments), poisson.expected_log_prob(*arguments)),
            (few.curvature(Y, MEAN).information, poisson.curvature(Y, MEAN).information),
        ):
            torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


def test_single_precision_keeps_its_digits_where_there_is_next_to_no_dispersion():
    """In float32 lgamma of a million is known to one unit only."""
    exact, single = NegativeBinomial(1.1e-6).double(), NegativeBinomial(1.1e-6)
    with torch.no_grad():
        expected = exact.log_prob(Y, MEAN)
        found = single.log_prob(Y.float(), MEAN.float())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3)
        law = single.predictive(MEAN.float(), torch.zeros(4))
        torch.testing.assert_close(law.log_prob(Y), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("dispersion", [2e-6, 0.5, 20.0])
def test_single_precision_keeps_its_digits_at_counts_of_a_million(dispersion):
    """y f is 1.4e7 nats there, and what is left of it a few."""
    exact, single = NegativeBinomial(dispersion).double(), NegativeBinomial(dispersion)
    y = torch.full((4,), 1e6, dtype=torch.float64)
    mean, variance = torch.tensor([[13.0, 13.5, 13.8155, 16.0], [0.0, 0.01, 1e-6, 1.0]])
    with torch.no_grad():
        for ask, given in (("log_prob", (mean,)), ("expected_log_prob", (mean, variance))):
            expected = getattr(exact, ask)(y, *(part.double() for part in given))
            found = getattr(single, ask)(y.float(), *given).double()
            torch.testing.assert_close(found, expected, rtol=2e-7, atol=1e-4)


def test_predictive_laws_have_the_moments_of_the_mixture():
    """Mean m = exp(mu + v / 2), variance m + (1 + d) E exp(2 f) - m^2; probabilities add to one."""
    likelihood = NegativeBinomial(0.4).double()
    mean, variance = torch.tensor([0.3, 1.0]).double(), torch.tensor([0.4, 0.05]).double()
    with torch.no_grad():
        law = likelihood.predictive(mean, variance)
        m = (mean + 0.5 * variance).exp()
        torch.testing.assert_close(law.mean, m, rtol=1e-9, atol=0)
        second = (2.0 * mean + 2.0 * variance).exp()
        spread = m + 1.4 * second - m.square()
        torch.testing.assert_close(law.variance, spread, rtol=1e-6, atol=0)
        counts = torch.arange(4_000, dtype=torch.float64)[:, None]
        total = law.log_prob(counts.expand(-1, 2)).exp().sum(0)
        torch.testing.assert_close(total, torch.ones(2).double(), rtol=0, atol=1e-8)


def dense_law(likelihood, y, mean, variance, every=1):
    """log E p(y | f) by quadrature on a dense line, for y (k,) and one f."""
    with torch.no_grad():
        each = likelihood.log_prob(y, mean + math.sqrt(variance) * LINE[::every, None])
        return (MASS[::every].log()[:, None] + each).logsumexp(0) + math.log(every)


@pytest.mark.parametrize("dispersion", [0.0, 0.01])
@pytest.mark.parametrize(
    ("mean", "variance", "allowed"),
    [(math.log(1000.0), 0.25, 0.01), (10.0, 0.09, 0.01), (7.0, 1.0, 0.02), (5.0, 4.0, 0.05)],
)
def test_large_counts_have_a_smooth_density(dispersion, mean, variance, allowed):
    """And not the separate peaks of 20 components."""
    likelihood = NegativeBinomial(dispersion).double() if dispersion else Poisson().double()
    y = (mean + math.sqrt(variance) * torch.linspace(-3.0, 3.0, 121).double()).exp().round()
    law = likelihood.predictive(*torch.tensor([[mean], [variance]], dtype=torch.float64))
    expected = dense_law(likelihood, y, mean, variance)
    for density, within in ((law, 1e-6), (law.mixture, allowed)):
        found = density.log_prob(y[:, None]).detach()[:, 0]
        torch.testing.assert_close(found, expected, rtol=0, atol=within)
    m = math.exp(mean + 0.5 * variance)
    assert law.mean.item() == pytest.approx(m, rel=1e-9)
    spread = m + m**2 * ((1.0 + dispersion) * math.exp(variance) - 1.0)
    assert law.variance.item() == pytest.approx(spread, rel=2e-5)


def test_intervals_of_large_counts_hold_what_they_say():
    mean, variance = math.log(1000.0), 0.25
    likelihood, counts = Poisson().double(), torch.arange(6_000).double()
    exact = dense_law(likelihood, counts, mean, variance, every=20).exp().cumsum(0)
    law = likelihood.predictive(*torch.tensor([[mean], [variance]], dtype=torch.float64))
    found = cdf(law, counts[:, None])[:, 0]
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-3)
    for level in (0.5, 0.95):
        low, high = (int(end) for end in central_interval(law, level))
        assert float(exact[high] - exact[low]) == pytest.approx(level, abs=2e-3)
    y = torch.tensor([700.0]).double()
    want = (exact - (counts >= y).double()).square().sum()
    assert crps(law, y).item() == pytest.approx(float(want), rel=1e-3)


def test_rows_of_certain_counts_beside_uncertain_ones_and_their_gradients():
    """A row without variance has the law of its counts, also on the grid of the others."""
    mean = torch.tensor([7.0, 7.0, 1.0]).double().requires_grad_()
    variance = torch.tensor([0.0, 0.5, 0.0]).double().requires_grad_()
    y = torch.tensor([1100.0, 900.0, 2.0]).double()
    found = Poisson().double().predictive(mean, variance).log_prob(y)
    expected = Poisson().double().log_prob(y, mean)
    torch.testing.assert_close(found[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-8)
    slopes = torch.autograd.grad(found.sum(), (mean, variance))
    assert all(slope.isfinite().all() for slope in slopes)
    torch.testing.assert_close(slopes[0][[0, 2]], (y - mean.exp())[[0, 2]], rtol=1e-8, atol=1e-8)


def test_curvature_is_the_derivative_of_the_log_density():
    likelihood, f = NegativeBinomial(0.4).double(), MEAN.clone().requires_grad_()
    (first,) = torch.autograd.grad(likelihood.log_prob(Y, f).sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), f)
    found = likelihood.curvature(Y, f)
    torch.testing.assert_close(found.gradient, first)
    torch.testing.assert_close(found.information, -second)


def counts_of_a_curve(dispersion, rows):
    """Inputs and counts about exp(1.5 + sin 2 x), gamma-mixed."""
    draws = np.random.default_rng(0)
    x = draws.uniform(-2.0, 2.0, (rows, 1))
    rate = np.exp(1.5 + np.sin(2.0 * x[:, 0]))
    return x, draws.poisson(rate * draws.gamma(1.0 / dispersion, dispersion, rows)).astype(float)


def test_runs_learn_the_dispersion_and_predict_better_for_it():
    x, y = counts_of_a_curve(0.5, rows=140)
    held, score, evidence = slice(100, None), {}, {}
    for name in ("poisson", "negative_binomial"):
        fitted = gpx.fit(
            *(x[:100], y[:100], "approx=laplace", "kernel=rbf", f"likelihood={name}"),
            *("trainer.max_steps=8", "trainer.baselines=false"),
            **{"test": (x[held], y[held]), "quiet": True, "keep": False},
        )
        score[name] = fitted.metrics["test.mnlp"]
        evidence[name] = fitted.metrics["train.evidence"]
    predicted = fitted.predict(x[held])
    assert (predicted.lower >= 0.0).all()
    assert (predicted.upper == predicted.upper.round()).all()
    assert 0.25 < float(fitted.model.hyperparameters["likelihood.dispersion"]) < 1.0
    # of 40 intervals of 95 % fewer than 33 hold their target once in 2 000 runs
    assert fitted.metrics["test.coverage_95"] > 0.8
    assert score["negative_binomial"] < score["poisson"] - 0.05
    assert evidence["negative_binomial"] > evidence["poisson"] + 5.0


def test_natural_steps_reach_the_bound_that_adam_is_far_from():
    """40 steps of q(u) alone; the bound is below Laplace's evidence, which is near the true one."""
    x, y = (torch.from_numpy(part) for part in counts_of_a_curve(0.5, rows=120))
    reached = {}
    for algorithm, rate in (("natural", 0.5), ("adam", 0.01)):
        parts = RBF(lengthscale=0.7), Constant(), NegativeBinomial(0.5)
        kernel, mean, likelihood = parts
        model = SVGP(
            **{"kernel": kernel, "mean": mean, "likelihood": likelihood},
            **{"num_inputs": 1, "num_inducing": 15},
        ).double()
        model.place(torch.linspace(-2.0, 2.0, 15).double()[:, None])
        rates = {"variational": rate, "inducing": 0.0, "hyperparameters": 0.0}
        optimizer = FirstOrder(
            {
                role: {"algorithm": algorithm if of_role else "sgd", "lr": of_role}
                for role, of_role in rates.items()
            }
        )
        objective = SVGPELBO(120)
        optimizer.bind(model.parameter_groups(), 40, model, 120)
        for step in range(40):
            optimizer.before_step(step)
            objective.loss(objective.evidence(model, x, y), model, x).backward()
            optimizer.step(step)
        with torch.no_grad():
            reached[algorithm] = float(objective.evidence(model, x, y).value)
    near = LaplaceGP(kernel=kernel, mean=mean, likelihood=likelihood).double()
    with torch.no_grad():
        evidence = float(LaplaceEvidence().evidence(near, x, y).value)
    assert reached["adam"] < reached["natural"] - 5.0
    assert evidence - 2.0 < reached["natural"] < evidence + 0.5


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (-1.0, DataError, "found -1 .*expected a count"),
        (0.5, DataError, "found 0.5 .*expected a count"),
    ],
)
def test_other_targets_are_refused_in_a_sentence(wrong, error, said):
    x, y = counts_of_a_curve(0.5, rows=20)
    y[3] = wrong
    with pytest.raises(error, match=said):
        gpx.fit(x, y, "approx=svgp", "likelihood=negative_binomial", quiet=True, keep=False)


def test_chains_that_would_leave_the_dispersion_where_it_starts_are_refused():
    x, y = counts_of_a_curve(0.5, rows=20)
    with pytest.raises(ConfigError, match="keeps the parameters of a likelihood as they are"):
        gpx.fit(
            *(x, y, "approx=elliptical_slice", "likelihood=negative_binomial"),
            **{"quiet": True, "keep": False},
        )


def test_a_dispersion_below_its_floor_is_refused():
    with pytest.raises(ConfigError, match="dispersion was set to 0; it must be above its floor"):
        NegativeBinomial(0.0)
