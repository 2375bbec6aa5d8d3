"""The control variate of the log-determinant: its mean and its reduction of variance."""

import math

import pytest
import torch

from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.ski.control_variate import control_variate, mean_with_control
from gpx.methods.ski.quad_logdet import control_variate_of
from gpx.models import SKI
from gpx.objectives import SKIEvidence


def problem(d, n=600, rank=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    y = (6.0 * x).sin().sum(1) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    model = SKI(
        kernel=Matern32(d, 0.1, 1.0),
        mean=Zero(),
        likelihood=Gaussian(0.01),
        num_inputs=d,
        grid_size=80 if d == 1 else 22,
        rank=rank,
    ).double()
    model.initialise(x, y, generator=generator)
    return model, x, y


@pytest.mark.parametrize("d", [1, 2])
def test_its_mean_is_zero(d):
    """Over every unit vector as probe the mean is exact."""
    model, x, _ = problem(d)
    with torch.no_grad():
        system = model.system(x)
        rows = len(system.weights.values)
        eye = math.sqrt(rows) * torch.eye(rows, dtype=torch.float64)
        found = control_variate_of(system, eye)
    assert found.std() > 0.0
    torch.testing.assert_close(found.mean(), found.new_zeros(()), rtol=0.0, atol=1e-9 * rows)


def test_the_mean_stays_unbiased_and_shares_are_those_of_the_other_probes():
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    y = y + 3.0 * x
    want = []
    for i in range(6):
        others = [j for j in range(6) if j != i]
        a, b = x[others] - x[others].mean(), y[others] - y[others].mean()
        want.append(y[i] - (a @ b) / (a @ a) * x[i])
    want = torch.stack(want)
    value, error = mean_with_control(y, x)
    torch.testing.assert_close(value, want.mean())
    torch.testing.assert_close(error, want.std() / math.sqrt(6.0))
    assert mean_with_control(y[:3], x[:3])[0] == y[:3].mean()  # too few to say


@torch.no_grad()
def test_it_halves_the_scatter(monkeypatch):
    """Over twelve seeds the ratio of errors was 0.46 to 0.64, with a standard deviation of 0.06;
    one draw in 10^4 is more than 4 errors off (normal quantiles)."""
    model, x, y = problem(2, n=1500, rank=60)
    exact = SKIEvidence(logdet="cholesky").evidence(model, x, y).value
    objective = SKIEvidence(probes=64, accuracy=1.0)
    small = objective.evidence(model, x, y)
    monkeypatch.setattr("gpx.methods.ski.quad_logdet.control_variate_of", lambda *a: None)
    large = objective.evidence(model, x, y)
    assert small.facts["logdet_error"] < 0.85 * large.facts["logdet_error"]
    for found in (small, large):
        assert abs(float(found.value - exact)) < 4.0 * 0.5 * found.facts["logdet_error"]


@torch.no_grad()
def test_probes_are_drawn_until_the_error_is_reached_or_a_warning(monkeypatch):
    model, x, y = problem(2)
    few = SKIEvidence(accuracy=1.0).evidence(model, x, y)
    assert few.facts["probes"] == 8
    monkeypatch.setattr("gpx.methods.ski.evidence.EVIDENCE_ERROR_TARGET", 0.0)
    wanted = 0.4 * few.facts["logdet_error"] / 2.0 / 600
    objective = SKIEvidence(accuracy=wanted, most_probes=1000)
    more = objective.evidence(model, x, y)
    assert more.facts["probes"] > 16
    assert more.facts["logdet_error"] <= 2.0 * wanted * 600
    again = objective.evidence(model, x, y)  # the number is kept, so that the function stays one
    assert again.facts["probes"] == more.facts["probes"]
    torch.testing.assert_close(again.value, more.value, rtol=1e-12, atol=0.0)
    with pytest.warns(UserWarning, match="standard error of .* nats after 8 probes"):
        SKIEvidence(accuracy=wanted, most_probes=8).evidence(model, x, y)


def test_damped_directions_give_finite_control_variates():
    lags = torch.exp(-torch.arange(12, dtype=torch.float64))
    gram = torch.zeros(12, dtype=torch.float64)
    gram[0], gram[1] = 12.0, 12.0  # zero at the highest wave
    seen = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = control_variate(lags, lags[0], gram, lags[0] * 1e6, seen)
    assert bool(torch.isfinite(found).all())
