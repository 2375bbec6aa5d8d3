"""The predictive log likelihood against its formula, its orderings and its limits."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.errors import ConfigError
from gpx.kernels import Matern52
from gpx.likelihoods import Bernoulli, Gaussian, GaussianOutputs, Poisson
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant, Zero
from gpx.models import SVGP, DeepSVGP
from gpx.objectives import SVGPELBO, PredictiveLogLikelihood, SampledELBO

N, D, M = 30, 2, 6


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def data(likelihood):
    x = torch.rand(N, D, generator=draws(1)).double()
    f = torch.sin(5.0 * x[:, 0]) + x[:, 1]
    y = f + 0.2 * torch.randn(N, generator=draws(2)).double()
    if isinstance(likelihood, GaussianOutputs):
        y = torch.stack([y, 0.5 - y], 1)
        y[3, 0] = y[7, 1] = torch.nan
    if isinstance(likelihood, Bernoulli):
        y = (y - y.median() + 1e-9).sign()
    return x, y.abs().round() if isinstance(likelihood, Poisson) else y


def svgp(likelihood, mean=Zero):
    """With a q(u) that is not at an optimum, so that nothing holds by chance."""
    made = SVGP(
        kernel=Matern52(D, lengthscale=0.4),
        mean=mean(),
        likelihood=likelihood,
        num_inputs=D,
        num_inducing=M,
    ).double()
    x, y = data(likelihood)
    made.initialise(x, y, generator=draws())
    with torch.no_grad():
        for parameter in made.q.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws(3)).double())
    return made, x, y


def test_the_sum_of_predictive_densities_less_the_divergence():
    """From dense algebra: K_zz, K_xz, q(u) as a Gaussian over function values."""
    model, x, y = svgp(Gaussian(0.05), Constant)
    z, k = model.inducing, model.kernel.evaluate
    prior = k(z, z) + 1e-6 * torch.diag_embed(model.kernel.diagonal(z))
    root = torch.linalg.cholesky(prior)
    offset = model.mean(z)
    q_mean, factor = model.q.mean[0], root @ model.q.factor()[0]
    weights = torch.linalg.solve(prior, k(z, x)).mT
    mean = model.mean(x) + weights @ (root @ q_mean)
    spread = model.kernel.diagonal(x) - (weights * k(x, z)).sum(1)
    spread = spread + (weights @ factor).square().sum(1)
    total = spread + model.likelihood.noise_variance
    density = -0.5 * ((2.0 * torch.pi * total).log() + (y - mean).square() / total)
    law = MultivariateNormal(offset + root @ q_mean, factor @ factor.mT)
    kl = torch.distributions.kl_divergence(law, MultivariateNormal(offset, prior))
    for beta in (1.0, 0.3, 0.0):
        found = PredictiveLogLikelihood(N, beta=beta).evidence(model, x, y)
        torch.testing.assert_close(found.value, density.sum() - beta * kl, rtol=1e-6, atol=1e-6)
        assert found.kind == "estimate"
    half = PredictiveLogLikelihood(N).evidence(model, x[: N // 2], y[: N // 2]).value
    want = 2.0 * density[: N // 2].sum() - kl
    torch.testing.assert_close(half, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "likelihood", [lambda: Gaussian(0.05), lambda: GaussianOutputs(2, 0.05), Bernoulli, Poisson]
)
def test_it_is_above_the_lower_bound_and_full_batches_are_streamed(likelihood):
    """log E p >= E log p, and they differ by what they are of the noise-free function."""
    model, x, y = svgp(likelihood())
    objective = PredictiveLogLikelihood(N)
    found = objective.evidence(model, x, y).value
    assert found > SVGPELBO(N).evidence(model, x, y).value + 0.1
    streamed = objective.full_evidence(model, x, y, batch_size=7)
    torch.testing.assert_close(streamed.value, found, rtol=1e-10, atol=1e-8)
    assert streamed.facts["jitter"] == 1e-6


def test_with_much_noise_it_is_the_lower_bound():
    """The variance of f is then nothing beside the noise: 2 log E p - 2 E log p ~ (v / s)^2."""
    model, x, y = svgp(Gaussian(1e5))
    found = PredictiveLogLikelihood(N).evidence(model, x, y).value
    torch.testing.assert_close(found, SVGPELBO(N).evidence(model, x, y).value, rtol=0, atol=1e-6)


def test_known_noise_is_added_to_the_predictive_variance():
    model, x, y = svgp(Gaussian(0.05))
    known = 0.01 + torch.rand(N, generator=draws(4)).double()
    model.know_noise(known)
    found = PredictiveLogLikelihood(N).evidence(model, x, y).parts["fit"]
    mean, variance = model.marginals(x)
    law = torch.distributions.Normal(
        mean, (variance + known + model.likelihood.noise_variance).sqrt()
    )
    torch.testing.assert_close(found, law.log_prob(y).sum().detach())


def deep(depth=2, likelihood=None):
    made = DeepSVGP(
        kernel=Matern52(D, lengthscale=0.5),
        mean=Zero(),
        likelihood=likelihood or Gaussian(0.05),
        num_inputs=D,
        depth=depth,
        num_inducing=M,
    ).double()
    x, y = data(made.likelihood)
    made.initialise(x, y, generator=draws())
    with torch.no_grad():
        for layer in made.layers:
            layer.q.mean.add_(0.3 * torch.randn(layer.q.mean.shape, generator=draws(3)).double())
    return made, x, y


def test_densities_of_draws_of_the_lower_layers_are_averaged():
    model, x, y = deep()
    found = PredictiveLogLikelihood(N, 5).evidence(model, x, y, generator=draws(6))
    mean, variance = model.sample_marginals(x, 5, generator=draws(6))
    each = (
        torch.distributions.Normal(mean, (variance + model.likelihood.noise_variance).sqrt())
        .log_prob(y)
        .exp()
    )
    torch.testing.assert_close(found.parts["fit"], each.mean(0).log().sum().detach())
    torch.testing.assert_close(found.value, found.parts["fit"] - model.kl())
    assert model.kl() > 0.1


def test_densities_of_draws_of_the_functions_are_averaged():
    model, x, y = deep()
    objective = PredictiveLogLikelihood(N, 5, expected=False)
    found = objective.evidence(model, x, y, generator=draws(6))
    each = model.likelihood.log_prob(y, model.sample_latents(x, 5, generator=draws(6))).exp()
    torch.testing.assert_close(found.parts["fit"], each.mean(0).log().sum().detach())


@pytest.mark.parametrize("expected", [True, False])
def test_a_row_of_weight_three_counts_as_three_rows_of_the_mean_over_draws(expected):
    """And not with the third power of the density in every draw, which is more."""
    model, x, y = deep(likelihood=Poisson())
    objective = PredictiveLogLikelihood(N, 5, expected=expected)
    alike = RowNoise(torch.zeros(N).double(), torch.full((N,), 1.0 / 3.0).double())
    each = [
        objective.evidence(model, x, y, generator=draws(6), noise=noise).parts["fit"]
        for noise in (None, alike)
    ]
    torch.testing.assert_close(each[1], 3.0 * each[0])


def test_a_deep_model_of_one_layer_is_the_shallow_one():
    model, x, y = deep(depth=1)
    flat = SVGP(
        kernel=Matern52(D, lengthscale=0.5),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=D,
        num_inducing=M,
    ).double()
    flat.place(model.layers[0].inducing.detach())
    flat.kernel.load_state_dict(model.layers[0].kernel.state_dict())
    flat.likelihood.load_state_dict(model.likelihood.state_dict())
    flat.q.load_state_dict(model.layers[0].q.state_dict())
    objective = PredictiveLogLikelihood(N, 3)
    found = objective.evidence(model, x, y, generator=draws())
    torch.testing.assert_close(found.value, objective.evidence(flat, x, y).value)


def test_predictions_are_those_of_the_trained_q():
    """Of the lower bound the best q(u) is known; that of this objective is the trained one."""
    model, x, y = svgp(Gaussian(0.05))
    predicted = PredictiveLogLikelihood(N).for_prediction(model, x, y).condition(x, y).predict(x)
    torch.testing.assert_close(predicted.mean, model.marginals(x).mean.detach())
    best = SVGPELBO(N).for_prediction(model, x, y).condition(x, y).predict(x)
    assert (predicted.mean - best.mean).abs().max() > 0.01


def test_which_steps_are_recorded_and_shared():
    objective = PredictiveLogLikelihood(N)
    normal, x, _ = svgp(Gaussian(0.05))
    counts, _, _ = svgp(Poisson())
    layers, _, _ = deep()
    assert objective.recordable(normal)
    assert objective.recordable(layers)
    assert not objective.recordable(counts)
    assert objective.step_draws(normal, x, generator=draws()) == ()
    assert len(objective.step_draws(layers, x, generator=draws())) == 1
    assert objective.shared_for(normal, x) == "batch"
    assert objective.shared_for(layers, x) is None


@pytest.mark.parametrize("beta", [-0.1, float("nan"), float("inf")])
def test_a_wrong_weight_is_refused(beta):
    with pytest.raises(ConfigError, match="beta="):
        PredictiveLogLikelihood(N, beta=beta)


def test_the_lower_bound_of_draws_is_unchanged_by_its_new_parts():
    """SampledELBO of marginals, from its formula."""
    model, x, y = deep()
    found = SampledELBO(N, 4, expected=True).evidence(model, x, y, generator=draws(5)).value
    mean, variance = model.sample_marginals(x, 4, generator=draws(5))
    each = model.likelihood.expected_log_prob(y, mean, variance)
    torch.testing.assert_close(found, each.mean(0).sum() - model.kl())
