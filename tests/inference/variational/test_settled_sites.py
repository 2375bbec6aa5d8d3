"""The start of q(v) for classes and counts: near the highest bound, also where the mode is not."""

import numpy as np
import pytest
import torch
from draws import draws

from gpx.inference.variational import (
    InducingVariables,
    concave_start,
    expected_curvature,
    has_concave_start,
)
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, NegativeBinomial, Poisson, Softmax, StudentT
from gpx.means import Constant
from gpx.models import SVGP


def test_expected_curvature_is_that_of_the_density():
    mean = torch.linspace(-2.0, 2.0, 5, dtype=torch.float64)
    variance, y = torch.full_like(mean, 0.4), torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).double()
    found = expected_curvature(Gaussian(0.25).double(), y, mean, variance)
    torch.testing.assert_close(found.precision, torch.full_like(mean, 4.0), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.slope, 4.0 * (y - mean), rtol=1e-6, atol=0)
    found = expected_curvature(Bernoulli(num_nodes=101), y, mean, variance)
    z, w = np.polynomial.hermite_e.hermegauss(101)
    f = mean[:, None] + variance.sqrt()[:, None] * torch.from_numpy(z)
    p = torch.sigmoid(f)
    want = (p * (1 - p)) @ torch.from_numpy(w / w.sum())
    torch.testing.assert_close(found.precision, want)


def counts(n=80):
    """Zeros but for a bump, which leave the latent function of a wide prior free below."""
    x = torch.linspace(0.0, 1.0, n, dtype=torch.float64)[:, None]
    y = torch.where((x[:, 0] - 0.5).abs() < 0.05, 15.0, 0.0).double()
    return x, y


def bound(model, x, y):
    terms = model.bound_terms(x)
    return model.likelihood.expected_log_prob(y, *terms.marginals).sum() - terms.kl


def start_and_best(likelihood, kernel, z, x, y):
    """The bound at the start of q, and at the q of highest bound."""
    model = SVGP(
        kernel=kernel,
        mean=Constant(-2.0),
        likelihood=likelihood,
        num_inputs=z.shape[1],
        num_inducing=len(z),
    ).double()
    model.place(z)
    found = concave_start(model._variables, model.mean, x, y, model.likelihood)
    model._assign(model.q, *found)
    start = float(bound(model, x, y).detach())
    search = torch.optim.LBFGS(
        list(model.q.parameters()), max_iter=500, line_search_fn="strong_wolfe", history_size=50
    )

    def loss():
        search.zero_grad()
        value = -bound(model, x, y)
        value.backward()
        return value

    search.step(loss)
    return start, float(bound(model, x, y).detach())


@pytest.mark.parametrize(
    ("likelihood", "outputscale"),
    [(Poisson(), 2.0), (Poisson(), 120.0), (NegativeBinomial(0.3), 30.0), (Bernoulli(), 50.0)],
)
def test_q_is_near_that_of_highest_bound(likelihood, outputscale):
    x, y = counts()
    if isinstance(likelihood, Bernoulli):
        y = torch.where(y > 0.0, 1.0, -1.0).double()
    z = torch.linspace(0.0, 1.0, 12, dtype=torch.float64)[:, None]
    start, best = start_and_best(likelihood, RBF(1, 0.1, outputscale), z, x, y)
    assert best - 0.1 < start <= best + 1e-6


@pytest.mark.parametrize("outputscale", [2000.0, 1e4])
def test_there_is_a_start_where_the_bound_is_infinite_at_the_mode(outputscale):
    x, y = counts()
    z = torch.linspace(0.0, 1.0, 25, dtype=torch.float64)[:, None]
    start, best = start_and_best(Poisson(), RBF(1, 0.1, outputscale), z, x, y)
    assert best - 2.0 < start <= best + 1e-6


@pytest.mark.parametrize(
    ("mean", "said"), [(800.0, "the bound of the evidence is infinite"), (0.0, "")]
)
def test_the_model_says_if_it_found_no_start(mean, said):
    x, y = counts()
    model = SVGP(
        kernel=RBF(1, 0.1),
        mean=Constant(mean),
        likelihood=Poisson(),
        num_inputs=1,
        num_inducing=12,
    ).double()
    model.initialise(x, y, generator=draws(0))
    assert said in model.note
    assert bool(said) == bool(model.note)


@pytest.mark.parametrize("seed", [0, 1])
def test_few_inducing_points_leave_a_wide_prior_its_variance(seed):
    """The expected rate is e^26 times that at the mode, and a step of Newton divides it by e."""
    x = torch.randn(300, 2, generator=draws(seed), dtype=torch.float64)
    y = torch.zeros(300, dtype=torch.float64)
    y[::50] = 1.0
    start, best = start_and_best(Poisson(), RBF(2, 1.0, 100.0), x[:25].clone(), x, y)
    assert best - 0.1 < start <= best + 1e-6


def test_who_has_such_a_start():
    assert all(has_concave_start(each) for each in (Poisson(), Bernoulli(), NegativeBinomial()))
    assert not any(has_concave_start(each) for each in (Gaussian(), StudentT(), Softmax(3)))


class PlugIn(Poisson):
    """Neglects the variance of f in its expectation."""

    def expected_log_prob(self, y, mean, variance):
        return self.log_prob(y, mean)


@pytest.mark.parametrize("likelihood", [PlugIn(), Poisson()])
@pytest.mark.parametrize("largest", [15.0, 1e9])
def test_expectations_of_ones_own_and_huge_counts_have_a_start(likelihood, largest):
    x, y = counts(30)
    y = y * largest / 15.0
    z = torch.linspace(0.0, 1.0, 30, dtype=torch.float64)[:, None]
    kernel = RBF(1, 0.1, 50.0).double()
    variables = InducingVariables(kernel, z, 1e-9)
    mean, factor = concave_start(variables, Constant().double(), x, y, likelihood)
    assert mean.isfinite().all()
    assert factor.isfinite().all()
    with torch.no_grad():
        columns = variables.whitener().block(x, torch.empty(30, 30, dtype=torch.float64))
    rate = (columns @ mean[0]).exp()
    assert rate[15].item() == pytest.approx(largest, rel=0.1)
