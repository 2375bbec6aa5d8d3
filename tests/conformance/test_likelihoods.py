"""The contract of likelihoods: shapes, limits, gradients and predictive distributions of each."""

import math
from typing import get_args

import pytest
import torch
from copies import copies
from public_classes import public_classes

from gpx import likelihoods
from gpx.errors import NotAvailable
from gpx.likelihoods.base import Task, is_classification
from gpx.likelihoods.row_noise import RowNoise

REAL = [-1.2, 0.1, 0.4, 2.0]
SIGNS = [1.0, -1.0, -1.0, 1.0]
SHARES = [0.03, 0.9, 0.4, 0.55]
GRADES = [0.0, 3.0, 1.0, 2.0]
COUNTS = [0.0, 1.0, 3.0, 7.0]
TIMES = [0.02, 0.7, 1.3, 9.0]
REGISTRY = {
    "Gaussian": (lambda: likelihoods.Gaussian(0.3), REAL),
    "GaussianOutputs": (
        lambda: likelihoods.GaussianOutputs(2, 0.3),
        [[-1.2, 0.4], [0.1, 0.0], [0.4, -2.0], [2.0, 1.0]],
    ),
    "Heteroscedastic": (lambda: likelihoods.Heteroscedastic(0.3, 0.7, num_nodes=60), REAL),
    "MixedOutputs": (
        lambda: likelihoods.MixedOutputs(3, 2, 0.3),
        [[-1.2, 0.4, 0.3], [0.1, 0.0, 1.0], [0.4, -2.0, -0.1], [2.0, 1.0, 0.5]],
    ),
    "Laplace": (lambda: likelihoods.Laplace(0.4), REAL),
    "StudentT": (lambda: likelihoods.StudentT(0.7, 3.5, num_nodes=40), REAL),
    "Beta": (lambda: likelihoods.Beta(8.0, num_nodes=40), SHARES),
    "Beta probit": (lambda: likelihoods.Beta(8.0, "probit", num_nodes=40), SHARES),
    "Bernoulli": (lambda: likelihoods.Bernoulli("logit", num_nodes=40), SIGNS),
    "Bernoulli probit": (lambda: likelihoods.Bernoulli("probit", num_nodes=40), SIGNS),
    "Poisson": (likelihoods.Poisson, COUNTS),
    "NegativeBinomial": (lambda: likelihoods.NegativeBinomial(0.4, num_nodes=60), COUNTS),
    "Gamma": (lambda: likelihoods.Gamma(1.8, num_nodes=60), TIMES),
    "Ordinal": (lambda: likelihoods.Ordinal(4, num_nodes=40), GRADES),
    "Ordinal probit": (lambda: likelihoods.Ordinal(4, "probit", num_nodes=40), GRADES),
    "Softmax": (lambda: likelihoods.Softmax(3), [0.0, 2.0, 1.0, 1.0]),
}
NAMES = sorted(REGISTRY)
TILTED = [
    *("Bernoulli", "Bernoulli probit", "Gamma", "Gaussian", "NegativeBinomial"),
    *("Ordinal", "Ordinal probit", "Poisson"),
]
CURVED = [*TILTED, "Softmax"]


def case(name):
    """Likelihood, y (4,) or (4, outputs), mean and variance (4,) or (4, p), in float64."""
    make, targets = REGISTRY[name]
    likelihood = make().double()
    shape = (4,) if likelihood.num_latents == 1 else (4, likelihood.num_latents)
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(shape, generator=generator).double()
    variance = 0.1 + torch.rand(shape, generator=generator).double()
    return likelihood, torch.tensor(targets, dtype=torch.float64), mean, variance


def test_every_public_likelihood_is_listed():
    public = public_classes(likelihoods, likelihoods.Likelihood)
    assert public == {name.split()[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_likelihood_says_what_it_is(name):
    likelihood = case(name)[0]
    assert likelihood.task in get_args(Task)
    assert (likelihood.num_classes > 1) == is_classification(likelihood.task)
    assert isinstance(likelihood.log_concave, bool)
    assert likelihood.num_latents >= 1
    assert case(name)[1].shape[1:] == (
        () if likelihood.num_outputs == 1 else (likelihood.num_outputs,)
    )


@pytest.mark.parametrize("name", NAMES)
def test_samples_of_the_latents_lead(name):
    """f, mean and variance with dimensions of samples before the rows: each as on its own."""
    likelihood, y, mean, variance = case(name)
    draws = torch.stack([mean, 0.5 * mean, mean - 0.3]).unflatten(0, (3, 1))
    spread = torch.stack([variance, 2.0 * variance, 0.1 * variance]).unflatten(0, (3, 1))
    density = likelihood.log_prob(y, draws)
    expected = likelihood.expected_log_prob(y, draws, spread)
    assert density.shape == expected.shape == (3, 1, 4)
    predicted = likelihood.predictive(draws, spread)
    assert predicted.batch_shape == (3, 1, 4)
    for i in range(3):
        torch.testing.assert_close(density[i, 0], likelihood.log_prob(y, draws[i, 0]))
        torch.testing.assert_close(
            expected[i, 0], likelihood.expected_log_prob(y, draws[i, 0], spread[i, 0])
        )
        torch.testing.assert_close(
            predicted.log_prob(y)[i, 0],
            likelihood.predictive(draws[i, 0], spread[i, 0]).log_prob(y),
        )


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_have_a_law_too(name):
    likelihood, y, mean, variance = case(name)
    predicted = likelihood.predictive(mean[:0], variance[:0])
    assert predicted.batch_shape == (0,)
    assert likelihoods.target_marginals(predicted).batch_shape == y[:0].shape


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_a_law_of_its_own(name):
    """Of independent outputs the density is the product of the marginals', of others they agree in
    their moments."""
    likelihood, y, mean, variance = case(name)
    predicted = likelihood.predictive(mean, variance)
    marginals = likelihoods.target_marginals(predicted)
    assert marginals.batch_shape == y.shape
    if isinstance(predicted, torch.distributions.LowRankMultivariateNormal):
        torch.testing.assert_close(marginals.mean, predicted.mean)
        torch.testing.assert_close(marginals.variance, predicted.variance)
        return
    density = marginals.log_prob(y).reshape(len(y), -1).sum(1)
    torch.testing.assert_close(density, predicted.log_prob(y))


@pytest.mark.parametrize("name", NAMES)
def test_without_uncertainty_the_expectation_is_the_value(name):
    likelihood, y, mean, variance = case(name)
    found = likelihood.expected_log_prob(y, mean, torch.zeros_like(variance))
    tolerance = 1e-5 if name == "Softmax" else 1e-12  # the accuracy that Softmax states
    torch.testing.assert_close(found, likelihood.log_prob(y, mean), rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_concave_densities_lose_by_uncertainty(name):
    likelihood, y, mean, variance = case(name)
    if not likelihood.log_concave:
        pytest.skip("the density is not log-concave, so Jensen's inequality has no direction")
    found = likelihood.expected_log_prob(y, mean, variance)
    assert (found <= likelihood.log_prob(y, mean) + 1e-5).all()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_the_expectation(name):
    likelihood, y, mean, variance = case(name)
    moments = mean.requires_grad_(), variance.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, v: likelihood.expected_log_prob(y, m, v), moments)


@pytest.mark.parametrize("name", NAMES)
def test_the_predictive_density_averages_over_the_latents(name):
    """p(y) = E p(y | f), by the trapezoid rule over +-10 deviations of every latent."""
    likelihood, y, mean, variance = case(name)
    p = likelihood.num_latents
    line = torch.linspace(-10.0, 10.0, 20_001 if p == 1 else 81, dtype=torch.float64)
    mass = torch.exp(-0.5 * line.square())
    mass = mass / mass.sum()
    grid = torch.cartesian_prod(*[line] * p).reshape(-1, p)
    weight = torch.cartesian_prod(*[mass] * p).reshape(-1, p).prod(1)
    f = mean + variance.sqrt() * grid.reshape((-1, 1) if p == 1 else (-1, 1, p))
    want = (weight[:, None] * likelihood.log_prob(y, f).exp()).sum(0)
    found = likelihood.predictive(mean, variance).log_prob(y).exp()
    # Laplace: the trapezoid rule here sees a kink; Poisson: a ratio of scales; Heteroscedastic: 81
    # points of each function are few for the narrower noises
    tolerance = {"Laplace": 1e-4, "Poisson": 1e-4, "Heteroscedastic": 1e-4}.get(name, 1e-5)
    torch.testing.assert_close(found, want, rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_log_density_of_new_rows(name):
    """Of every target by its own law; a weight counts rows, or of normal noise divides it."""
    likelihood, y, mean, variance = case(name)
    marginals = likelihoods.target_marginals(likelihood.predictive(mean, variance))
    want = marginals.log_prob(y).reshape(len(y), -1).sum(1)
    found = likelihood.log_predictive_of_rows(y, mean, variance, None)
    torch.testing.assert_close(found, want)
    twice = RowNoise(torch.zeros(4).double(), torch.full((4,), 0.5).double())
    found = likelihood.log_predictive_of_rows(y, mean, variance, twice)
    if hasattr(likelihood, "predictive_of_rows"):
        law = likelihood.predictive_of_rows(mean, variance, twice)
        want = 0.5 * likelihoods.target_marginals(law).log_prob(y).reshape(len(y), -1).sum(1)
    torch.testing.assert_close(found, 2.0 * want)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_travels(name):
    likelihood, y, mean, _ = case(name)
    other = REGISTRY[name][0]().double()
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter.add_(0.7)
    other.load_state_dict(likelihood.state_dict())
    for again in (other, *copies(likelihood)):
        assert torch.equal(again.log_prob(y, mean), likelihood.log_prob(y, mean))


def declares(name, method):
    """Whether the likelihood gives that part of the contract, which is optional."""
    likelihood, y, mean, variance = case(name)
    arguments = (y, mean) if method == "curvature" else (y, mean, variance)
    try:
        getattr(likelihood, method)(*arguments)
    except NotAvailable:
        return False
    return True


def test_who_declares_second_derivatives_and_tilted_moments():
    assert {name for name in NAMES if declares(name, "curvature")} == set(CURVED)
    assert {name for name in NAMES if declares(name, "tilted")} == set(TILTED)


@pytest.mark.parametrize("name", CURVED)
def test_curvature_is_the_derivative_of_the_density(name):
    likelihood, y, mean, _ = case(name)
    for f in (mean, 6.0 * mean, torch.stack([mean, -mean])):
        gradient, information = likelihood.curvature(y, f)
        assert gradient.shape == information.shape == f.shape
        assert (information >= 0.0).all()
    gradient, information = likelihood.curvature(y, mean)
    for row in range(len(y)):
        one = lambda f, row=row: likelihood.log_prob(y[row : row + 1], f)[0]  # noqa: E731
        f = mean[row : row + 1]
        slope = torch.autograd.functional.jacobian(one, f).reshape(-1)
        size = likelihood.num_latents
        second = -torch.autograd.functional.hessian(one, f).reshape(size, size)
        w = information[row].reshape(-1)
        want = w.diag() if size == 1 else w.diag() - torch.outer(w, w)
        torch.testing.assert_close(gradient[row].reshape(-1), slope, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(want, second, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda f: likelihood.curvature(y, f), mean.requires_grad_(), check_undefined_grad=False
    )


@pytest.mark.parametrize("name", TILTED)
def test_tilted_moments_are_integrals(name):
    """Against the trapezoid rule over +-12 deviations, and the formulas of the two moments."""
    likelihood, y, mean, variance = case(name)
    found = likelihood.tilted(y, mean, variance)
    line = torch.linspace(-12.0, 12.0, 40_001, dtype=torch.float64)[:, None]
    f = mean + variance.sqrt() * line
    mass = torch.exp(likelihood.log_prob(y, f) - 0.5 * line.square())
    total = mass.sum(0)
    step = float(line[1] - line[0])
    normaliser = total.log() + math.log(step) - 0.5 * math.log(2.0 * math.pi)
    torch.testing.assert_close(found.log_normaliser, normaliser, rtol=1e-10, atol=1e-12)
    centre = (mass * f).sum(0) / total
    spread = (mass * (f - centre).square()).sum(0) / total
    torch.testing.assert_close(mean + variance * found.gradient, centre, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        variance - variance.square() * found.information, spread, rtol=1e-9, atol=1e-11
    )


def test_probit_derivatives_in_the_far_tails():
    """Against the asymptotic series r = -z + 1/z ... of the inverse Mills ratio, and zero."""
    likelihood = likelihoods.Bernoulli("probit").double()
    y = torch.ones(4, dtype=torch.float64)
    f = torch.tensor([-40.0, -1e3, 40.0, 1e3], dtype=torch.float64)
    gradient, information = likelihood.curvature(y, f)
    z = f[:2]
    inverse = 1.0 / z.square()
    series = -z * (1.0 + inverse - 2.0 * inverse**2 + 10.0 * inverse**3)
    torch.testing.assert_close(gradient[:2], series, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(
        information[:2], 1.0 - inverse + 6.0 * inverse**2 - 50.0 * inverse**3, rtol=1e-7, atol=0.0
    )
    assert (information[2:] < 1e-28).all()
    assert (gradient[2:] < 1e-30).all()


@pytest.mark.parametrize("name", NAMES)
def test_predictive_laws_are_differentiable_in_the_latents(name):
    likelihood, y, mean, variance = case(name)
    moments = mean.requires_grad_(), variance.requires_grad_()

    def density(mean, variance):
        return likelihood.predictive(mean, variance).log_prob(y)

    torch.autograd.gradcheck(density, moments, rtol=1e-4)
