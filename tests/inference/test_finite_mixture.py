"""Regression in weight space and function space; evidence as Occam's razor; averages of models."""

import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.inference.finite_mixture import FiniteMixture, gaussian_mixture
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.base.model import Marginals
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.operators import LowRankPlusDiagonal


def exact(lengthscale, outputscale, noise):
    model = ExactGP(
        kernel=RBF(None, lengthscale, outputscale),
        mean=Zero(),
        likelihood=Gaussian(noise, noise_floor=1e-12),
    ).double()
    with torch.no_grad():  # the constructors ran in float32
        model.kernel.lengthscale = torch.tensor(lengthscale).double()
        model.kernel.outputscale = torch.tensor(outputscale).double()
        model.likelihood.noise_variance = torch.tensor(noise).double()
    return model


def test_weight_space_equals_function_space():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *s: torch.randn(*s, generator=generator, dtype=torch.float64)  # noqa: E731
    n, m, noise = 40, 30, 0.3
    phi, y, at = draw(n, m), draw(n), draw(7, m)
    precision = draw(m).exp()
    inverse = phi.mT @ phi / noise + precision.diag()
    covariance = torch.linalg.inv(inverse)
    mean = covariance @ phi.mT @ y / noise
    weight_space = (
        -0.5 * n * math.log(2 * math.pi * noise)
        + 0.5 * precision.log().sum()
        - 0.5 * torch.logdet(inverse)
        - 0.5 * y @ y / noise
        + 0.5 * mean @ inverse @ mean
    )
    scaled = phi / precision.sqrt()
    operator = LowRankPlusDiagonal(scaled, torch.full((n,), noise, dtype=torch.float64))
    fit, logdet = operator.inv_quad_logdet(y.unsqueeze(1), logdet=True)
    function_space = -0.5 * (fit + logdet + n * math.log(2 * math.pi))
    torch.testing.assert_close(function_space.squeeze(), weight_space, rtol=1e-8, atol=0)
    cross = (at / precision.sqrt()) @ scaled.mT
    torch.testing.assert_close(
        cross @ operator.solve(y.unsqueeze(1)).squeeze(1), at @ mean, rtol=1e-8, atol=1e-10
    )
    prior = (at.square() / precision).sum(1)
    explained = (cross.mT * operator.solve(cross.mT)).sum(0)
    torch.testing.assert_close(
        prior - explained, (at @ covariance * at).sum(1), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize(("scale", "want"), [(0.5, -2.2258), (1.0, -1.4189), (1.5, -1.5466)])
def test_evidence_of_one_noise_free_observation(scale, want):
    model = exact(1.0, scale**2, 1e-10)
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert float(ExactMLL().evidence(model, x, y).value.detach()) == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize(("noise", "want"), [(1e-10, 0.0), (0.1, 0.0909)])
def test_variance_at_an_observation(noise, want):
    x = torch.tensor([[10.0]], dtype=torch.float64)
    found = exact(1.0, 1.0, noise).condition(x, torch.ones(1, dtype=torch.float64)).predict(x)
    assert float(found.variance[0]) == pytest.approx(want, abs=1e-4)


def mixture():
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(15, 1, generator=generator, dtype=torch.float64) * 4
    y = torch.sin(2 * x.squeeze(1)) + 0.1 * torch.randn(15, generator=generator).double()
    models = [exact(scale, 1.0, 0.01) for scale in (1.0, 0.1)]
    evidences = torch.stack([ExactMLL().evidence(m, x, y).value.detach() for m in models])
    return models, x, y, evidences


def test_weights_are_normalised_evidences_and_moments_those_of_the_mixture():
    models, x, y, evidences = mixture()
    priors = torch.tensor([0.2, 0.8], dtype=torch.float64).log()
    posteriors = [m.condition(x, y) for m in models]
    found = FiniteMixture(posteriors, evidences, priors)
    raw = (evidences - evidences.max()).exp() * torch.tensor([0.2, 0.8], dtype=torch.float64)
    torch.testing.assert_close(found.weights, raw / raw.sum(), rtol=1e-10, atol=0)
    at = torch.linspace(-1, 5, 9, dtype=torch.float64)[:, None]
    parts = [p.predict(at) for p in posteriors]
    mean = sum(w * p.mean for w, p in zip(found.weights, parts, strict=True))
    second = sum(
        w * (p.variance + p.mean.square()) for w, p in zip(found.weights, parts, strict=True)
    )
    got = found.predict(at)
    torch.testing.assert_close(got.mean, mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.variance, second - mean.square(), rtol=1e-9, atol=1e-10)


def test_drawn_functions_have_the_mixtures_moments():
    models, x, y, _ = mixture()
    even = torch.zeros(2, dtype=torch.float64)
    found = FiniteMixture([m.condition(x, y) for m in models], even)
    at = torch.linspace(-1, 5, 5, dtype=torch.float64)[:, None]
    paths = found.sample_paths(3000, generator=torch.Generator().manual_seed(2))
    want, drawn = found.predict(at), paths(at)
    error = (drawn.mean(0) - want.mean) / (want.variance / 3000).sqrt()
    assert float(error.abs().max()) < 5.0
    torch.testing.assert_close(paths(at[1:3]), drawn[:, 1:3], rtol=1e-9, atol=1e-9)


def test_refusals():
    models, x, y, evidences = mixture()
    posteriors = [m.condition(x, y) for m in models]
    with pytest.raises(ConfigError, match="one evidence per posterior"):
        FiniteMixture(posteriors[:1], evidences)
    with pytest.raises(ConfigError, match="3 priors for 2"):
        FiniteMixture(posteriors, evidences, torch.zeros(3))
    with pytest.raises(ConfigError, match="finite evidence"):
        FiniteMixture(posteriors, torch.full((2,), -torch.inf))


def test_a_mixture_at_no_rows_has_no_densities():
    nothing = torch.zeros(2, 0, dtype=torch.float64)
    law = gaussian_mixture(Marginals(nothing, nothing), nothing)
    assert law.log_prob(nothing[0]).shape == law.mean.shape == (0,)
