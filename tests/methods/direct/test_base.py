"""Discrete weights over any basis: sweeps, annealing, parts of the bound, records."""

import pytest
import torch
from discrete_hypotheses import hypotheses, log_likelihood

from gpx.bases import LaplacianEigenfunctions, RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import Direct, NoiseGrid, WeightGrid
from gpx.objectives import DirectELBO

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NOISE = NoiseGrid(values=[0.02, 0.1, 0.6], probabilities=[1.0, 3.0, 2.0])


def mixture_of_priors():
    return WeightGrid(5, 2.0, widths=[0.3, 1.0, 2.0], shares=[1.0, 2.0, 3.0])


def model(n=12, *, num_basis=6, basis=RandomFourier, lengthscale=0.7, **options):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, generator=draws, dtype=torch.float64) * 4.0 - 2.0
    y = (2.0 * x[:, 0]).sin() + 0.2 * torch.randn(n, generator=draws, dtype=torch.float64)
    made = Direct(
        kernel=RBF(1, lengthscale=lengthscale, outputscale=1.3),
        mean=Constant(0.1),
        likelihood=Gaussian(0.05),
        basis=basis,
        num_basis=num_basis,
        **options,
    ).double()
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        # in the place of the annealed start, whose weights may be all but certain
        made.logits.copy_(torch.randn(made.logits.shape, generator=draws, dtype=torch.float64))
    return made, x, y


def expected_error(made, q):
    mean = q @ made.values()
    variance = q @ made.values() ** 2 - mean**2
    gram, projected, squared = made.gram, made.projected, made.totals[0]
    return squared - 2.0 * mean @ projected + mean @ gram @ mean + gram.diagonal() @ variance


def best_noise_logits(made, q):
    values = made.noise.values
    error = expected_error(made, q)
    return made.noise.log_prior - 0.5 * (made.totals[1] * values.log() + error / values)


def one_by_one(made, logits, precision):
    """q_j proportional to p exp(tau ((c_j - (A s)_j + A_jj s_j) w - A_jj w^2 / 2)), j by j."""
    values, logits = made.values(), logits.clone()
    prior = made.effective_log_prior(logits.softmax(-1))[0]
    for j in range(len(logits)):
        means = logits.softmax(-1) @ values
        own = made.gram[j, j]
        left = made.projected[j] - made.gram[j] @ means + own * means[j]
        logits[j] = prior + precision * (left * values - 0.5 * own * values**2)
    return logits


@pytest.mark.parametrize("weights", [lambda: WeightGrid(5, 2.0), mixture_of_priors])
@pytest.mark.parametrize("noise", [None, NOISE])
def test_a_sweep_gives_the_noise_and_every_weight_its_best_distribution(weights, noise):
    made, _, _ = model(weights=weights(), noise=noise)
    before = made.logits.detach().clone()
    precision = 1.0 / made.likelihood.noise_variance.detach()
    if noise is not None:
        wanted = best_noise_logits(made, before.softmax(-1))
        precision = wanted.softmax(0) @ (1.0 / noise.values)
    made.sweep()
    if noise is not None:
        torch.testing.assert_close(made.noise_logits.detach(), wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        made.logits.detach(), one_by_one(made, before, precision), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("weights", [lambda: WeightGrid(5, 2.0), mixture_of_priors])
@pytest.mark.parametrize("noise", [None, NOISE])
def test_annealing_is_two_sweeps_at_every_level_of_the_precision(weights, noise):
    made, _, _ = model(weights=weights(), noise=noise)
    logits = made.log_prior().expand(6, -1).clone()
    torch.testing.assert_close(made.annealed_logits(0), logits, **EXACT)
    for share in (1e-4, 1e-2, 1.0):
        for _ in range(2):
            precision = 1.0 / made.likelihood.noise_variance.detach()
            if noise is not None:
                wanted = best_noise_logits(made, logits.softmax(-1))
                precision = wanted.softmax(0) @ (1.0 / noise.values)
            logits = one_by_one(made, logits, share * precision)
    close = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(made.annealed_logits(3), logits, **close)
    if noise is not None:
        torch.testing.assert_close(made.noise_logits.detach(), wanted, **close)


@pytest.mark.parametrize("weights", [lambda: WeightGrid(5, 2.0), mixture_of_priors])
def test_the_parts_add_up_to_the_bound_and_say_what_they_are(weights):
    made, x, y = model(num_basis=4, weights=weights(), noise=NOISE)
    found = DirectELBO().evidence(made, x, y)
    parts = {name: part.detach() for name, part in found.parts.items()}
    torch.testing.assert_close(sum(parts.values()), found.value.detach(), **EXACT)
    with torch.no_grad():
        log_q = made.logits.log_softmax(-1)
        each, log_mass = hypotheses(log_q, made.values())
        noise = made.noise_logits.softmax(0)
        features, residual = made.basis(x) * made.scale, y - made.mean(x)
        fit = sum(
            share * (log_mass.exp() @ log_likelihood(features, residual, each, float(variance)))
            for share, variance in zip(noise, made.noise.values, strict=True)
        )
        torch.testing.assert_close(parts["fit"] + parts["constant"], fit, **EXACT)
        grid = made.weights
        of_priors = grid.log_shares + (log_q.exp() @ grid.log_components.mT).sum(0)
        want = of_priors.logsumexp(0) - (log_q.exp() * log_q).sum()
        torch.testing.assert_close(parts["weights"], want, **EXACT)


def test_a_noise_variance_with_a_posterior_is_the_one_that_predictions_have():
    made, x, y = model(noise=NOISE)
    made.noise_logits.data = torch.tensor([0.3, -0.2, 0.9]).double()
    posterior = made.condition(x, y)
    law, latent = posterior.predictive(x, made.likelihood), posterior.predict(x)
    noise = made.noise_logits.detach().softmax(0) @ NOISE.values
    torch.testing.assert_close(law.variance, latent.variance + noise, **EXACT)
    # a grid of one value is that value, whatever the likelihood has
    made, x, y = model(noise=NoiseGrid(values=[0.7]))
    posterior = made.condition(x, y)
    law, latent = posterior.predictive(x, made.likelihood), posterior.predict(x)
    torch.testing.assert_close(law.variance, latent.variance + 0.7, **EXACT)


def test_parameter_groups_follow_noise_and_learned_values():
    groups = {
        (noise is not None, learn): model(noise=noise, learn_values=learn)[0].parameter_groups()
        for noise in (None, NOISE)
        for learn in (False, True)
    }
    for (noise, learn), found in groups.items():
        assert len(found["variational"]) == 1 + noise
        assert ("hyperparameters" in found) == learn


@pytest.mark.parametrize("learn", [False, True])
def test_a_uniform_prior_stays_uniform(learn):
    made, _, _ = model(weights=WeightGrid(5, 2.0, prior="uniform"), learn_values=learn)
    torch.testing.assert_close(
        made.log_prior().exp(), torch.full((5,), 0.2, dtype=torch.float64), **EXACT
    )


def test_without_zero_there_is_no_sparsity_in_the_records():
    made, x, y = model(weights=WeightGrid(4, 2.0, sparse=False))
    posterior = made.condition(x, y)
    assert posterior.zero is None
    assert posterior.sparsity() is None
    assert posterior.facts() == {"num_basis": 6}
    assert "sparsity" not in made.facts()
    made, x, y = model(weights=WeightGrid(5, 2.0))
    assert made.condition(x, y).facts() == {"num_basis": 6, "sparsity": made.sparsity()}
    assert made.facts()["sparsity"] == made.sparsity()


def test_the_note_says_how_many_values_there_are():
    made, _, _ = model(weights=WeightGrid(5, 2.0), noise=NOISE)
    assert made.note.endswith("; weights of 5 values, noise variances of 3")


def test_functions_that_hardly_stand_for_the_kernel_are_warned_of():
    def functions(kernel, num_basis):
        return LaplacianEigenfunctions(kernel, num_basis, 1)

    with pytest.warns(UserWarning, match="take a larger boundary"):
        model(basis=functions, lengthscale=4.0)
