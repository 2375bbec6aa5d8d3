"""The law of targets under an uncertain logarithm of their mean, also far from expectations."""

import copy

import pytest
import torch

from gpx.likelihoods import Gamma, NegativeBinomial, Poisson, smooth_mixture
from gpx.likelihoods.quantiles import cdf, quantile, select_rows

KINDS = {
    "poisson": Poisson,
    "dispersed": lambda: NegativeBinomial(0.2),
    "gamma": lambda: Gamma(3.0),
}
MEAN = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
VARIANCE = torch.tensor([0.05, 0.3, 2.0], dtype=torch.float64)


def integral(likelihood, y, mean, variance):
    """log E p(y | f) (n,) by the trapezoid rule on 60 deviations."""
    steps = torch.linspace(-60.0, 60.0, 600_001, dtype=torch.float64)[:, None]
    logs = likelihood.log_prob(y, mean + variance.sqrt() * steps) - 0.5 * steps.square()
    return torch.logsumexp(logs, 0) - torch.logsumexp(-0.5 * steps.square(), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [1e-2, 1.0, 30.0, 1e4])
def test_the_density_is_exact_however_far_the_target_is(kind, times):
    """At times the expected mean: a mixture over nodes of f is off by hundreds of nats there."""
    likelihood = KINDS[kind]().double()
    y = (times * MEAN.exp()).floor() if kind != "gamma" else times * MEAN.exp()
    with torch.no_grad():
        law = likelihood.predictive(MEAN, VARIANCE)
        expected = integral(likelihood, y, MEAN, VARIANCE)
    torch.testing.assert_close(law.log_prob(y), expected, rtol=1e-8, atol=2e-6)
    if times == 1e4:
        assert float((law.mixture.log_prob(y) - expected).abs().max()) > 100.0


@pytest.mark.parametrize("kind", ["poisson", "dispersed"])
def test_probabilities_of_all_counts_add_to_one_and_to_the_distribution_function(kind):
    with torch.no_grad():
        law = KINDS[kind]().double().predictive(MEAN[:2], VARIANCE[:2])
    counts = torch.arange(1500, dtype=torch.float64)[:, None].expand(-1, 2)
    probabilities = law.log_prob(counts).exp()
    torch.testing.assert_close(probabilities.sum(0), torch.ones(2).double(), rtol=0, atol=1e-6)
    below = probabilities.cumsum(0)
    assert float((below[:60] - cdf(law, counts[:60])).abs().max()) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shrunk", [1.0, 1e-10])
def test_gradients_are_those_of_differences(kind, shrunk):
    """By mean, variance and the likelihood's own parameter, small variances too."""
    likelihood = KINDS[kind]().double()
    own = list(likelihood.parameters())
    y = torch.tensor([4.0, 7.0, 200.0], dtype=torch.float64)

    def density(mean, log_variance, *_):
        return likelihood.predictive(mean, shrunk * log_variance.exp()).log_prob(y).sum()

    inputs = [MEAN.clone(), VARIANCE.log()]
    for tensor in inputs:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(density, [*inputs, *own], atol=1e-5, rtol=1e-4)


def test_blocks_and_broadcasting_change_nothing(monkeypatch):
    with torch.no_grad():
        law = Poisson().double().predictive(MEAN, VARIANCE)
    y = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    whole = law.log_prob(y)
    assert whole.shape == (4, 3)
    monkeypatch.setattr(smooth_mixture, "DENSITY_ROWS", 5)
    torch.testing.assert_close(law.log_prob(y), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(law.expand((4, 3)).log_prob(y), whole, rtol=1e-12, atol=1e-12)


def test_a_law_stays_what_it_was_when_the_likelihood_goes_on_learning():
    likelihood = NegativeBinomial(0.2).double()
    with torch.no_grad():
        law = likelihood.predictive(MEAN, VARIANCE)
    y = torch.tensor([1.0, 5.0, 90.0], dtype=torch.float64)
    before = law.log_prob(y)
    assert not before.requires_grad
    likelihood.dispersion = 3.0
    torch.testing.assert_close(law.log_prob(y), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_selected_and_expanded_laws_keep_their_density(kind):
    """As rows with missing inputs, and rows that have a target, are."""
    likelihood = KINDS[kind]().double()
    y = torch.tensor([2.0, 400.0, 1.0], dtype=torch.float64)
    with torch.no_grad():
        law = likelihood.predictive(MEAN, VARIANCE)
    whole = law.log_prob(y)
    rows = torch.tensor([1, 2])
    torch.testing.assert_close(select_rows(law, rows).log_prob(y[rows]), whole[rows])
    wide = law.expand((4, 3))
    places = torch.tensor([[3], [0]]), torch.tensor([[1, 0]])
    selected = select_rows(wide, places)
    assert selected.batch_shape == (2, 2)
    torch.testing.assert_close(selected.log_prob(y[[1, 0]]), whole[[1, 0]].expand(2, 2))
    for found in (wide, selected, select_rows(law, rows)):
        assert not found.log_prob(y[:1]).requires_grad  # as that of ``law``
    mean = MEAN.clone().requires_grad_()
    assert likelihood.predictive(mean, VARIANCE).expand((2, 3)).log_prob(y).requires_grad
    if kind != "poisson":  # which has no parameter
        assert likelihood.predictive(MEAN, VARIANCE).expand((2, 3)).log_prob(y).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_does_not_depend_on_the_precision_of_the_model(kind):
    """Near Poisson's law the terms of the probability of a large count are far above their sum."""
    likelihood = KINDS[kind] if kind != "dispersed" else lambda: NegativeBinomial(2.0**-18)
    mean, variance = torch.tensor([8.0, 13.0]), torch.tensor([2.0**-13, 2.0**-20])
    y = mean.double().exp().round()
    with torch.no_grad():
        narrow = likelihood().float()
        wide = likelihood().double()
        for name, parameter in narrow.named_parameters():
            wide.get_parameter(name).copy_(parameter)
        found = narrow.predictive(mean, variance).log_prob(y)
        expected = wide.predictive(mean.double(), variance.double()).log_prob(y)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


LIKELIHOODS = {
    "poisson": (Poisson, 1.0, 0.0),
    "negative_binomial": (lambda: NegativeBinomial(0.4), 1.0, 0.4),
    "gamma": (lambda: Gamma(2.5), 0.0, 0.4),
}
WIDE_MEAN = torch.tensor([-1.0, 0.5, 2.0, 0.0, 1.0]).double()
WIDE_VARIANCE = torch.tensor([0.0, 0.3, 6.0, 15.0, 30.0]).double()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_moments_are_closed_forms_for_any_latent_variance(name):
    """20 nodes gave a half of the variance at 15, and a thousandth at 30."""
    make, single, square = LIKELIHOODS[name]
    mean = WIDE_MEAN.clone().requires_grad_()
    law = make().double().predictive(mean, WIDE_VARIANCE)
    first, second = (
        (WIDE_MEAN + 0.5 * WIDE_VARIANCE).exp(),
        (2.0 * WIDE_MEAN + 2.0 * WIDE_VARIANCE).exp(),
    )
    want = single * first + (1.0 + square) * second - first.square()
    torch.testing.assert_close(law.mean.detach(), first, rtol=1e-6, atol=0)
    torch.testing.assert_close(law.variance.detach(), want, rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(law.mean.sum(), mean)
    torch.testing.assert_close(slope, first, rtol=1e-6, atol=0)
    some = select_rows(law, torch.tensor([3, 1]))
    torch.testing.assert_close(some.variance.detach(), want[[3, 1]], rtol=1e-6, atol=0)


LINE = torch.linspace(-11.0, 11.0, 8_001).double()
MASS = (-0.5 * LINE.square()).softmax(0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_distribution_functions_are_those_of_wide_latents_too(name):
    """57 components were up to 0.09 off at a variance of 40."""
    likelihood = LIKELIHOODS[name][0]().double()
    variance = torch.tensor([0.5, 5.0, 40.0, 20.0, 9.0]).double()
    y = torch.tensor([1.0, 3.0, 500.0, 2.0, 40.0]).double()
    with torch.no_grad():
        law = likelihood.predictive(WIDE_MEAN, variance)
        f = WIDE_MEAN + variance.sqrt() * LINE[:, None]
        given = likelihood.predictive(f.flatten(), torch.zeros(f.numel()).double())
        dense = MASS @ cdf(given, y.expand_as(f).flatten()).view_as(f)
        torch.testing.assert_close(cdf(law, y), dense, rtol=0, atol=2e-3)
        for row in range(5):  # whatever rows stand beside it
            alone = likelihood.predictive(WIDE_MEAN[row, None], variance[row, None])
            torch.testing.assert_close(cdf(alone, y[row, None]), cdf(law, y)[row, None])


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_quantiles_are_those_of_the_distribution_function(name):
    with torch.no_grad():
        law = LIKELIHOODS[name][0]().double().predictive(WIDE_MEAN, WIDE_VARIANCE)
        for q in (0.025, 0.975):
            at = quantile(law, q)
            assert (cdf(law, at * (1.0 + 1e-6)) >= q - 1e-9).all()
            less = at - 1.0 if name != "gamma" else at * (1.0 - 1e-6)
            assert (cdf(law, less) < q).all()
    assert copy.deepcopy(law).stddev.isfinite().all()
