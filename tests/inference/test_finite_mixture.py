"""Regression in weight space and function space; evidence as Occam's razor; mixtures."""

import math

import pytest
import torch

from gpx.inference.finite_mixture import gaussian_mixture, mixture_moments
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.base.posterior import Marginals
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


@pytest.mark.parametrize("by_row", [False, True])
def test_a_mixture_has_the_moments_and_the_density_of_its_components(by_row):
    draws = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 5, generator=draws, dtype=torch.float64)
    parts = Marginals(mean, torch.rand(3, 5, generator=draws, dtype=torch.float64) + 0.1)
    weights = torch.rand(3, 5 if by_row else 1, generator=draws, dtype=torch.float64)
    weights = (weights / weights.sum(0)).expand(3, 5)
    given = weights if by_row else weights[:, 0]
    found = mixture_moments(parts, given)
    want = (weights * parts.mean).sum(0)
    second = (weights * (parts.variance + parts.mean.square())).sum(0)
    torch.testing.assert_close(found.mean, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.variance, second - want.square(), rtol=1e-9, atol=1e-12)
    law, y = gaussian_mixture(parts, given), torch.randn(5, generator=draws).double()
    normals = torch.distributions.Normal(parts.mean, parts.variance.sqrt())
    density = (weights * normals.log_prob(y).exp()).sum(0)
    torch.testing.assert_close(law.log_prob(y).exp(), density, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(law.mean, found.mean)
    even = torch.full((3,), 1.0 / 3.0, dtype=torch.float64)
    torch.testing.assert_close(mixture_moments(parts), mixture_moments(parts, even))


def test_a_mixture_at_no_rows_has_no_densities():
    nothing = torch.zeros(2, 0, dtype=torch.float64)
    law = gaussian_mixture(Marginals(nothing, nothing), nothing)
    assert law.log_prob(nothing[0]).shape == law.mean.shape == (0,)
