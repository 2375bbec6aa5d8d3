"""Laws of targets of mean exp(f) for latents so wide that no fixed nodes reach their far tail."""

import copy

import pytest
import torch

from gpx.likelihoods import Gamma, NegativeBinomial, Poisson
from gpx.likelihoods.quantiles import cdf, quantile, select_rows

LIKELIHOODS = {
    "poisson": (Poisson, 1.0, 0.0),
    "negative_binomial": (lambda: NegativeBinomial(0.4), 1.0, 0.4),
    "gamma": (lambda: Gamma(2.5), 0.0, 0.4),
}
MEAN = torch.tensor([-1.0, 0.5, 2.0, 0.0, 1.0]).double()
VARIANCE = torch.tensor([0.0, 0.3, 6.0, 15.0, 30.0]).double()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_moments_are_closed_forms_for_any_latent_variance(name):
    """20 nodes gave a half of the variance at 15, and a thousandth at 30."""
    make, single, square = LIKELIHOODS[name]
    mean = MEAN.clone().requires_grad_()
    law = make().double().predictive(mean, VARIANCE)
    first, second = (MEAN + 0.5 * VARIANCE).exp(), (2.0 * MEAN + 2.0 * VARIANCE).exp()
    want = single * first + (1.0 + square) * second - first.square()
    torch.testing.assert_close(law.mean.detach(), first, rtol=1e-6, atol=0)
    torch.testing.assert_close(law.variance.detach(), want, rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(law.mean.sum(), mean)
    torch.testing.assert_close(slope, first, rtol=1e-6, atol=0)
    some = select_rows(law, torch.tensor([3, 1]))
    torch.testing.assert_close(some.variance.detach(), want[[3, 1]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_quantiles_are_those_of_the_distribution_function(name):
    with torch.no_grad():
        law = LIKELIHOODS[name][0]().double().predictive(MEAN, VARIANCE)
        for q in (0.025, 0.975):
            at = quantile(law, q)
            assert (cdf(law, at * (1.0 + 1e-6)) >= q - 1e-9).all()
            less = at - 1.0 if name != "gamma" else at * (1.0 - 1e-6)
            assert (cdf(law, less) < q).all()
    assert copy.deepcopy(law).stddev.isfinite().all()
