from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Normal, Poisson, StudentT

from gpx.likelihoods import StudentT as StudentLikelihood
from gpx.metrics import (
    coverage,
    crps,
    gaussian_crps,
    gaussian_mnlp,
    interval_score,
    mae,
    mnlp,
    msll,
    regression_metrics,
    rmse,
    smae,
    smse,
    trivial_law,
)

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


def test_standardised_errors_of_the_mean_of_the_targets_are_one() -> None:
    mean = Y.mean().expand(50)
    assert float(smse(mean, Y)) == 1.0
    assert float(smae(mean, Y)) == 1.0


def test_standardised_errors_have_no_unit() -> None:
    expected = np.mean((Y - MEAN).numpy() ** 2) / np.var(Y.numpy())
    assert float(smse(MEAN, Y)) == pytest.approx(expected, rel=1e-12)
    absolute = np.abs((Y - MEAN).numpy()).sum() / np.abs((Y - Y.mean()).numpy()).sum()
    assert float(smae(MEAN, Y)) == pytest.approx(absolute, rel=1e-12)
    for metric in (smse, smae):
        scaled = metric(3.0 + 1e3 * MEAN, 3.0 + 1e3 * Y)
        torch.testing.assert_close(scaled, metric(MEAN, Y), rtol=1e-10, atol=0)


@pytest.mark.parametrize("shape", [(50,), (25, 2)])
def test_msll_of_the_trivial_law_is_zero(shape: tuple[int, ...]) -> None:
    train = 5.0 + 3.0 * torch.randn(80, *shape[1:], generator=GENERATOR, dtype=DOUBLE)
    trivial, y = trivial_law(train), Y.reshape(shape)
    torch.testing.assert_close(trivial.variance, train.var(0, correction=0), rtol=1e-12, atol=0)
    torch.testing.assert_close(trivial.mean, train.mean(0), rtol=1e-12, atol=0)
    assert bool((msll(trivial.expand(shape), trivial, y) == 0.0).all())


def test_msll_is_the_loss_beside_the_trivial_one() -> None:
    train = 2.0 + 3.0 * torch.randn(80, generator=GENERATOR, dtype=DOUBLE)
    found = float(msll(Normal(MEAN, STD), trivial_law(train), Y))
    loss = -stats.norm.logpdf(Y, MEAN, STD)
    trivial = -stats.norm.logpdf(Y, np.mean(train.numpy()), np.std(train.numpy()))
    assert found == pytest.approx(np.mean(loss - trivial), rel=1e-12)


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


def test_the_interval_score_charges_width_and_what_lies_outside() -> None:
    predictive = Normal(torch.zeros(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE))
    y, z = torch.tensor([0.0, 3.0, -4.0], dtype=DOUBLE), stats.norm.ppf(0.975)
    expected = 2.0 * z + 40.0 * ((3.0 - z) + (4.0 - z)) / 3.0
    assert float(interval_score(predictive, y)) == pytest.approx(expected, rel=1e-12)


def test_whole_numbers_at_the_ends_of_an_interval_lie_inside() -> None:
    rate = torch.full((41,), 7.3, dtype=DOUBLE)
    y = torch.arange(41, dtype=DOUBLE)
    low, high = stats.poisson.ppf([0.025, 0.975], 7.3)
    assert float(coverage(Poisson(rate), y)) == pytest.approx((high - low + 1) / 41, rel=1e-12)


def test_what_the_law_allows() -> None:
    always, spread = {"rmse", "mae", "mnlp", "sharpness"}, {"smse", "smae"}
    of_cdf = {"coverage_95", "coverage_error", "crps", "interval_score_95"}
    gaussian = Normal(MEAN, STD)
    everything = always | spread | of_cdf
    assert set(regression_metrics(gaussian, Y)) == everything
    assert set(regression_metrics(gaussian, Y, trivial_law(Y))) == everything | {"msll"}
    # nothing to divide by
    assert set(regression_metrics(gaussian, torch.full_like(Y, 0.1))) == everything - spread
    heavy = StudentT(torch.full_like(MEAN, 5.0), MEAN, STD)
    found = regression_metrics(heavy, Y)
    assert set(found) == everything
    assert found["mnlp"] == pytest.approx(-stats.t.logpdf(Y, 5.0, MEAN, STD).mean())
    low, high = stats.t.interval(0.95, 5.0, MEAN, STD)
    assert found["coverage_95"] == np.mean((low <= Y.numpy()) & (Y.numpy() <= high))
    wide = STD.numpy().mean() * math.sqrt(5.0 / 3.0)
    assert found["sharpness"] == pytest.approx(wide, rel=1e-12)
    assert set(regression_metrics(WithoutCdf(MEAN, STD), Y)) == always | spread


class WithoutCdf(Normal):
    """A law that has a density alone."""

    def cdf(self, value: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def test_scores_of_a_large_mixture_are_those_of_evenly_spaced_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law = StudentLikelihood().double().predictive(MEAN, STD.square())
    with torch.no_grad():
        every = crps(law, Y)
        monkeypatch.setattr("gpx.metrics.regression.MAX_MIXTURE_ROWS", 8)
        found = regression_metrics(law, Y)
    rows = [0, 7, 14, 21, 28, 35, 42, 49]
    assert float(found["crps"]) == pytest.approx(float(every[rows].mean()), rel=1e-6)
    assert float(found["rmse"]) == pytest.approx(float(rmse(MEAN, Y)), rel=1e-10)
