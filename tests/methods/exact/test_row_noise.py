"""Known noise by row: the dense normal density, its gradient, and the posterior it leads to."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, RowNoise
from gpx.means import Constant, Zero
from gpx.models import QSGP, ExactGP, SubsetOfData
from gpx.objectives import ExactMLL, SubsetEvidence

N = 12


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(N, generator=generator, dtype=torch.float64)
    known = torch.rand(N, generator=generator, dtype=torch.float64)
    known[3] = 0.0
    relative = 0.5 + torch.rand(N, generator=generator, dtype=torch.float64)
    model = ExactGP(kernel=RBF(2), mean=Constant(), likelihood=Gaussian(0.3)).double()
    return model, x, y, RowNoise(known, relative)


def dense(model, x, noise):
    return model.kernel.evaluate(x, x) + torch.diag(
        noise.known + noise.relative * model.likelihood.noise_variance
    )


def test_evidence_and_gradient_are_those_of_the_dense_density(problem):
    model, x, y, noise = problem
    model.know_noise(noise)
    value = ExactMLL().evidence(model, x, y).value
    expected = MultivariateNormal(model.mean(x), dense(model, x, noise)).log_prob(y)
    assert value.item() == pytest.approx(expected.item(), rel=1e-11)
    parameters = list(model.parameters())
    found = torch.autograd.grad(value, parameters)
    wanted = torch.autograd.grad(expected, parameters)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_posterior_is_the_dense_one_and_survives_its_state(problem):
    model, x, y, noise = problem
    model.know_noise(noise)
    new = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2)
    posterior = model.condition(x, y)
    cross, solved = model.kernel.evaluate(new, x), torch.linalg.inv(dense(model, x, noise))
    mean = model.mean(new) + cross @ solved @ (y - model.mean(x))
    variance = model.kernel.diagonal(new) - ((cross @ solved) * cross).sum(1)
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    for each in (posterior, again):
        torch.testing.assert_close(each.predict(new).mean, mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(each.predict(new).variance, variance, rtol=1e-9, atol=1e-10)
    plain = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    state = plain.condition(x, y).state_dict()
    assert "row_noise" not in state
    fresh = plain.new_posterior()
    fresh.load_state_dict(state)
    assert fresh.row_noise is None


def test_equal_noise_is_that_of_the_likelihood(problem):
    model, x, y, _ = problem
    plain = ExactMLL().evidence(model, x, y).value
    halved = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=Gaussian(0.2)).double()
    halved.know_noise(RowNoise(torch.full((N,), 0.1, dtype=torch.float64), torch.ones(N).double()))
    assert ExactMLL().evidence(halved, x, y).value.item() == pytest.approx(plain.item(), rel=1e-12)


def test_a_row_of_weight_two_is_two_rows(problem):
    """Of the posterior, not of the evidence: two equal targets are likelier than their mean."""
    model, x, y, _ = problem
    relative = torch.ones(N, dtype=torch.float64)
    relative[4] = 0.5
    twice = model.condition(torch.cat([x, x[4:5]]), torch.cat([y, y[4:5]])).predict(x)
    model.know_noise(RowNoise(torch.zeros(N).double(), relative))
    once = model.condition(x, y).predict(x)
    torch.testing.assert_close(once, twice, rtol=1e-9, atol=1e-10)


def test_predictive_adds_the_noise_of_the_row():
    noise = RowNoise(torch.tensor([0.5, 0.0]), torch.tensor([1.0, 0.25]))
    law = Gaussian(0.4).predictive_of_rows(torch.zeros(2), torch.tensor([1.0, 2.0]), noise)
    assert law.variance.tolist() == pytest.approx([1.9, 2.1])


def test_paths_spread_like_the_posterior(problem):
    """Normal fluctuation of 4,000 paths; each of 5 comparisons fails by chance once in 15,000."""
    model, x, y, noise = problem
    model.know_noise(noise)
    posterior = model.condition(x, y)
    generator = torch.Generator().manual_seed(1)
    paths = posterior.sample_paths(4000, generator=generator)(x[:5])
    law = posterior.predict(x[:5])
    error = (paths.mean(0) - law.mean) / (law.variance / 4000).sqrt()
    assert error.abs().max() < 4.0
    spread = paths.var(0) / law.variance
    assert (spread - 1.0).abs().max() < 4.0 * math.sqrt(2.0 / 4000) + 0.05  # of the features


def test_a_subset_of_data_takes_the_noise_of_its_rows(problem):
    model, x, y, noise = problem
    parts = {"kernel": model.kernel, "mean": model.mean, "likelihood": model.likelihood}
    subset = SubsetOfData(**parts, num_points=5).double()
    subset.know_noise(noise)
    subset.initialise(x, y, generator=torch.Generator().manual_seed(0))
    rows = subset.rows
    model.know_noise(noise.of(rows))
    found = SubsetEvidence().evidence(subset, x, y).value
    wanted = ExactMLL().evidence(model, x[rows], y[rows]).value
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    law, other = subset.condition(x, y).predict(x), model.condition(x[rows], y[rows]).predict(x)
    torch.testing.assert_close(law, other)


@pytest.mark.parametrize("solver", ["iterative", "barely_biased"])
def test_other_solvers_refuse(problem, solver):
    model, _, _, noise = problem
    other = ExactGP(
        kernel=model.kernel, mean=model.mean, likelihood=model.likelihood, solver=solver
    )
    with pytest.raises(ConfigError, match=rf"solver={solver} takes one noise variance for all"):
        other.know_noise(noise)


def test_other_models_refuse(problem):
    noise = problem[3]
    weights = QSGP(
        kernel=RBF(2), mean=Zero(), likelihood=Gaussian(), basis=RandomFourier, num_basis=4
    )
    with pytest.raises(ConfigError, match=r"QSGP has one noise variance .*model=ExactGP\(\)"):
        weights.know_noise(noise)


@pytest.mark.parametrize("learned", [True, False])
def test_variances_of_the_rows_are_known_beside_a_learned_one_or_alone(problem, learned):
    model, x, y, noise = problem
    variances = noise.known + 0.01
    if learned:
        model.know_noise(variances)
        expected = RowNoise(variances, torch.ones(N, dtype=torch.float64))
    else:
        expected = RowNoise(variances, torch.zeros_like(variances))
        model.know_noise(expected)
    found = ExactMLL().evidence(model, x, y).value
    (of_noise,) = torch.autograd.grad(found, list(model.likelihood.parameters()))
    want = MultivariateNormal(model.mean(x), dense(model, x, expected)).log_prob(y)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=0.0)
    assert bool(of_noise) == learned


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (0.1, r"tensor \(n,\) of the variance of every row, .* RowNoise; got .* class float$"),
        ([0.1] * N, "got an object of class list$"),  # not its numbers, which may be a million
        (torch.ones(N, 1), r"takes the .* of every row, \(n,\), got a tensor \(12, 1\)"),
        (-torch.ones(N), "not negative"),
    ],
)
def test_known_noise_is_a_variance_for_every_row(problem, given, told):
    with pytest.raises(ConfigError, match=told):
        problem[0].know_noise(given)
