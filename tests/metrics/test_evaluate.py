from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch.distributions import Bernoulli, Categorical, Independent, Normal, Poisson

from gpx.data import Standardiser
from gpx.errors import ConfigError
from gpx.metrics import evaluate, regression_metrics, trivial_law

DOUBLE = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
RAW = 100.0 + 25.0 * torch.randn(300, generator=GENERATOR, dtype=DOUBLE)
MEAN = 100.0 + 20.0 * torch.randn(300, generator=GENERATOR, dtype=DOUBLE)


class Signs:
    """What a binary likelihood may predict: probabilities of 1 without logits."""

    def __init__(self, probs: torch.Tensor) -> None:
        self.probs = probs


def test_original_units_are_what_raw_data_would_give() -> None:
    x = torch.zeros(300, 1, dtype=DOUBLE)
    scaler, _ = Standardiser.fit(x, RAW, scale_targets=True)
    std = 30.0
    scaled = Normal(scaler.transform_targets(MEAN), std / scaler.target_scale)
    found = evaluate("regression", scaled, scaler.transform_targets(RAW), scaler)
    assert found["rmse_original"] == pytest.approx(float((RAW - MEAN).square().mean().sqrt()))
    assert found["mae_original"] == pytest.approx(float((RAW - MEAN).abs().mean()))
    assert found["mnlp_original"] == pytest.approx(-stats.norm.logpdf(RAW, MEAN, std).mean())
    assert found["sharpness_original"] == pytest.approx(std)
    for name in ("crps", "interval_score_95"):
        own = found[f"{name}_original"]
        assert own == pytest.approx(found[name] * float(scaler.target_scale))
    assert found["rmse"] == pytest.approx(found["rmse_original"] / float(scaler.target_scale))
    assert all(type(value) is float for value in found.values())


def test_standardised_metrics_are_those_of_the_raw_data() -> None:
    train = 90.0 + 20.0 * torch.randn(200, generator=GENERATOR, dtype=DOUBLE)
    scaler, _ = Standardiser.fit(torch.zeros(200, 1, dtype=DOUBLE), train, scale_targets=True)
    scaled = Normal(scaler.transform_targets(MEAN), 30.0 / scaler.target_scale)
    y, trivial = scaler.transform_targets(RAW), trivial_law(scaler.transform_targets(train))
    found = evaluate("regression", scaled, y, scaler, trivial=trivial)
    expected = regression_metrics(Normal(MEAN, 30.0), RAW, trivial_law(train))
    for name in ("smse", "smae", "msll"):
        assert found[name] == pytest.approx(float(expected[name]), rel=1e-10)
        assert f"{name}_original" not in found


def test_densities_are_not_compared_with_probabilities_of_counts() -> None:
    y = torch.tensor([0.0, 4.0, 2.0], dtype=DOUBLE)
    found = evaluate("count", Poisson(y + 1.0), y, Standardiser(1), trivial=trivial_law(y))
    assert "smse" in found
    assert "msll" not in found


def test_counts() -> None:
    rate = torch.tensor([1.0, 3.0, 2.0], dtype=DOUBLE)
    y = torch.tensor([0.0, 4.0, 2.0], dtype=DOUBLE)
    found = evaluate("count", Poisson(rate), y, Standardiser(1))
    assert found["mnlp"] == pytest.approx(-stats.poisson.logpmf(y, rate).mean())
    assert found["mnlp_original"] == found["mnlp"]
    assert found["rmse_original"] == found["rmse"] == pytest.approx(math.sqrt(2 / 3))
    assert found["crps_original"] == found["crps"]
    assert found["coverage_95"] == 1.0


@pytest.mark.parametrize("kind", ["logits", "probs", "signs"])
def test_signs(kind: str) -> None:
    probs = torch.tensor([0.9, 0.2, 0.6], dtype=DOUBLE)
    predictive = {
        "logits": Bernoulli(logits=probs.logit()),
        "probs": Bernoulli(probs),
        "signs": Signs(probs),
    }[kind]
    y = torch.tensor([1.0, -1.0, -1.0], dtype=DOUBLE)
    found = evaluate("binary", predictive, y, Standardiser(1))  # type: ignore[arg-type]
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["mnlp"] == pytest.approx(-math.log(0.9 * 0.8 * 0.4) / 3)
    assert found["brier"] == pytest.approx(2 * (0.01 + 0.04 + 0.36) / 3)
    assert found["mnlp_original"] == found["mnlp"]
    assert found["rmse_original"] == found["rmse"] == pytest.approx(math.sqrt(found["brier"]))


def test_classes() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=DOUBLE)
    y = torch.tensor([0.0, 1.0], dtype=DOUBLE)
    for predictive in (Categorical(probs), Signs(probs)):
        found = evaluate("multiclass", predictive, y, Standardiser(1))  # type: ignore[arg-type]
        assert found["accuracy"] == 0.5
        assert found["mnlp"] == pytest.approx(-math.log(0.7 * 0.3) / 2)


def test_law_without_probabilities() -> None:
    with pytest.raises(ConfigError, match="a Normal has no class probabilities"):
        evaluate("binary", Normal(RAW, 1.0), RAW, Standardiser(1))


def test_outputs_are_evaluated_each_alone_and_on_average() -> None:
    x, other = torch.zeros(300, 1, dtype=DOUBLE), 0.01 * RAW.flip(0) - 3.0
    raw, mean = torch.stack([RAW, other], 1), torch.stack([MEAN, other + 0.02], 1)
    std = torch.tensor([30.0, 0.1], dtype=DOUBLE)
    scaler, _ = Standardiser.fit(x, raw, scale_targets=True)
    law = Normal(scaler.transform_targets(mean), (std / scaler.target_scale).expand(300, 2))
    y = scaler.transform_targets(raw)
    found = evaluate("regression", Independent(law, 1), y, scaler, ("a", "b"))
    singles = {}
    for place, name in enumerate("ab"):
        scale, _ = Standardiser.fit(x, raw[:, place], scale_targets=True)
        alone = Normal(law.mean[:, place], law.stddev[:, place])
        singles[name] = evaluate("regression", alone, y[:, place], scale)
        assert {key: found[f"{key}.{name}"] for key in singles[name]} == pytest.approx(
            singles[name]
        )
    for key, value in singles["a"].items():
        assert found[key] == pytest.approx((value + singles["b"][key]) / 2)
    assert len(found) == 3 * len(singles["a"])
    assert all(type(value) is float for value in found.values())


def test_outputs_are_evaluated_over_the_rows_that_have_them() -> None:
    x = torch.zeros(300, 1, dtype=DOUBLE)
    raw, mean = torch.stack([RAW] * 3, 1), torch.stack([MEAN] * 3, 1)
    raw[:250, 0] = raw[100:, 1] = raw[:, 2] = torch.nan  # of the third there is none
    train = torch.stack([RAW, RAW.flip(0), RAW], 1)
    train[::3, 1] = torch.nan
    scaler, _ = Standardiser.fit(x, train, scale_targets=True)
    law = Normal(scaler.transform_targets(mean), (30.0 / scaler.target_scale).expand(300, 3))
    y, seen = scaler.transform_targets(raw), scaler.transform_targets(train)
    names = ("a", "b", "c")
    trivial = trivial_law(seen)
    found = evaluate("regression", Independent(law, 1), y, scaler, names, trivial=trivial)
    singles = []
    for place, rows in ((0, slice(250, None)), (1, slice(100))):
        scale, own = Standardiser(1), seen[:, place]
        scale.target_scale.copy_(scaler.target_scale[place])
        alone = Normal(law.mean[rows, place], law.stddev[rows, place])
        parts = alone, y[rows, place], scale
        expected = evaluate("regression", *parts, trivial=trivial_law(own[~own.isnan()]))
        assert {key: found[f"{key}.{names[place]}"] for key in expected} == pytest.approx(expected)
        singles.append(expected)
    for key in singles[0]:
        assert found[key] == pytest.approx((singles[0][key] + singles[1][key]) / 2)
    assert not any(name.endswith(".c") for name in found)
    assert all(math.isfinite(value) for value in found.values())
