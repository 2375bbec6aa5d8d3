"""Moments of a latent value given its target: quadrature against closed forms and fine grids."""

import math

import pytest
import torch

from gpx.errors import NotAvailable
from gpx.likelihoods import Bernoulli, Gaussian, Laplace, NegativeBinomial, Poisson, Softmax
from gpx.likelihoods.tilted import tilted_by_quadrature


def on_a_grid(likelihood, y, mean, variance, size=400_001):
    """log Z and mean and variance of f given y, by the trapezoid rule where the density is."""
    low, high = mean - 15.0 * math.sqrt(variance), mean + 15.0 * math.sqrt(variance)
    for _ in range(4):  # narrower each time
        f = torch.linspace(low, high, size, dtype=torch.float64)
        log_mass = likelihood.log_prob(f.new_tensor(y).expand_as(f), f)
        log_mass = log_mass - 0.5 * (f - mean).square() / variance
        inside = f[log_mass > log_mass.max() - 60.0]
        step = float(f[1] - f[0])
        low, high = float(inside[0]) - step, float(inside[-1]) + step
    total = log_mass.logsumexp(0) + math.log(step) - 0.5 * math.log(2.0 * math.pi * variance)
    share = log_mass.softmax(0)
    centre = share @ (f - mean)
    return total, mean + centre, share @ (f - mean - centre).square()


@pytest.mark.parametrize(
    ("y", "mean", "variance"),
    [
        (0.0, -9.0, 127.0),  # falls as a normal density on the left, as exp(-e^f) on the right
        (0.0, -50.0, 1e4),
        (0.0, 50.0, 127.0),
        (3.0, 0.5, 2.0),
        (20.0, -9.0, 100.0),
        (1e6, 13.0, 50.0),  # far narrower than the normal density
        (2.0, 1.0, 1e-4),  # hardly narrower
    ],
)
@pytest.mark.parametrize(
    "likelihood", [Poisson(), NegativeBinomial(0.3).double()], ids=["poisson", "negative binomial"]
)
def test_moments_of_counts_are_integrals(likelihood, y, mean, variance):
    given = (torch.tensor([value], dtype=torch.float64) for value in (y, mean, variance))
    with torch.no_grad():
        found = tilted_by_quadrature(likelihood, *given)
        normaliser, centre, spread = on_a_grid(likelihood, y, mean, variance)
    torch.testing.assert_close(found.log_normaliser[0], normaliser, rtol=1e-9, atol=1e-6)
    deviation = float(spread.sqrt())
    moved = mean + variance * float(found.gradient)
    assert moved == pytest.approx(float(centre), abs=1e-6 * deviation)
    left = variance - variance**2 * float(found.information)
    assert left == pytest.approx(float(spread), rel=1e-5)


@pytest.mark.parametrize(("mean", "variance"), [(200.0, 100.0), (1000.0, 100.0), (1e5, 1e-3)])
@pytest.mark.parametrize("y", [0.0, 7.0])
def test_moments_exist_where_the_expected_count_overflows(y, mean, variance):
    given = (torch.tensor([value], dtype=torch.float64) for value in (y, mean, variance))
    found = tilted_by_quadrature(Poisson(), *given)
    f = torch.linspace(-10.0, 25.0, 400_001, dtype=torch.float64)
    log_mass = Poisson().log_prob(f.new_tensor(y), f) - 0.5 * (f - mean).square() / variance
    total = log_mass.logsumexp(0) + (f[1] - f[0]).log() - 0.5 * math.log(2 * math.pi * variance)
    torch.testing.assert_close(found.log_normaliser[0], total, rtol=1e-9, atol=1e-6)
    centre = log_mass.softmax(0) @ f
    moved = mean + variance * float(found.gradient)
    assert moved == pytest.approx(float(centre), abs=1e-9 * mean)


def test_a_bend_far_out_in_a_wide_density_does_not_cost_the_variance_its_digits():
    # 64 nodes between -300 and the steep fall at 0, three standard deviations away
    given = (torch.tensor([value], dtype=torch.float64) for value in (0.0, -300.0, 1e4))
    with torch.no_grad():
        found = tilted_by_quadrature(Poisson(), *given)
        _, centre, spread = on_a_grid(Poisson(), 0.0, -300.0, 1e4)
    assert -300.0 + 1e4 * float(found.gradient) == pytest.approx(float(centre), abs=0.01)
    assert 1e4 - 1e8 * float(found.information) == pytest.approx(float(spread), rel=2e-4)


@pytest.mark.parametrize("likelihood", [Bernoulli("probit"), Bernoulli("logit"), Gaussian(0.3)])
def test_closed_forms_are_met(likelihood):
    likelihood = likelihood.double()
    y = torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    mean = torch.tensor([[0.3, -0.7, 2.5, 4.0], [0.0, 1.0, -30.0, 5.0]]).double()
    variance = torch.tensor([[0.2, 1e-40, 9.0, 300.0], [0.0, 1e-3, 50.0, 1e4]]).double()
    found = tilted_by_quadrature(likelihood, y, mean, variance)
    for part, want in zip(found, likelihood.tilted(y, mean, variance), strict=True):
        torch.testing.assert_close(part, want, rtol=1e-7, atol=1e-9)


def test_the_normaliser_is_differentiable_in_the_dispersion():
    likelihood = NegativeBinomial(0.3).double()
    raw = likelihood.parametrizations.dispersion.original
    y, mean = torch.tensor([0.0, 2.0, 40.0]).double(), torch.tensor([-4.0, 1.0, 2.0]).double()
    variance = torch.tensor([30.0, 0.5, 4.0]).double()

    def normaliser(value):
        raw.data.copy_(value)
        return likelihood.tilted(y, mean, variance).log_normaliser.sum()

    here = raw.detach().clone()
    (slope,) = torch.autograd.grad(normaliser(here), raw)
    want = (normaliser(here + 1e-5) - normaliser(here - 1e-5)) / 2e-5
    torch.testing.assert_close(slope, want.detach(), rtol=1e-7, atol=1e-9)


def test_no_targets_have_no_moments_and_who_has_none_says_so():
    none = torch.zeros(0)
    assert all(part.shape == (0,) for part in Poisson().tilted(none, none, none))
    for likelihood in (Laplace(), Softmax(3)):
        with pytest.raises(NotAvailable, match="does not know its moments"):
            likelihood.tilted(none, none, none)
