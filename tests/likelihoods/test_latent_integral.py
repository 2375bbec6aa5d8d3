"""Densities of new shares, and of targets under varying noise, far from what is expected."""

import math

import pytest
import torch

from gpx.likelihoods import Beta, Heteroscedastic, smooth_mixture
from gpx.likelihoods.latent_integral import log_expectation
from gpx.likelihoods.quantiles import select_rows

LINKS = ["logit", "probit"]
POINTS = 100_001


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def dense(log_density, mean, variance, far):
    """log E exp(log_density(f)) (n,) by the trapezoid rule, on where it is above e^-70 of its top.

    ``far`` (n,): a second place, beside the mean, up to which the integrand may reach.
    """
    deviation = variance.sqrt()
    steps = (far - mean) / deviation
    low, high = steps.clamp_max(0.0) - 12.0, steps.clamp_min(0.0) + 12.0
    share = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64)[:, None]
    for _ in range(3):
        z = low + (high - low) * share
        logs = log_density(mean + deviation * z) - 0.5 * z.square()
        there = logs > logs.amax(0) - 70.0
        low = torch.where(there, z, math.inf).amin(0) - (high - low) / POINTS
        high = torch.where(there, z, -math.inf).amax(0) + (high - low) / POINTS
    total = torch.logsumexp(logs, 0) + (z[1] - z[0]).log()
    return total - 0.5 * math.log(2.0 * math.pi)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("precision", [0.2, 3.0, 50.0, 1e4])
@pytest.mark.parametrize("y", [1e-12, 0.02, 0.6, 1.0 - 1e-9])
def test_shares_have_the_density_of_the_integral(link, precision, y):
    """A mixture over nodes of f was 1e6 nats too low, and 70 at a precision of 50."""
    likelihood = Beta(precision, link).double()
    mean = tensor(-5.0, -2.0, -0.5, 0.0, 1.0, 3.0, 5.0, 2.0)
    variance = tensor(1e-4, 0.01, 0.2, 1.0, 4.0, 25.0, 0.03, 100.0)
    shares = torch.full_like(mean, y)
    with torch.no_grad():
        found = likelihood.predictive(mean, variance).log_prob(shares)
        far = likelihood.likeliest(shares)
        expected = dense(lambda f: likelihood.log_prob(shares, f), mean, variance, far)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-6)


def test_two_maxima_are_both_counted():
    """A narrow one near the share and a wide one near the mean, each the higher for some means."""
    likelihood = Beta(1e4).double()
    mean = torch.linspace(-26.0, -8.0, 73, dtype=torch.float64)
    variance, y = torch.full_like(mean, 0.5), torch.full_like(mean, 0.02)
    far = likelihood.likeliest(y)

    def joint(f):
        return likelihood.log_prob(y, f) - (f - mean).square()

    with torch.no_grad():
        line = torch.linspace(-28.0, -2.0, 20_001, dtype=torch.float64)[:, None]
        heights = joint(line)
        inner = (heights[1:-1] > heights[:-2]) & (heights[1:-1] > heights[2:])
        assert int(inner.sum(0).max()) == 2
        found = likelihood.predictive(mean, variance).log_prob(y)
        expected = dense(lambda f: likelihood.log_prob(y, f), mean, variance, far)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("precision", [0.05, 1.0, 40.0, 1e6])
def test_the_likeliest_mean_is_where_the_slope_vanishes(link, precision):
    likelihood = Beta(precision, link).double()
    y = tensor(1e-250, 1e-9, 0.2, 0.5, 0.97, 1.0 - 1e-12)
    f = likelihood.likeliest(y).requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), f)
    bend = torch.autograd.functional.hessian(lambda g: likelihood.log_prob(y, g).sum(), f.detach())
    assert (slope.abs() < 1e-3 * bend.diagonal().abs().sqrt()).all()


@pytest.mark.parametrize("latent_variance", [1e-4, 0.3, 9.0])
@pytest.mark.parametrize("known", [1e-3, 1.0])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.5])
def test_varying_noise_has_the_density_of_the_integral(latent_variance, known, spread):
    """20 normals were 9 nats too low at 20 deviations, and 2 within one where g is wide."""
    likelihood = Heteroscedastic(0.2, spread).double()
    mean, variance = tensor(0.4, -0.5), tensor(known, latent_variance)
    moments = mean.expand(7, 2), variance.expand(7, 2)
    with torch.no_grad():
        law = likelihood.predictive(*moments)
        deviation = (known + 0.2 * (spread * mean[1]).exp()).sqrt()
        y = mean[0] + deviation * tensor(0.0, 0.5, -2.0, 5.0, -20.0, 100.0, 1e3)

        def given(g):
            width = (known + 0.2 * (spread * g).exp()).sqrt()
            return torch.distributions.Normal(mean[0], width).log_prob(y)

        centre, width = (part[:, 1] for part in moments)
        # beyond both ends of what may matter: the variance is the squared residual at ``far``
        far = ((y - mean[0]).square().clamp_min(1e-3) / 0.2).log() / spread
        low = torch.minimum(far, centre - spread * width)
        expected = dense(given, centre, width, torch.where(far > centre, far, low))
    torch.testing.assert_close(law.log_prob(y), expected, rtol=1e-10, atol=1e-6)


@pytest.mark.parametrize("kind", ["beta", "varying noise"])
def test_gradients_are_those_of_differences(kind):
    """By mean, variance and the likelihood's own parameters."""
    if kind == "beta":
        likelihood, y = Beta(30.0).double(), tensor(0.9, 1e-4, 0.5)
        mean, log_variance = tensor(-1.0, 1.0, 0.2), tensor(-1.0, -3.0, 1.0)
    else:
        likelihood, y = Heteroscedastic(0.3, 0.8).double(), tensor(9.0, 0.1)
        mean, log_variance = tensor([0.1, -1.0], [0.0, 0.5]), tensor([-3.0, -1.0], [0.0, 0.5])
    own = list(likelihood.parameters())

    def density(mean, log_variance, *_):
        return likelihood.predictive(mean, log_variance.exp()).log_prob(y)

    inputs = [mean.requires_grad_(), log_variance.requires_grad_(), *own]
    assert torch.autograd.gradcheck(density, inputs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["beta", "varying noise"])
def test_blocks_rows_and_copies_keep_the_density(kind, monkeypatch):
    if kind == "beta":
        likelihood, y = Beta(30.0).double(), tensor(0.9, 1e-4, 0.5)
        moments = tensor(-1.0, 1.0, 0.2), tensor(0.3, 0.05, 2.0)
    else:
        likelihood, y = Heteroscedastic(0.3, 0.8).double(), tensor(9.0, 0.1, -30.0)
        moments = (
            tensor([0.1, -1.0], [0.0, 0.5], [2.0, 0.0]),
            tensor([0.1, 0.3], [1.0, 1.5], [0.0, 0.5]),
        )
    with torch.no_grad():
        law = likelihood.predictive(*moments)
    whole = law.log_prob(y)
    assert not whole.requires_grad
    monkeypatch.setattr(smooth_mixture, "DENSITY_ROWS", 2)
    torch.testing.assert_close(law.log_prob(y.expand(4, 3)), whole.expand(4, 3))
    torch.testing.assert_close(law.expand((4, 3)).log_prob(y), whole.expand(4, 3))
    rows = torch.tensor([2, 0])
    torch.testing.assert_close(select_rows(law, rows).log_prob(y[rows]), whole[rows])
    for parameter in likelihood.parameters():  # the law stays what it was
        parameter.data.add_(1.0)
    torch.testing.assert_close(law.log_prob(y), whole)
    learned = likelihood.predictive(*moments).log_prob(y)
    assert learned.requires_grad
    assert float((learned.detach() - whole).abs().min()) > 1e-3


@pytest.mark.parametrize("kind", ["beta", "varying noise"])
def test_single_precision_gives_the_same_density(kind):
    if kind == "beta":
        make, y = (lambda: Beta(32.0)), tensor(0.875, 2.0**-14)
        moments = tensor(-1.0, 1.0), tensor(0.25, 0.0625)
    else:
        make, y = (lambda: Heteroscedastic(0.25, 0.75)), tensor(9.0, 0.125)
        moments = tensor([0.125, -1.0], [0.0, 0.5]), tensor([0.125, 0.25], [1.0, 1.5])
    single, exact = make().float(), make().double()
    with torch.no_grad():
        for name, parameter in single.named_parameters():
            exact.get_parameter(name).copy_(parameter)
        found = single.predictive(*(part.float() for part in moments)).log_prob(y.float())
        expected = exact.predictive(*moments).log_prob(y)
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-5)


def test_a_normal_density_has_its_closed_form():
    """At any distance: N(a; mean, variance + w^2)."""
    mean, variance = tensor(0.0, -3.0, 1.0, 0.0), tensor(1.0, 1e-8, 1e4, 2.0)
    width, peak = tensor(0.1, 1e-3, 1e-3, 50.0), tensor(30.0, 4.0, -1e3, 1e3)
    found = log_expectation(torch.distributions.Normal(peak, width).log_prob, mean, variance, peak)
    total = (variance + width.square()).sqrt()
    expected = torch.distributions.Normal(mean, total).log_prob(peak)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-6)
