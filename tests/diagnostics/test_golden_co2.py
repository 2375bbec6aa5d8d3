"""Fixture G2 with its own targets: bounds, divergences and certified intervals as published."""

import golden_g2 as g2
import pytest
import torch

from gpx.diagnostics.certificate import certify, certify_exact
from gpx.diagnostics.event_probability import exceedance_probability, probability_interval
from gpx.diagnostics.moment_bounds import credible_intervals
from gpx.inducing import GreedyConditionalVariance
from gpx.kernels import RBF, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Zero

X = g2.x[:, None]
WHEN = torch.tensor([[2010.0]], dtype=torch.float64)
LEVEL = 388.0 - g2.PPM
DIGITS = 0.0051
"""Half a unit of the last printed digit of ppm, and what parameters rounded to float32 add."""


def parts():
    """Kernel, mean and likelihood; float32 parameters break a tie of greedy points as published."""
    season = RBF(lengthscale=20.0, outputscale=2.4**2) * Periodic(lengthscale=1.3, outputscale=None)
    kernel = RBF(lengthscale=67.0, outputscale=66.0**2) + season
    for raw in kernel.parameters():
        raw.data = raw.data.double()
    return kernel.double(), Zero(), Gaussian(g2.NOISE).double()


@pytest.fixture(scope="module")
@torch.no_grad()
def certificates():
    """M -> certificate of greedy points, without products of the kernel matrix; None -> exact."""
    found = {None: certify_exact(*parts(), X, g2.y, WHEN)}
    chosen = GreedyConditionalVariance().select(X, parts()[0], 100).points
    for m in g2.ROWS:
        found[m] = certify(*parts(), chosen[:m], X, g2.y, WHEN, products=False)
    return found


def probability(certificate):
    noise = torch.tensor(certificate.noise, dtype=torch.float64)
    level = torch.tensor(LEVEL, dtype=torch.float64)
    return exceedance_probability(*certificate.predicted, noise, level)


def central(certificate):
    middle = g2.PPM + float(certificate.predicted.mean)
    half = 1.959964 * (float(certificate.predicted.variance) + certificate.noise) ** 0.5
    return middle - half, middle + half


def test_targets_are_those_of_the_fixture():
    months = torch.tensor([float(value) for value in g2.MONTHS.split()], dtype=torch.float64)
    assert float(months.mean()) == pytest.approx(g2.PPM, abs=1e-7)
    assert float(g2.y.square().sum()) == pytest.approx(g2.SQUARES, rel=2e-8)  # four digits a month


def test_exact_evidence_and_forecast(certificates):
    exact = certificates[None]
    evidence = exact.lower_bounds["log marginal likelihood"]
    assert evidence == pytest.approx(g2.EVIDENCE, abs=1e-3)
    assert exact.dimension_lower <= g2.DIMENSION + 1e-4
    assert exact.dimension_upper >= g2.DIMENSION - 1e-4
    assert g2.PPM + float(exact.predicted.mean) == pytest.approx(g2.MEAN, abs=1e-5)
    assert float(exact.predicted.variance) == pytest.approx(g2.VARIANCE, abs=1e-5)
    assert float(probability(exact)) == pytest.approx(g2.PROBABILITY, abs=2e-6)
    assert central(exact) == pytest.approx(g2.INTERVAL, abs=6e-4)


@pytest.mark.parametrize("m", g2.ROWS)
def test_bounds_and_forecasts_of_greedy_points(certificates, m):
    bound, divergence, at_most, event, interval = g2.ROWS[m]
    exact, found = certificates[None], certificates[m]
    below = found.lower_bounds["collapsed bound"]
    assert below == pytest.approx(bound, abs=0.0051 if m < 50 else 1.1e-3)
    gap = exact.lower_bounds["log marginal likelihood"] - below
    # beyond 80 points ties of greedy points are decided by rounding
    near = 0.02 if m <= 80 else 0.5
    assert gap == pytest.approx(divergence, rel=near)
    assert found.kl == pytest.approx(at_most, rel=near)
    assert float(probability(found)) == pytest.approx(event, abs=1e-4)
    assert central(found) == pytest.approx(interval, abs=DIGITS)


@pytest.mark.parametrize("m", g2.CERTIFIED)
def test_certified_intervals_hold_and_are_at_least_as_narrow(certificates, m):
    """The fixture bounds moments by the divergence alone; further bounds only narrow them."""
    (low, up), wide, narrow = g2.CERTIFIED[m]
    found, inside = certificates[m], central(certificates[None])
    certified = probability_interval(
        probability(found), torch.tensor(found.kl, dtype=torch.float64), pinsker=True
    )
    # of 90 and more points the allowance for rounding is part of the bounds that are left
    shares, ppm = (1e-3, DIGITS) if m <= 80 else (3e-3, 0.01)
    assert [float(end) for end in certified] == pytest.approx([low, up], abs=shares)
    ends = credible_intervals(found.moments, torch.tensor(found.noise, dtype=torch.float64))
    outer = [g2.PPM + float(end) for end in (ends.inflated_lower, ends.inflated_upper)]
    assert wide[0] - ppm <= outer[0] <= inside[0]
    assert inside[1] <= outer[1] <= wide[1] + ppm
    if narrow is None:
        return
    inner = [g2.PPM + float(end) for end in (ends.deflated_lower, ends.deflated_upper)]
    assert inside[0] <= inner[0] <= narrow[0] + ppm
    assert narrow[1] - ppm <= inner[1] <= inside[1]
