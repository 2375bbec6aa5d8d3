"""Networks of discrete weights: terms, bound and moments, against a sum over every hypothesis."""

import copy
import itertools

import pytest
import torch
from claimed_cuda import claimed_cuda
from discrete_hypotheses import hypotheses, log_likelihood, mean_field_terms, statistics_of

from gpx.errors import ConfigError, DataError
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.methods.direct import DirectNetworkPosterior, network_posterior, polynomial
from gpx.methods.direct.mean_field import known_noise_terms, total
from gpx.methods.direct.polynomial import network_polynomial, num_terms
from gpx.models import DirectNetwork, NoiseGrid, WeightGrid
from gpx.objectives import DirectNetworkELBO
from gpx.training import LBFGSB

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
ARCHITECTURES = [[2, 1], [3, 1], [1, 1, 1], [2, 2, 1]]


def forward(weights, x, widths):
    """The network itself, layer by layer, for every row of weights (S, b): (S, n)."""
    state, used = x.expand(len(weights), *x.shape), 0
    for layer, width in enumerate(widths):
        size = state.shape[-1] * width
        own = weights[:, used : used + size].view(len(weights), width, -1)
        used += size
        state = torch.einsum("sni,soi->sno", state, own)
        if layer + 1 < len(widths):
            state = state.square()
    assert used == weights.shape[1]
    return state.squeeze(-1)


def data(n=5, d=2, seed=0):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draws, dtype=torch.float64)
    return x, torch.randn(n, generator=draws, dtype=torch.float64)


def made(x, y, *, hidden=(2,), num_values=2, noise=None, **options):
    weights = WeightGrid(num_values, 1.0, sparse=False)
    model = DirectNetwork(
        likelihood=Gaussian(0.3),
        num_inputs=x.shape[1],
        hidden=hidden,
        weights=weights,
        noise=noise,
        **{"bias": False, "starts": 3, **options},
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.logits.copy_(torch.randn(model.logits.shape, generator=draws).double())
    return model


def enumerated(model):
    """All weights (h, b), which have values of their own, and log q of each (h,)."""
    log_q = model.logits.detach().log_softmax(-1)
    places, log_mass = hypotheses(log_q, torch.arange(log_q.shape[1]))
    values = model.values()
    weights = torch.stack([values[j][places[:, j]] for j in range(len(values))], 1)
    return weights, log_mass


@pytest.mark.parametrize(
    ("widths", "terms"), zip(ARCHITECTURES, (6, 9, 6, 42), strict=True), ids=str
)
def test_the_polynomial_is_the_network_and_has_the_terms_known_for_it(widths, terms):
    x, _ = data()
    polynomial = network_polynomial(2, widths)
    assert len(polynomial.counts) == num_terms(2, widths) == terms
    b = len(polynomial.fan_in)
    weights = torch.randn(4, b, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    got = polynomial.at(weights) @ polynomial.coefficients(x).mT
    torch.testing.assert_close(got, forward(weights, x, widths), **CLOSE)


@pytest.mark.parametrize("widths", ARCHITECTURES, ids=str)
def test_bound_and_moments_are_those_of_all_hypotheses(widths):
    x, y = data()
    grid = NoiseGrid(values=[0.1, 0.5, 2.0])
    model = made(x, y, hidden=widths[:-1], noise=grid)
    with torch.no_grad():
        model.noise_logits.copy_(torch.tensor([0.5, -0.2, 0.1]).double())
    weights, log_mass = enumerated(model)
    mass = log_mass.exp()
    outputs = forward(weights, x, widths)
    one = torch.eye(len(y)).double()
    log_noise = model.noise_logits.detach().log_softmax(0)
    prior = hypotheses(model.weights.log_prior.expand_as(model.logits), torch.arange(2))[1]
    want = 0.0
    for share, log_p, variance in zip(log_noise, grid.log_prior, grid.values.tolist(), strict=True):
        term = log_likelihood(one, y, outputs, variance) + prior - log_mass + log_p - share
        want = want + share.exp() * (mass @ term)
    found = DirectNetworkELBO().evidence(model, x, y)
    torch.testing.assert_close(found.value.detach(), want, **CLOSE)

    at, _ = data(4, seed=3)
    latent = forward(weights, at, widths)
    mean = mass @ latent
    posterior = model.condition(x, y)
    moments = posterior.predict(at)
    torch.testing.assert_close(moments.mean, mean, **CLOSE)
    torch.testing.assert_close(moments.variance, mass @ (latent - mean) ** 2, **CLOSE)
    law = posterior.predictive(at, model.likelihood)
    noise = log_noise.exp() @ grid.values
    torch.testing.assert_close(law.variance, moments.variance + noise, **CLOSE)
    assert posterior.has_own_noise
    assert not made(x, y).condition(x, y).has_own_noise


def test_one_layer_is_regression_on_the_inputs():
    x, y = data(9)
    model = made(x, y, hidden=(), num_values=3)
    scaled = x / 2.0**0.5
    noise = known_noise_terms(model.likelihood.noise_variance.detach(), len(y))
    grid, logits = model.weights, model.logits.detach().clone().requires_grad_()
    terms = mean_field_terms(statistics_of(scaled, y), logits, grid.values, grid.log_prior, noise)
    want, got = total(terms), DirectNetworkELBO().evidence(model, x, y).value
    torch.testing.assert_close(got.detach(), want.detach(), **CLOSE)
    got.backward(), want.backward()
    torch.testing.assert_close(model.logits.grad, logits.grad, **CLOSE)


def test_rows_that_stream_in_are_those_of_a_batch_and_a_bias_is_an_input_of_one():
    x, y = data(12)
    part, whole = (made(x[:n], y[:n], bias=True) for n in (7, 12))
    part.add_rows(x[7:], y[7:])
    for name in ("gram", "projected", "totals"):
        torch.testing.assert_close(getattr(part, name), getattr(whole, name), **CLOSE)
    part.remove_rows(x[7:], y[7:])
    torch.testing.assert_close(part.gram, made(x[:7], y[:7], bias=True).gram, **CLOSE)
    with pytest.raises(ConfigError, match="cannot be taken"):
        part.remove_rows(x, y)
    ones = torch.cat([x, torch.ones(12, 1).double()], 1)
    torch.testing.assert_close(whole.gram, made(ones, y).gram, **CLOSE)


@pytest.mark.parametrize("place", [0, 1])
def test_rows_of_nan_are_refused(place):
    rows = data(9)
    model = made(*rows)
    before = model.gram.clone()
    rows[place][3] = torch.nan
    with pytest.raises(DataError, match="inputs or the targets hold NaN"):
        model.add_rows(*rows)
    assert torch.equal(model.gram, before)
    with pytest.raises(DataError, match=r"targets hold NaN|1 of 9 targets are not finite"):
        made(*rows)


def test_rows_are_taken_as_many_at_a_time_as_memory_is_to_hold(monkeypatch):
    x, y = data(12)
    model = made(x, y)
    whole, posterior = model.sums(x, y), model.condition(x, y)
    want = posterior.predict(x), posterior.sample_paths(2, generator=torch.Generator())(x)
    taken = []
    coefficients = DirectNetworkPosterior.coefficients

    def watched(self, x):
        taken.append(len(x))
        return coefficients(self, x)

    monkeypatch.setattr(DirectNetworkPosterior, "coefficients", watched)
    monkeypatch.setattr(network_posterior, "DEFAULT_BUDGET", 5 * 4 * 8 * len(model.gram))
    for name in ("gram", "projected", "squared"):
        got = getattr(model.sums(x, y), name)
        torch.testing.assert_close(got, getattr(whole, name), **CLOSE)
    found = posterior.predict(x), posterior.sample_paths(2, generator=torch.Generator())(x)
    for mine, theirs in zip((*found[0], found[1]), (*want[0], want[1]), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)
    assert max(taken) <= 5


def test_data_of_single_precision_are_summed_and_predicted_in_double():
    x = torch.linspace(-1.0, 1.0, 8).unsqueeze(1)
    y = x[:, 0].square()
    single = DirectNetwork(likelihood=Gaussian(0.1), num_inputs=1, hidden=[2], starts=3).float()
    double = DirectNetwork(likelihood=Gaussian(0.1), num_inputs=1, hidden=[2], starts=3).double()
    for made in (single, double):
        rows = (x, y) if made is single else (x.double(), y.double())
        made.initialise(*rows, generator=torch.Generator().manual_seed(0))
    found = single.condition(x, y).predict(x)
    want = double.condition(x.double(), y.double()).predict(x.double())
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(found.mean, want.mean.float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.variance, want.variance.float(), rtol=1e-6, atol=1e-6)


def test_training_raises_the_bound_and_fits_a_parabola_whose_paths_have_its_moments():
    x = torch.linspace(-1.5, 1.5, 30).double().unsqueeze(1)
    y = x[:, 0].square() - 0.7
    model = DirectNetwork(likelihood=Gaussian(0.05), num_inputs=1, noise=NoiseGrid()).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    objective = DirectNetworkELBO()
    before = float(objective.evidence(model, x, y).value.detach())
    parameters = model.parameter_groups()["variational"]
    LBFGSB().minimise(parameters, lambda: objective(model, x, y), 200, lambda *_: None)
    assert float(objective.evidence(model, x, y).value.detach()) > before
    posterior = model.condition(x, y)
    found = posterior.predict(x)
    assert float((found.mean - y).square().mean()) < 0.4 * float(y.var())
    assert posterior.facts()["sparsity"] == model.sparsity()
    paths = posterior.sample_paths(4000, generator=torch.Generator().manual_seed(1))
    drawn = paths(x)
    assert torch.equal(drawn, paths(x))
    error = (drawn.mean(0) - found.mean).abs() / (found.variance / 4000).sqrt().clamp(min=1e-12)
    # 30 correlated comparisons at 5 standard errors: false alarms below 2e-5
    assert float(error.max()) < 5.0


def swept_by_gradients(model):
    """A sweep that reads the slope of every weight off the gradient of the whole fit."""
    prior = model.weights.log_prior
    for weight in range(len(model.logits)):
        if model.noise is not None:
            model.noise_logits.data = model.best_noise_logits(model.bound_terms()["fit"])
        q = model.logits.detach().softmax(-1).requires_grad_()
        (slope,) = torch.autograd.grad(model._fit(q), q)
        model.logits.data[weight] = prior + slope[weight]


@pytest.mark.parametrize("widths", ARCHITECTURES, ids=str)
@pytest.mark.parametrize("noise", [None, NoiseGrid(num_values=5)], ids=["known", "grid"])
def test_a_sweep_sets_each_weight_to_the_best_given_those_before_it(widths, noise):
    model = made(*data(12), hidden=widths[:-1], num_values=3, noise=noise)
    want = copy.deepcopy(model)
    for _ in range(2):
        model.sweep()
        swept_by_gradients(want)
        torch.testing.assert_close(model.logits, want.logits, **CLOSE)
        torch.testing.assert_close(model.noise_logits, want.noise_logits, **CLOSE)


@pytest.mark.parametrize("most", [0, 2**30], ids=["one weight at a time", "all weights"])
def test_bound_and_sweeps_on_a_device_are_those_of_a_cpu(monkeypatch, most):
    monkeypatch.setattr(polynomial, "GATHERED_BYTES", most)
    x, y = data(12)
    here = made(x, y, num_values=3, noise=NoiseGrid(num_values=5))
    with claimed_cuda() as waits:
        there = copy.deepcopy(here).cuda()
        draws = torch.Generator("cuda")
        found = DirectNetworkELBO().evidence(there, x.cuda(), y.cuda()).value
        found.backward()
        DirectNetworkELBO().evidence(here, x, y).value.backward()
        torch.testing.assert_close(there.logits.grad.cpu(), here.logits.grad, **CLOSE)
        waits.clear()
        assert there.next_round(x.cuda(), y.cuda(), 0.0, generator=draws)
        assert waits.total() <= 12  # one copy of the model, however many sweeps there are
        assert here.next_round(x, y, 0.0, generator=torch.Generator())
        torch.testing.assert_close(there.logits.cpu(), here.logits, **CLOSE)
        torch.testing.assert_close(there.noise_logits.cpu(), here.noise_logits, **CLOSE)


def test_sweeps_never_lower_the_bound_and_lead_out_of_a_corner():
    x, y = data(12)
    model = made(x, y, num_values=3, noise=NoiseGrid(num_values=5))
    bounds = [model.bound_value()]
    for _ in range(6):
        model.sweep()
        bounds.append(model.bound_value())
    assert all(b - a > -1e-10 for a, b in itertools.pairwise(bounds))
    # a noise variance that is certain and wrong has no gradient, and a sweep to leave it by
    model.noise_logits.data = torch.tensor([800.0, 0.0, 0.0, 0.0, 0.0]).double()
    stuck = model.bound_value()
    DirectNetworkELBO().evidence(model, x, y).value.backward()
    assert float(model.noise_logits.grad.abs().max()) == 0.0
    assert model.next_round(x, y, 0.0, generator=torch.Generator())
    assert model.bound_value() > stuck + 0.1
    model.restarts = 0
    assert not model.next_round(x, y, 0.0, generator=torch.Generator())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda: made(*data(), hidden=(0,)), r"hidden=\(0,\): expected a list"),
        (lambda: made(*data(), hidden=3), "hidden=3: expected a list"),
        (lambda: made(*data(), hidden=["x"]), "expected a list of whole numbers of at least 1"),
        (lambda: made(*data(), noise=0.1), "noise= is of class float; give a gpx.models.NoiseGrid"),
        (lambda: made(*data(), starts=0), "starts=0"),
        (lambda: made(*data(), hidden=(8, 8, 8)), "terms, and the bound is a sum over all pairs"),
        (lambda: made(*data()).sparsity(), "counts zeros"),
        (
            lambda: DirectNetworkELBO().evidence(
                DirectNetwork(likelihood=Bernoulli(), num_inputs=2), *data()
            ),
            "needs the Gaussian likelihood, got Bernoulli",
        ),
    ],
)
def test_invalid_setups_are_refused(broken, words):
    with pytest.raises(ConfigError, match=words) as caught:
        broken()
    assert "\n" not in str(caught.value)


def test_starts_are_drawn_from_the_prior_that_was_given():
    x, y = data(d=4)
    weights = WeightGrid(values=[-1.0, 0.0, 1.0], probabilities=[0.0005, 0.999, 0.0005])
    model = DirectNetwork(
        likelihood=Gaussian(0.3), num_inputs=4, hidden=(3,), weights=weights, bias=False, starts=1
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    assert len(model.logits) == 15
    # from N(0, 1), about nine of the 15 would be nearer to -1 or 1 than to 0
    narrow = model.logits.detach() - weights.log_prior
    assert int((narrow.argmax(1) == 1).sum()) == 15
