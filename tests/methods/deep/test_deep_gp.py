"""Deep Gaussian processes: the exact posterior of one layer, limits, refusals."""

import copy

import pytest
import torch
from draws import draws
from torch import nn
from torch.distributions import MultivariateNormal

from gpx.errors import ConfigError
from gpx.kernels import RBF, ArcCosine
from gpx.likelihoods import Bernoulli, Gaussian, Laplace, MixedOutputs, Poisson, Softmax, StudentT
from gpx.methods.deep import GPLayer, Network, NetworkModel, draws_of
from gpx.models import DeepGP
from gpx.objectives import SampledELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")

NUM, NOISE = 25, 0.07


def data():
    x = torch.randn(NUM, 2, generator=draws())
    return x, x.sin().sum(1) + 0.3 * torch.randn(NUM, generator=draws(1))


def model(likelihood=None, **options):
    return DeepGP(
        likelihood=Gaussian(NOISE) if likelihood is None else likelihood,
        **{"kernel": RBF(2, [0.9, 1.3], 1.2), "num_inputs": 2, "num_features": 30, "width": 3}
        | {"predict_samples": 8, **options},
    )


def started(**options):
    made = model(**options)
    made.initialise(*data(), generator=draws(2))
    return made


def exact(made, x):
    """Covariance of y: that of the features and the noise."""
    return made.network.head.prior_covariance(x) + NOISE * torch.eye(len(x))


def test_one_layer_has_the_posterior_of_its_features():
    x, y = data()
    made, new = started(depth=1, covariance="full"), torch.randn(7, 2, generator=draws(3))
    features = made.network.head.features
    cross = features(new) @ features(x).mT
    weights = torch.linalg.solve(exact(made, x), cross.mT)
    found = made.condition(x, y).predict(new)
    torch.testing.assert_close(found.mean, y @ weights, rtol=1e-9, atol=1e-9)
    variance = (features(new) @ features(new).mT - cross @ weights).diagonal()
    torch.testing.assert_close(found.variance, variance, rtol=1e-8, atol=1e-9)


def test_the_bound_of_one_layer_at_its_posterior_is_the_evidence():
    """The mean of 2,000 draws within 4.5 standard errors, 0.02 nats: false alarm 1e-5."""
    x, y = data()
    made = started(depth=1, covariance="full")
    evidence = MultivariateNormal(torch.zeros(NUM), exact(made, x)).log_prob(y)
    marginals = made.network.marginals(x)
    fit = made.likelihood.expected_log_prob(y, *(m.squeeze(1) for m in marginals)).sum()
    torch.testing.assert_close(fit - made.kl(), evidence, rtol=1e-10, atol=0.0)
    with torch.no_grad():
        f = made.sample_latents(x, 2000, generator=draws(4))
        each = made.likelihood.log_prob(y, f).sum(1) - made.kl()
        bound = SampledELBO(NUM, 2000).evidence(made, x, y, generator=draws(4)).value
    torch.testing.assert_close(bound, each.mean())
    assert abs(float(bound - evidence)) < 4.5 * float(each.std()) / 2000**0.5


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_bound_is_below_the_evidence_of_the_weights(depth):
    """The evidence of deep models by 500 draws of their hidden layers from the prior."""
    x, y = data()
    made = started(depth=depth)
    with torch.no_grad():
        found = SampledELBO(NUM, 200).evidence(made, x, y, generator=draws(5)).value
        prior = copy.deepcopy(made.network)
        for layer in prior.body.layers:
            layer.weights.mean.zero_()
            layer.weights.log_deviation.zero_()
        each = []
        for number in range(500 if depth > 1 else 1):
            with draws_of(prior, draws(number), shared=True):
                features = prior.head.features(prior.body(x))
            covariance = features @ features.mT + made.likelihood.noise_variance * torch.eye(NUM)
            each.append(MultivariateNormal(torch.zeros(NUM), covariance).log_prob(y))
        evidence = torch.stack(each).logsumexp(0) - torch.tensor(float(len(each))).log()
    assert float(found) < float(evidence)


def test_batches_of_a_partition_average_to_the_bound():
    x, y = data()
    made, objective = started(), SampledELBO(NUM)
    with torch.no_grad():
        for layer in made.layers:
            layer.weights.log_deviation.fill_(-40.0)  # no randomness: any draw is the same
        parts = [
            objective.evidence(made, a, b).value
            for a, b in zip(x.split(5), y.split(5), strict=True)
        ]
        whole = objective.evidence(made, x, y).value
        streamed = objective.full_evidence(made, x, y, batch_size=7).value
    torch.testing.assert_close(torch.stack(parts).mean(), whole, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(streamed, whole, rtol=1e-10, atol=0.0)


def test_without_deviations_it_is_a_network():
    """The deterministic limit: means of the weights between features, skip connections beside."""
    x, y = data()
    made = started(depth=3)
    with torch.no_grad():
        for number, layer in enumerate(made.layers):
            layer.weights.mean.normal_(generator=draws(number))
            layer.weights.log_deviation.fill_(-40.0)
        first, second, last = made.layers
        hidden = first.features(x) @ first.weights.mean
        hidden = second.features(torch.cat([hidden, x], 1)) @ second.weights.mean
        want = last.features(torch.cat([hidden, x], 1)) @ last.weights.mean
        found = made.condition(x, y).predict(x)
    torch.testing.assert_close(found.mean, want.squeeze(1))
    assert float(found.variance.max()) < 1e-12


def test_inputs_reach_every_layer():
    x, _ = data()
    for skip in (True, False):
        made = model(depth=2, skip=skip, warm_start=False)
        with torch.no_grad():
            made.layers[1].weights.mean.normal_(generator=draws())
            made.layers[0].weights.mean.zero_()
            made.layers[0].weights.log_deviation.fill_(-40.0)
            with draws_of(made.network, draws(), shared=True):
                f = made.network(x).squeeze(1)
        assert (float((f - f[0]).abs().max()) > 1e-3) == skip
        assert made.layers[1].num_inputs == (5 if skip else 3)


def test_training_raises_the_bound():
    x, y = data()
    made, objective = started(), SampledELBO(NUM, 20)
    optimiser = torch.optim.Adam(made.parameters(), lr=0.02)
    generator = draws(6)
    before = objective.evidence(made, x, y, generator=draws(9)).value.item()
    for _ in range(100):
        optimiser.zero_grad()
        (-objective.evidence(made, x, y, generator=generator).value).backward()
        optimiser.step()
    assert objective.evidence(made, x, y, generator=draws(9)).value.item() > before + 5.0


LIKELIHOODS = {
    "Bernoulli": (Bernoulli, lambda y: y.sign()),
    "probit": (lambda: Bernoulli("probit"), lambda y: y.sign()),
    "Softmax": (lambda: Softmax(3), lambda y: (y > 0.5).double() + (y > -0.5)),
    "Poisson": (Poisson, lambda y: y.abs().round()),
    "StudentT": (StudentT, lambda y: y),
    "Laplace": (Laplace, lambda y: y),
}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_is_averaged_over_draws(name, depth):
    make, code = LIKELIHOODS[name]
    x, y = data()
    made, targets = model(make(), depth=depth), code(y)
    made.initialise(x, targets, generator=draws())
    with torch.no_grad():
        for number, layer in enumerate(made.layers):
            layer.weights.mean.normal_(generator=draws(number))
    SampledELBO(NUM).evidence(made, x, targets, generator=draws()).value.backward()
    posterior = made.condition(x, targets)
    found = posterior.predictive(x, made.likelihood)
    log_prob = found.log_prob(targets)
    assert log_prob.shape == (NUM,)
    if name == "Softmax":
        torch.testing.assert_close(found.probs.sum(1), torch.ones(NUM))
        return
    parts = posterior.components(x)
    each = [
        made.likelihood.predictive(m, v).log_prob(targets)
        for m, v in zip(parts.mean, parts.variance, strict=True)
    ]
    assert len(each) == (1 if depth == 1 else 8)
    want = torch.stack(each).logsumexp(0) - torch.tensor(float(len(each))).log()
    torch.testing.assert_close(log_prob, want, rtol=1e-8, atol=1e-10)


def test_class_probabilities_are_averaged_and_not_logits():
    x, y = data()
    made = model(Softmax(3), depth=1, covariance="dropout")
    made.initialise(x, (y > 0).double(), generator=draws())
    with torch.no_grad():
        made.network.head.weights.mean.mul_(30.0)
    posterior = made.condition(x, y)
    mean = posterior.components(x).mean
    found = posterior.predictive(x, made.likelihood).probs
    torch.testing.assert_close(found, mean.softmax(-1).mean(0), rtol=1e-10, atol=1e-12)
    assert float((found - mean.mean(0).softmax(-1)).abs().max()) > 0.01


def test_arc_cosine_layers():
    x, y = data()
    made = DeepGP(
        kernel=ArcCosine(1, 2),
        likelihood=Gaussian(NOISE),
        num_inputs=2,
        num_features=31,
        frequencies="learned",
    )
    made.initialise(x, y, generator=draws())
    assert made.layers[1].kernel.order == 1
    assert made.layers[1].kernel.lengthscale.shape == (7,)
    assert bool(SampledELBO(NUM).evidence(made, x, y, generator=draws()).value.isfinite())


def test_later_layers_take_the_lengthscales_of_the_inputs():
    made = model()
    made.layers[0].kernel.lengthscale = torch.tensor([0.4, 5.0])
    made.initialise(*data(), generator=draws())
    want = torch.tensor([1.1, 1.1, 1.1, 0.4, 5.0])
    torch.testing.assert_close(made.layers[1].kernel.lengthscale, want)


@pytest.mark.parametrize("num_inputs", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_layers_that_see_no_inputs_take_none_of_their_lengthscales(width, num_inputs):
    kernel = RBF(num_inputs, 1.1)
    made = model(skip=False, width=width, kernel=kernel, num_inputs=num_inputs)
    made.layers[0].kernel.lengthscale = torch.tensor([0.4, 5.0][:num_inputs])
    made.layers[0].kernel.outputscale = 2.5
    x, y = data()
    made.initialise(x[:, :num_inputs], y, generator=draws())
    later = made.layers[1].kernel
    torch.testing.assert_close(later.lengthscale, torch.full((width,), 1.1))
    torch.testing.assert_close(later.outputscale, torch.tensor(2.5))


def test_layers_that_see_no_inputs_take_the_one_lengthscale_of_all():
    made = model(skip=False, kernel=RBF(lengthscale=1.1))
    made.layers[0].kernel.lengthscale = 0.4
    made.initialise(*data(), generator=draws())
    torch.testing.assert_close(made.layers[1].kernel.lengthscale, torch.tensor(0.4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 0}, "^depth=0 must be at least 1$"),
        ({"width": 0}, "^width=0 must be at least 1$"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"predict_samples": 0}, "predict_samples=0"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        model(**options)


def test_numbers_of_the_bound():
    with pytest.raises(ConfigError, match="num_samples=0 must be at least 1"):
        SampledELBO(5, 0)


def test_the_noise_starts_where_the_rest_explains_the_targets():
    """At the best of the evidence of one layer, on the grid of steps below 4 %; never lower."""
    x, y = data()
    made = model(Gaussian(1e-4), depth=1, covariance="full", num_features=6)
    made.initialise(x, y, generator=draws(2))
    found = made.likelihood.noise_variance.detach()

    def evidence(noise):
        covariance = made.network.head.prior_covariance(x) + noise * torch.eye(NUM)
        return MultivariateNormal(torch.zeros(NUM), covariance).log_prob(y)

    assert float(found) > 1e-3
    assert float(evidence(found)) > float(evidence(found * 1.1))
    assert float(evidence(found)) > float(evidence(found / 1.1))
    made = model(Gaussian(50.0), depth=1)
    made.initialise(x, y, generator=draws(2))
    torch.testing.assert_close(made.likelihood.noise_variance.detach(), torch.tensor(50.0))


def test_fixed_draws_are_made_one_by_one_without_compilation(monkeypatch):
    """50 draws of 10,000 rows held 1.9 GiB together, and 0.06 to 0.5 one by one."""
    model = DeepGP(
        kernel=RBF(), likelihood=Gaussian(0.1), num_inputs=2, num_features=20, predict_samples=4
    )
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    model.initialise(x, x.sum(1).sin(), generator=torch.Generator().manual_seed(1))
    posterior = model.condition(x, x.sum(1).sin())
    want = posterior.components(x)
    posterior.fix()
    together = posterior._all_draws(x, posterior._stacked).squeeze(3)
    monkeypatch.setattr(posterior, "_all_draws", None)
    for found in (posterior.components(x), together):
        torch.testing.assert_close(tuple(found), tuple(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, *({"depth": 1, "frequencies": each} for each in ("learned", "dropout", "point"))],
)
def test_steps_above_what_is_trained_are_refused(options):
    """They have no derivative, so that only the prior would train hidden layers."""
    x, y = data()
    made = model(kernel=ArcCosine(0), **options)
    for train in (
        lambda: made.check(x),
        lambda: SampledELBO(NUM).evidence(made, x, y),
        lambda: made.sample_latents(x),
    ):
        with pytest.raises(ConfigError, match=r"ArcCosine\(0\) are steps.* take order 1 or 2"):
            train()
    assert made.new_posterior().predict(x).mean.shape == (NUM,)  # of a run that is finished


def test_steps_of_the_inputs_alone_are_trained():
    x, y = data()
    made = model(kernel=ArcCosine(0), depth=1)
    made.initialise(x, y, generator=draws(2))
    made.check(x)
    SampledELBO(NUM).evidence(made, x, y, generator=draws()).value.backward()
    assert float(made.layers[0].weights.mean.grad.abs().min()) > 0.0


@pytest.mark.parametrize(
    "options", [{"frequencies": "learned"}, {"frequencies": "dropout"}, {"covariance": "dropout"}]
)
def test_marginals_of_a_random_head_are_independent_draws(options):
    x, _ = data()
    made = started(depth=1, **options)
    if "covariance" in options:
        made.network.head.weights.mean.data.normal_(generator=draws(4))
    else:
        made.network.head.weights.start(torch.ones(30, 1), torch.eye(30))
    with draws_of(made.network, draws(5)):
        found = made.network.sample_marginals(x, 5)
    assert found.mean.shape == found.variance.shape == (5, NUM, 1)
    assert (found.mean.std(0) > 1e-3).all()


def test_outputs_of_mixed_latents_have_the_variance_of_their_draws():
    """Latents of one draw vary together: mixing their total variances would miss that."""
    x, _ = data()
    likelihood = MixedOutputs(2)
    made = model(likelihood, depth=2)
    made.initialise(x, torch.zeros(NUM, 2), generator=draws(2))
    weights = made.network.head.weights
    weights.start(torch.ones(30, 2), 1e6 * torch.eye(30))
    posterior = made.condition(x, torch.zeros(NUM, 2))
    each = posterior.components(x).mean @ likelihood.mixing.mT
    found = posterior.outputs(x, likelihood).variance
    torch.testing.assert_close(found, each.var(0, correction=0), rtol=1e-2, atol=1e-3)


def test_steps_above_trained_layers_of_a_sequence_are_refused():
    trained, fixed = nn.Linear(2, 4), nn.Linear(2, 4).requires_grad_(False)
    for first in (trained, fixed):
        body = nn.Sequential(nn.Sequential(first, nn.Tanh()), GPLayer(ArcCosine(0), 4, 2))
        made = NetworkModel(Network(body, GPLayer(RBF(), 2)), Gaussian(), num_inputs=2)
        if first is trained:
            with pytest.raises(ConfigError, match=r"ArcCosine\(0\) are steps"):
                made.check(data()[0])
        else:
            made.check(data()[0])
