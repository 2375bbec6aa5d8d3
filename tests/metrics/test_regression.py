from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Normal, StudentT

from gpx.metrics import coverage, gaussian_crps, gaussian_mnlp, mae, mnlp, regression_metrics, rmse

DOUBLE = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
MEAN = torch.randn(50, generator=GENERATOR, dtype=DOUBLE)
STD = torch.rand(50, generator=GENERATOR, dtype=DOUBLE) + 0.1
Y = MEAN + 1.5 * torch.randn(50, generator=GENERATOR, dtype=DOUBLE)


def test_errors() -> None:
    mean = torch.tensor([0.0, 0.0, 1.0, 1.0])
    y = torch.tensor([1.0, -1.0, 4.0, 0.0])
    assert rmse(mean, y) == pytest.approx(math.sqrt(3.0))
    assert mae(mean, y) == pytest.approx(1.5)


def test_mnlp_is_the_mean_of_marginal_log_densities() -> None:
    expected = -stats.norm.logpdf(Y, MEAN, STD).mean()
    assert float(mnlp(Normal(MEAN, STD), Y)) == pytest.approx(expected, rel=1e-12)
    assert float(gaussian_mnlp(MEAN, STD**2, Y)) == pytest.approx(expected, rel=1e-12)


def test_crps_is_the_integral_of_squared_distances_of_distribution_functions() -> None:
    total = 0.0
    for m, s, y in zip(MEAN[:8].tolist(), STD[:8].tolist(), Y[:8].tolist(), strict=True):
        low, high = min(m, y) - 12 * s, max(m, y) + 12 * s
        left = integrate.quad(lambda t, m=m, s=s: stats.norm.cdf(t, m, s) ** 2, low, y)[0]
        right = integrate.quad(lambda t, m=m, s=s: stats.norm.sf(t, m, s) ** 2, y, high)[0]
        total += left + right
    found = float(gaussian_crps(MEAN[:8], STD[:8] ** 2, Y[:8]))
    assert found == pytest.approx(total / 8, rel=1e-7)


def test_crps_of_a_sharp_prediction_is_the_absolute_error() -> None:
    found = gaussian_crps(MEAN, torch.full_like(MEAN, 1e-20), Y)
    torch.testing.assert_close(found, mae(MEAN, Y), rtol=1e-8, atol=0)


def test_coverage_counts_the_central_interval() -> None:
    predictive = Normal(torch.zeros(4, dtype=DOUBLE), torch.ones(4, dtype=DOUBLE))
    y = torch.tensor([-1.97, -1.95, 1.95, 1.97], dtype=DOUBLE)
    assert coverage(predictive, y) == 0.5
    assert coverage(predictive, y, level=0.96) == 1.0


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_calibrated_predictions_are_covered(level: float) -> None:
    y = torch.randn(40_000, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    predictive = Normal(torch.zeros_like(y), torch.ones_like(y))
    # five standard errors: false alarms below one in a million
    tolerance = 5 * np.sqrt(level * (1 - level) / len(y))
    assert float(coverage(predictive, y, level)) == pytest.approx(level, abs=tolerance)


def test_what_the_law_allows() -> None:
    assert set(regression_metrics(Normal(MEAN, STD), Y)) == {
        "rmse",
        "mae",
        "mnlp",
        "coverage_95",
        "crps",
    }
    # torch's Student-t has no distribution function
    heavy = StudentT(torch.full_like(MEAN, 5.0), MEAN, STD)
    found = regression_metrics(heavy, Y)
    assert set(found) == {"rmse", "mae", "mnlp"}
    assert found["mnlp"] == pytest.approx(-stats.t.logpdf(Y, 5.0, MEAN, STD).mean())
