"""Bounds, sweeps and starts of networks of discrete weights, weight by weight."""

import pytest
import torch
from discrete_hypotheses import hypotheses, log_likelihood, require_slopes
from torch.autograd.functional import hessian

from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian
from gpx.methods.direct import network
from gpx.methods.direct.mean_field import total
from gpx.methods.direct.polynomial import num_terms
from gpx.models import DirectNetwork, NoiseGrid, WeightGrid
from gpx.objectives import DirectNetworkELBO

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
NOISE = NoiseGrid(values=[0.1, 0.5, 2.0], probabilities=[1.0, 3.0, 2.0])


def of_one_prior():
    return WeightGrid(3, 1.5)


def of_two_priors():
    return WeightGrid(3, 1.5, widths=[0.4, 1.5], shares=[1.0, 2.0])


def data(n=6):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=draws, dtype=torch.float64)
    return x, torch.randn(n, generator=draws, dtype=torch.float64)


def made(x, y, weights, noise, **options):
    model = DirectNetwork(
        likelihood=Gaussian(0.3),
        num_inputs=2,
        weights=weights,
        noise=noise,
        **{"hidden": [2], "bias": False, "starts": 3, **options},
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.logits.copy_(torch.randn(model.logits.shape, generator=draws, dtype=torch.float64))
        if noise is not None:
            model.noise_logits.copy_(torch.tensor([0.5, -0.2, 0.1]).double())
    return model


def outputs(weights, x):
    """Of two neurons that are squared and one that adds them up: (h, n) of weights (h, 6)."""
    hidden = torch.einsum("nd,hod->hno", x, weights[:, :4].view(-1, 2, 2)).square()
    return torch.einsum("hno,ho->hn", hidden, weights[:, 4:])


def enumerated(model):
    """All places (h, b) and what the weights are there (h, b)."""
    k = model.logits.shape[1]
    places = hypotheses(model.logits.detach(), torch.arange(k))[0]
    drawn = [own[place] for own, place in zip(model.values(), places.mT, strict=True)]
    return places, torch.stack(drawn, 1)


@pytest.mark.parametrize("weights", [of_one_prior, of_two_priors])
@pytest.mark.parametrize("noise", [None, NOISE])
def test_a_sweep_gives_every_weight_its_best_distribution(weights, noise):
    x, y = data()
    model = made(x, y, weights(), noise)
    places, drawn = enumerated(model)
    error = (y - outputs(drawn, x)).square().sum(1)
    logits = model.logits.detach().clone()
    prior = model.weights.log_components[0]
    if len(model.weights.log_components) > 1:
        grid = model.weights
        each = grid.log_shares + (logits.softmax(-1) @ grid.log_components.mT).sum(0)
        prior = each.softmax(0) @ grid.log_components
    for j in range(6):
        log_q = logits.log_softmax(-1)
        chosen = log_q.gather(1, places.mT)
        precision = 1.0 / model.likelihood.noise_variance.detach()
        if noise is not None:
            mean = chosen.sum(0).exp() @ error
            of_noise = noise.log_prior - 0.5 * (len(y) * noise.values.log() + mean / noise.values)
            precision = of_noise.softmax(0) @ (1.0 / noise.values)
        others = (chosen.sum(0) - chosen[j]).exp() * error
        given = torch.zeros(3).double().index_add(0, places[:, j], others)
        logits[j] = prior - 0.5 * precision * given
    model.sweep()
    found = model.logits.detach().log_softmax(-1)
    torch.testing.assert_close(found, logits.log_softmax(-1), **CLOSE)
    if noise is not None:
        torch.testing.assert_close(model.noise_logits.detach(), of_noise, **CLOSE)


def test_gradients_of_the_bound_pass_finite_differences():
    x, y = data()
    model = made(x, y, of_one_prior(), NOISE)
    parameters = model.parameter_groups()["variational"]
    assert len(parameters) == 2
    require_slopes(lambda: DirectNetworkELBO().evidence(model, x, y).value, parameters)


def test_under_a_mixture_of_priors_the_weights_have_the_bound_known_for_it():
    x, y = data()
    model = made(x, y, of_two_priors(), None)
    grid, log_q = model.weights, model.logits.detach().log_softmax(-1)
    each = grid.log_shares + (log_q.exp() @ grid.log_components.mT).sum(0)
    want = each.logsumexp(0) - (log_q.exp() * log_q).sum()
    terms = model.bound_terms()
    torch.testing.assert_close(terms["weights"].detach(), want, **CLOSE)
    total = float(sum(terms.values()).detach())
    assert model.bound_value() == pytest.approx(total, rel=1e-12)
    log_mass = hypotheses(grid.log_components[0].expand_as(log_q), torch.arange(3))[1]
    other = hypotheses(grid.log_components[1].expand_as(log_q), torch.arange(3))[1]
    mixed = torch.logaddexp(grid.log_shares[0] + log_mass, grid.log_shares[1] + other)
    log_all = hypotheses(log_q, torch.arange(3))[1]
    assert float(want) <= float(log_all.exp() @ (mixed - log_all))


@pytest.mark.parametrize("widths", [[1.2], [1.0, 1.5]])
def test_second_derivatives_are_those_of_the_sum_over_hypotheses(widths):
    x, y = data()
    model = made(x, y, WeightGrid(3, 1.5, widths=widths), None)
    grid, (places, drawn) = model.weights, enumerated(model)
    of_data = log_likelihood(torch.eye(len(y)).double(), y, outputs(drawn, x), 0.3)
    each = torch.stack([log_p[places].sum(1) for log_p in grid.log_components])

    def summed(logits):
        log_mass = logits.log_softmax(-1).gather(1, places.mT).sum(0)
        mass = log_mass.exp()
        return mass @ (of_data - log_mass) + (grid.log_shares + each @ mass).logsumexp(0)

    def bound(logits):
        model.logits = logits
        return total(model.bound_terms())

    at = model.logits.detach().clone()
    del model.logits  # a parameter takes no tensor with a graph in its place
    torch.testing.assert_close(bound(at), summed(at), **CLOSE)
    torch.testing.assert_close(hessian(bound, at), hessian(summed, at), **CLOSE)


@pytest.mark.parametrize("noise", [None, NOISE])
def test_q_starts_a_quarter_as_wide_as_the_prior_at_the_best_of_the_draws(noise):
    x, y = data()
    grid = of_one_prior()
    model = made(x, y, grid, noise, starts=5)
    model.initialise(x, y, generator=torch.Generator().manual_seed(4))
    found = model.bound_value()
    generator, bounds = torch.Generator().manual_seed(4), []
    for _ in range(5):
        draws = torch.randn(6, 1, generator=generator, dtype=torch.float64)
        logits = grid.log_prior + torch.distributions.Normal(draws, 0.25).log_prob(grid.values)
        other = made(x, y, grid, noise)
        other.logits.data = logits
        if noise is not None:
            other.noise_logits.data = other.best_noise_logits(other.bound_terms()["fit"])
        bounds.append(other.bound_value())
    assert found == pytest.approx(max(bounds), rel=1e-10)
    assert max(bounds) > min(bounds) + 1.0


def test_a_certain_network_has_no_negative_variance():
    x, y = data(200)
    model = made(x, y, WeightGrid(5, 1.0), None, hidden=[2, 2])
    model.logits.data = 1e4 * model.logits.data
    assert float(model.condition(x, y).predict(x).variance.min()) >= 0.0


def test_a_posterior_knows_the_neurons_and_counts_zeros_where_there_are_any():
    x, y = data()
    model = made(x, y, of_one_prior(), None, hidden=[2, 3])
    posterior = model.condition(x, y)
    assert posterior.hidden == model.hidden == (2, 3)
    assert posterior.facts()["sparsity"] == pytest.approx(model.sparsity(), rel=1e-12)
    assert model.facts()["sparsity"] == model.sparsity()
    without = made(x, y, WeightGrid(2, 1.0, sparse=False), None)
    assert "sparsity" not in without.facts()
    assert "sparsity" not in without.condition(x, y).facts()


@pytest.mark.parametrize("bias", [False, True])
def test_pairs_of_terms_that_just_fit_are_allowed_and_more_are_not(bias, monkeypatch):
    terms = num_terms(2 + bias, [3, 1])
    options = {"likelihood": Gaussian(0.3), "num_inputs": 2, "hidden": [3], "bias": bias}
    monkeypatch.setattr(network, "DEFAULT_BUDGET", 64 * terms**2)
    assert len(DirectNetwork(**options).polynomial.counts) == terms
    monkeypatch.setattr(network, "DEFAULT_BUDGET", 64 * terms**2 - 8)
    with pytest.raises(ConfigError, match=f"makes {terms} terms"):
        DirectNetwork(**options)


def test_options_out_of_range_are_refused_and_rows_counted():
    x, y = data()
    with pytest.raises(ConfigError, match="restarts=-1"):
        made(x, y, of_one_prior(), None, restarts=-1)
    assert made(x, y, of_one_prior(), None, restarts=0).num_rounds == 1
    with pytest.raises(ConfigError, match=r"give a gpx\.models\.WeightGrid"):
        made(x, y, NOISE, None)
    assert DirectNetworkELBO().num_data(x) == 6
    assert DirectNetworkELBO().num_data(x[:0]) == 1
