"""Mixtures of discrete weights: exact terms, moments and sampled bounds against enumeration."""

import itertools

import pytest
import torch
from discrete_hypotheses import hypotheses, log_likelihood, sine

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.direct import mixture_elbo
from gpx.methods.direct.mixture_elbo import log_density
from gpx.models import Direct, DirectMixture, NoiseGrid, WeightGrid
from gpx.objectives import DirectELBO, DirectMixtureELBO, DirectSampledELBO
from gpx.training import LBFGSB

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def made(x, y, *, cls=DirectMixture, num_basis=4, **options):
    found = cls(
        kernel=RBF(1, lengthscale=0.7, outputscale=1.3),
        mean=Constant(0.1),
        likelihood=Gaussian(0.05),
        basis=RandomFourier,
        num_basis=num_basis,
        weights=WeightGrid(3, 1.5),
        **options,
    ).double()
    found.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return found


def mixture(x, y, **options):
    model = made(x, y, components=3, sweeps=5, **options)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in (model.share_logits, model.logits, model.tangent):
            # in the place of the start, whose weights are all but certain
            part.copy_(torch.randn(part.shape, generator=draws, dtype=torch.float64))
    return model


def enumerated(model):
    """All weights (h, m) and log q of each (h,)."""
    log_q = model.log_q().detach()
    weights, _ = hypotheses(log_q[0], model.values())
    places = hypotheses(log_q[0], torch.arange(3))[0]
    return weights, log_density(model.log_shares().detach(), log_q, places)


@pytest.mark.parametrize("grid", [None, NoiseGrid(values=[0.05, 0.4])])
def test_the_exact_terms_are_those_of_all_hypotheses_and_the_bound_is_below(grid):
    x, y = sine()
    model = mixture(x, y, noise=grid)
    if grid is not None:
        model.noise_logits.data += torch.tensor([0.5, -0.5]).double()
    weights, log_mass = enumerated(model)
    terms = {name: part.detach() for name, part in model.exact_terms().items()}
    features = (model.basis(x) * model.scale).detach()
    residual = (y - model.mean(x)).detach()
    share, variances = torch.ones(1).double(), [float(model.likelihood.noise_variance.detach())]
    if grid is not None:
        share, variances = model.noise_logits.detach().softmax(0), grid.values.tolist()
    want = sum(
        part * (log_mass.exp() @ log_likelihood(features, residual, weights, variance))
        for part, variance in zip(share, variances, strict=True)
    )
    torch.testing.assert_close(terms["fit"] + terms["constant"], want, **EXACT)
    prior = hypotheses(model.log_prior().expand(4, -1), model.values())[1]
    torch.testing.assert_close(terms["prior"], log_mass.exp() @ prior, **EXACT)
    exact = sum(terms.values()) - log_mass.exp() @ log_mass
    assert float(DirectMixtureELBO().evidence(model, x, y).value.detach()) < float(exact)


def test_under_a_mixture_of_priors_components_have_the_prior_terms_of_mean_fields():
    model = mixture(*sine())
    model.weights = WeightGrid(3, 1.5, widths=[0.3, 1.0, 3.0], shares=[1.0, 2.0, 3.0])
    want = []
    for q in model.log_q().detach().exp():
        prior, gained = model.effective_log_prior(q)
        want.append((q @ prior).sum() + gained)
    shares = model.log_shares().detach().exp()
    got = model.exact_terms()["prior"].detach()
    torch.testing.assert_close(got, shares @ torch.stack(want), **EXACT)


def test_one_component_at_its_tangent_is_the_mean_field():
    x, y = sine()
    model = made(x, y, components=1)
    alone = made(x, y, cls=Direct)
    with torch.no_grad():
        model.tangent.copy_(model.log_q()[0])
        alone.logits.copy_(model.logits[0])
    got = DirectMixtureELBO().evidence(model, x, y).value
    torch.testing.assert_close(got, DirectELBO().evidence(alone, x, y).value, **EXACT)


def test_moments_are_those_of_all_hypotheses():
    x, y = sine()
    model = mixture(x, y)
    posterior = model.condition(x, y)
    at = torch.linspace(-2.0, 2.0, 5).double().unsqueeze(1)
    weights, log_mass = enumerated(model)
    with torch.no_grad():
        latent = model.mean(at) + weights @ (model.basis(at) * model.scale).mT
        mean = log_mass.exp() @ latent
        found = posterior.predict(at)
        torch.testing.assert_close(found.mean, mean, **EXACT)
        torch.testing.assert_close(found.variance, log_mass.exp() @ (latent - mean) ** 2, **EXACT)
        third = log_mass.exp() @ (latent - mean) ** 3
        torch.testing.assert_close(posterior.third_cumulant(at), third, **EXACT)
    zeros = float(log_mass.exp() @ (weights == 0.0).double().mean(1))
    assert posterior.sparsity() == pytest.approx(zeros, rel=1e-12)
    assert model.sparsity() == pytest.approx(zeros, rel=1e-12)


def test_the_sampled_bound_is_unbiased_in_value_and_gradient(monkeypatch):
    x, y = sine()
    model = mixture(x, y, num_basis=2)
    parameters = [model.share_logits, model.logits]
    codes = torch.tensor(list(itertools.product(range(3), repeat=2)))
    logs = log_density(model.log_shares(), model.log_q(), codes)
    exact = sum(model.exact_terms().values()) - logs.exp() @ logs
    want = torch.autograd.grad(exact, parameters)
    objective = DirectSampledELBO(len(x), draws=2)
    value, expected = 0.0, [torch.zeros_like(p) for p in parameters]
    for i, j in itertools.product(range(9), repeat=2):
        pair = codes[[i, j]]
        monkeypatch.setattr(mixture_elbo, "draw_codes", lambda *_, pair=pair: pair)
        found = objective.evidence(model, x, y, generator=torch.Generator()).value
        mass = float((logs[i] + logs[j]).detach().exp())
        value += mass * float(found.detach())
        for total, part in zip(expected, torch.autograd.grad(found, parameters), strict=True):
            total += mass * part
    assert value == pytest.approx(float(exact.detach()), rel=1e-12)
    for mine, oracle in zip(expected, want, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-10, atol=1e-10)


def test_training_raises_the_bound_above_its_start():
    x, y = sine(30)
    model = made(x, y, num_basis=10, components=3, perturbation=1.0)
    objective = DirectMixtureELBO()
    parameters = [p for group in model.parameter_groups().values() for p in group]
    start = float(objective.evidence(model, x, y).value.detach())
    LBFGSB().minimise(parameters, lambda: objective(model, x, y), 200, lambda *_: None)
    assert float(objective.evidence(model, x, y).value.detach()) > start + 0.1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: made(*sine(), components=0), "components=0"),
        (lambda: made(*sine(), perturbation=-1.0), "perturbation=-1.0"),
        (lambda: DirectSampledELBO(9, draws=1), "draws=1"),
        (
            lambda: DirectSampledELBO(9).evidence(made(*sine()), *sine()),
            "pass a generator",
        ),
    ],
)
def test_invalid_setups_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wrong()
