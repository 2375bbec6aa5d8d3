"""Posteriors of Laplace's approximation: their cached factors follow their state."""

import pytest
import torch
from class_problems import parts, points

from gpx.errors import NotAvailable
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Poisson, Softmax
from gpx.means import Zero
from gpx.models import VGP, ExpectationPropagationGP, LaplaceGP, SampledGP
from gpx.objectives import LaplaceEvidence
from gpx.training import EllipticalSlice


def test_another_state_and_another_precision_are_factorised_anew():
    x, y = points(20)
    whole, half = (
        LaplaceGP(**parts(Bernoulli())).double().condition(x[:n], y[:n]) for n in (20, 10)
    )
    want = whole.predict(x)
    half.predict(x)
    half.load_state_dict(whole.state_dict())
    for found, expected in zip(half.predict(x), want, strict=True):
        assert torch.equal(found, expected)
    fresh = whole.float()
    again = LaplaceGP(**parts(Bernoulli())).float().new_posterior()
    again.load_state_dict(fresh.state_dict())
    assert torch.equal(fresh.predict(x.float()).variance, again.predict(x.float()).variance)


def counts(average):
    """Inputs (100, 1), counts and another 20 inputs, float64."""
    x = torch.linspace(0.0, 1.0, 100, dtype=torch.float64)[:, None]
    y = (average * (0.5 * (6.0 * x[:, 0]).sin()).exp()).round()
    return x, y, torch.linspace(0.013, 0.97, 20, dtype=torch.float64)[:, None]


def made(model, dtype):
    return model(
        kernel=RBF(lengthscale=0.3, outputscale=2.0), mean=Zero(), likelihood=Poisson()
    ).to(dtype)


@pytest.mark.parametrize("average", [200.0, 1e5])
def test_large_counts_have_the_same_posterior_and_evidence_in_single_precision(average):
    """The kernel matrix of float32 entries has eigenvalues below zero, by more than 1 / counts."""
    x, y, t = counts(average)
    (mean, variance), (single_mean, single_variance) = (
        made(LaplaceGP, dtype).condition(x.to(dtype), y.to(dtype)).predict(t.to(dtype))
        for dtype in (torch.float64, torch.float32)
    )
    gap = (single_mean.double() - mean) / variance.sqrt()
    assert gap.abs().max() < 1e-2
    torch.testing.assert_close(single_variance.double(), variance, rtol=1e-5, atol=0.0)
    values = [
        LaplaceEvidence().evidence(made(LaplaceGP, dtype), x.to(dtype), y.to(dtype)).value
        for dtype in (torch.float64, torch.float32)
    ]
    torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=0.0)


def test_weights_keep_every_digit_where_the_posterior_is_cast():
    x, y, t = counts(1e5)
    narrow = made(LaplaceGP, torch.float32)
    narrow.kernel.lengthscale = 0.29  # one that is not changed is restored in full precision
    posterior = narrow.condition(x.float(), y.float())
    weights, want = posterior.weights.clone(), posterior.predict(t.float())
    loaded = narrow.new_posterior()
    loaded.load_state_dict(posterior.state_dict())
    for cast in (loaded.to(torch.float32), loaded.double().float()):
        assert torch.equal(cast.weights, weights)
        found = cast.predict(t.float())
        assert torch.equal(found.mean, want.mean)
        assert torch.equal(found.variance, want.variance)
    assert loaded.inputs.dtype == torch.float32


def test_chains_around_the_posterior_take_large_counts_in_single_precision():
    x, y, t = (part.float() for part in counts(1e3))
    model = made(SampledGP, torch.float32)
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    chains = EllipticalSlice(chains=2, burn_in=1, iterations=2, thin=1)
    chains.bind(model, x, 0)
    for step in range(3):
        chains.step(step, x, y, generator=torch.Generator().manual_seed(step))
    found = model.condition(x, y).predict(t)
    want = (0.5 * (6.0 * t[:, 0]).sin()).exp() * 1e3
    torch.testing.assert_close(found.mean, want.log(), rtol=0.0, atol=0.1)


@pytest.mark.parametrize("model", [LaplaceGP, VGP, ExpectationPropagationGP])
def test_the_joint_covariance_is_that_of_the_gaussian_sites(model):
    x, y = points(12)
    posterior = model(**parts(Bernoulli())).double().condition(x, y)
    new = x[:4] + 0.3
    kernel, cross = posterior.kernel.evaluate(x), posterior.kernel.evaluate(new, x)
    noisy = kernel + torch.diag(1.0 / posterior.information)
    want = posterior.kernel.evaluate(new) - cross @ torch.linalg.solve(noisy, cross.mT)
    torch.testing.assert_close(posterior.joint_covariance(new), want)
    draws = posterior.sample(new, 20_000, generator=torch.Generator().manual_seed(0))
    # four standard errors of 20,000 draws
    torch.testing.assert_close(draws.mT.cov(), want, rtol=0.0, atol=0.04 * float(want.max()))


def test_several_latent_functions_have_no_joint_covariance():
    x, y = points(9)
    labels = (y > 0).double()
    posterior = LaplaceGP(**parts(Softmax(3))).double().condition(x, labels)
    with pytest.raises(NotAvailable, match="has no joint covariance in closed form"):
        posterior.joint_covariance(x)
