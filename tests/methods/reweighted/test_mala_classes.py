"""Latent targets of classes: their sums, and the posterior they lead to, by quadrature."""

import math
from functools import partial

import pytest
import torch
from torch.special import log_ndtr, ndtr

from gpx.bases import GridFeatures, RandomFourier
from gpx.bases.fixed_functions import sufficient_statistics
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli
from gpx.means import Constant, Zero
from gpx.methods.reweighted.mala import redraw_latents
from gpx.models import Reweighted, WeightPriors
from gpx.objectives import ReweightedEvidence
from gpx.sampling import effective_sample_size
from gpx.training import MALA


def problem(n=10, m=2, mean=None, **options):
    generator = torch.Generator().manual_seed(3)
    x = 2.0 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    y = torch.where(
        (1.3 * x[:, 0]).sin() + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64) > 0,
        1.0,
        -1.0,
    ).double()
    model = Reweighted(
        kernel=RBF(1, lengthscale=1.0, outputscale=2.0),
        mean=Zero() if mean is None else Constant(mean),
        likelihood=Bernoulli("probit"),
        basis=RandomFourier,
        num_basis=m,
        priors=WeightPriors(),
        **options,
    ).double()
    model.initialise(x, y, generator=generator)
    return model, x, y


def run(model, x, y, seed=0, **options):
    chain = MALA(**options)
    chain.check(model, len(y))
    chain.bind(model, x, 0)
    generator = torch.Generator().manual_seed(seed)
    for step in range(chain.max_steps(10**6)):
        chain.step(step, x, y, generator=generator)
    return chain


@pytest.mark.parametrize("structure", ["diagonal", "orthogonal", "householder"])
@pytest.mark.parametrize(("n", "m"), [(40, 10), (12, 24)])
def test_sums_follow_the_updates(structure, n, m):
    """A thousand of them, for one of the structures. Labels are signs of what the sums are of."""
    model, x, y = problem(n, m, mean=0.3, structure=structure)
    generator = torch.Generator().manual_seed(0)
    position = model.position
    seen = torch.zeros(n, dtype=torch.bool)
    for _ in range(1000 if structure == "diagonal" and m < n else 60):
        before = model.latents.clone()
        redraw_latents(model, position, x, y, size=5, generator=generator)
        moved = model.latents != before
        assert int(moved.sum()) == 5
        seen |= moved
    assert bool(seen.all())
    assert torch.equal(torch.sign(model.latents + model.mean(x).detach()), y)
    want = sufficient_statistics(model.basis, x, model.latents)
    torch.testing.assert_close(model.statistics.projected, want.projected, rtol=0, atol=1e-8)
    torch.testing.assert_close(model.statistics.squared, want.squared, rtol=0, atol=1e-8)
    # what is kept between updates is what would be computed afresh
    kept = model.form.weights(position[:-1], position[-1])
    model.statistics = want
    fresh = model.form.weights(position[:-1], position[-1])
    torch.testing.assert_close(kept.mean(), fresh.mean(), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(kept.fit, fresh.fit, rtol=1e-7, atol=1e-7)


def quadrature(model, x, y, at):
    """E w (2,), E log g (2,) and P(y = 1) at ``at``, by sums over grids of log g and of w."""
    phi, test = model.basis(x).detach(), model.basis(at).detach()
    prior = model.hyper_priors.weight
    logs = torch.linspace(-9.0, 12.0, 400, dtype=torch.float64)
    mass = -0.5 * (logs - prior.log_mean).square() / prior.log_variance
    w = torch.linspace(-25.0, 25.0, 601, dtype=torch.float64)
    joint = mass - 0.5 * (w[:, None].square() * (-logs).exp() + logs)  # (w, log g)
    marginal = joint.logsumexp(1)
    expected = joint.softmax(1) @ logs  # E[log g | w]
    pairs = torch.cartesian_prod(w, w)
    value = log_ndtr(y * (pairs @ phi.mT)).sum(1)
    value = value + (marginal[:, None] + marginal).flatten()
    share = value.softmax(0)
    table = share.view(len(w), len(w))
    logs_mean = torch.stack([table.sum(1) @ expected, table.sum(0) @ expected])
    return share @ pairs, logs_mean, share @ ndtr(pairs @ test.mT)


@pytest.mark.parametrize("latents", [1000, 4])
def test_posterior_of_two_weights_against_quadrature(latents):
    """Weights, their prior variances and probabilities of ten rows; all rows at a time, and four.

    Seven means within four standard errors of the chain: false alarm below 5e-4.
    """
    model, x, y = problem()
    at = torch.tensor([[-3.0], [0.4], [2.0]], dtype=torch.float64)
    weights, logs, probabilities = quadrature(model, x, y, at)
    thin, count = (2, 500) if latents > 10 else (4, 350)
    run(model, x, y, burn_in=150, iterations=count * thin, thin=thin, latents=latents)
    posterior = model.condition(x[:0], y[:0])
    samples = [w.mean() for w in posterior.weights()]
    parts = posterior.components(at)
    found = torch.cat(
        [
            torch.stack(samples),
            model.samples[:, :-1],
            model.likelihood.predictive(*parts).probs,
        ],
        1,
    )
    want = torch.cat([weights, logs, probabilities])
    sizes = effective_sample_size(found)
    assert bool((sizes > 15).all())
    errors = (found.mean(0) - want).abs() / (found.std(0) / sizes.sqrt())
    assert bool((errors < 4.0).all()), errors
    assert float((found.std(0) / sizes.sqrt())[-3:].max()) < 0.03
    law = posterior.predictive(at, model.likelihood)
    torch.testing.assert_close(law.probs, found[:, -3:].mean(0), rtol=1e-12, atol=0)
    assert bool((model.samples[:, -1] == 0.0).all())  # the noise of latent targets


def test_every_sample_keeps_its_own_latent_targets_through_a_checkpoint():
    model, x, y = problem(30, 8)
    chain = run(model, x, y, burn_in=20, iterations=30, thin=10)
    assert model.latent_sums.shape == (3, 9)
    sums = model.latent_sums[2]
    torch.testing.assert_close(sums[:-1], model.statistics.projected, rtol=0, atol=0)
    assert not torch.equal(model.latent_sums[0], sums)
    posterior = model.condition(x, y)
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    found, want = (p.predictive(x, model.likelihood).probs for p in (again, posterior))
    assert torch.equal(found, want)
    facts = chain.final_evidence(x, y, generator=torch.Generator()).facts
    assert facts["evidence_of"] == "latent targets"
    assert model.hyper_priors.noise is None
    median = Bernoulli("probit", probability="median")
    moments = posterior.predict(x)
    torch.testing.assert_close(
        posterior.predictive(x, median).probs, ndtr(moments.mean), rtol=1e-9, atol=1e-15
    )


def test_a_chain_goes_on_to_the_bit():
    options = {"burn_in": 10, "iterations": 20, "thin": 5}
    whole, x, y = problem(30, 8)
    run(whole, x, y, **options)
    first, _, _ = problem(30, 8)
    second, _, _ = problem(30, 8)
    generator = torch.Generator().manual_seed(0)
    chain = MALA(**options)
    chain.bind(first, x, 0)
    for step in range(17):
        chain.step(step, x, y, generator=generator)
    second.load_state_dict(first.state_dict())
    again = MALA(**options)
    again.load_state_dict(chain.state_dict())
    again.bind(second, x, 0)
    again.max_steps(10**6)
    for step in range(17, 30):
        again.step(step, x, y, generator=generator)
    assert torch.equal(whole.samples, second.samples)
    assert torch.equal(whole.latent_sums, second.latent_sums)


def test_the_outputscale_of_eigenfunctions_is_in_units_of_the_latent_noise():
    """A least-squares fit to the labels gives the ratio of the two, which the basis takes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    y = torch.where((2.0 * x).sin().sum(1) > 0.0, 1.0, -1.0).double()
    grid = partial(GridFeatures, num_inputs=2)
    options = {"basis": grid, "num_basis": 30, "priors": WeightPriors()}
    model = Reweighted(
        kernel=RBF(2), mean=Zero(), likelihood=Bernoulli("probit"), **options
    ).double()
    model.initialise(x, y, generator=generator)
    explained = float((model.basis(x).detach().square().sum(1)).mean())
    assert 1.0 < explained < 30.0  # of a latent noise of one: labels follow f to within few errors
    want = sufficient_statistics(model.basis, x, y)
    torch.testing.assert_close(model.statistics.gram, want.gram, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.statistics.projected, want.projected, rtol=1e-9, atol=1e-9)
    assert math.isfinite(float(model.position.sum()))


def test_invalid_setups_are_refused():
    model, x, y = problem()
    common = {"kernel": RBF(), "mean": Zero(), "basis": RandomFourier, "priors": WeightPriors()}
    with pytest.raises(ConfigError, match=r"it needs likelihood=Bernoulli\(link=probit\)"):
        Reweighted(**common, likelihood=Bernoulli())
    with pytest.raises(ConfigError, match="it needs inference=type1"):
        Reweighted(**common, likelihood=Bernoulli("probit"), inference="type2")
    with pytest.raises(ConfigError, match="cannot be added or removed"):
        model.add_rows(x, y)
    with pytest.raises(ConfigError, match="no closed form"):
        ReweightedEvidence().evidence(model, x, y)
    with pytest.raises(ConfigError, match="latents=0 must be at least 1"):
        MALA(latents=0)
