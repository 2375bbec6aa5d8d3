from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from gpx.data import UCI, Dataset, DataSource, RobotArm, Table, load
from gpx.data.labels import Task
from gpx.data.standardiser import Standardiser
from gpx.metrics import baselines, boosting
from gpx.metrics.baselines import RoundedNormal

DATA = os.environ.get("GPX_DATA")


class Given(DataSource):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__(test_fraction=0.2)
        self.x, self.y = x, y

    def table(self) -> Table:
        names = tuple(f"x{i}" for i in range(self.x.shape[1]))
        return Table("given", self.x, self.y, names, "y")


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a page of their own: test_boosting.py."""
    monkeypatch.setattr(boosting, "MAX_TREES", 20)


def given(y: np.ndarray, task: Task) -> Dataset:
    return load(Given(X, y), task=task)


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(500, 3))
NOISE = RANDOM.normal(size=500)


def test_linear_function_is_fitted_by_the_linear_model() -> None:
    data = given(3.0 + X @ [1.0, -2.0, 0.5] + 0.1 * NOISE, "regression")
    found = baselines(data)
    assert set(found) == {"mean", "linear", "5-nn", "boosting"}
    assert all(metrics["seconds"] >= 0 for metrics in found.values())
    # noise of 0.1 on 100 test rows: 30 % is four standard errors
    assert found["linear"]["rmse_original"] == pytest.approx(0.1, rel=0.3)
    assert found["linear"]["rmse"] < found["5-nn"]["rmse"] < found["mean"]["rmse"]
    assert found["linear"]["mnlp"] < found["5-nn"]["mnlp"] < found["mean"]["mnlp"]
    for metrics in found.values():
        assert metrics["coverage_95"] == pytest.approx(0.95, abs=0.09)
    assert found["linear"]["msll"] < found["5-nn"]["msll"] < found["mean"]["msll"] == 0.0


def test_linear_model_is_least_squares_even_with_dependent_columns() -> None:
    x = np.column_stack([X, X[:, 0] + 1e-9 * X[:, 1], X[:, 0]])
    y = np.sin(X[:, 0]) + NOISE
    data = load(Given(x, y), task="regression")
    train = np.column_stack([data.train_x.numpy(), np.ones(data.num_train)])
    test = np.column_stack([data.test_x.numpy(), np.ones(data.num_test)])
    weights = np.linalg.lstsq(train, data.train_y.numpy(), rcond=None)[0]
    expected = np.sqrt(np.mean((test @ weights - data.test_y.numpy()) ** 2))
    assert baselines(data)["linear"]["rmse"] == pytest.approx(expected, rel=1e-6)


def test_function_without_noise_does_not_divide_by_zero() -> None:
    for metrics in baselines(given(2.0 * X[:, 0], "regression")).values():
        assert all(np.isfinite(value) for value in metrics.values())
    constant = baselines(given(np.ones(500), "regression"))
    assert constant["linear"]["rmse"] == pytest.approx(0, abs=1e-9)


def test_precision_of_the_data_set_does_not_matter() -> None:
    data = given(X[:, 0] + NOISE, "regression")
    exact, rounded = baselines(data), baselines(data.to("cpu", torch.float32))
    for name, metrics in exact.items():
        assert rounded[name]["rmse"] == pytest.approx(metrics["rmse"], rel=1e-4)


def test_large_test_sets_are_thinned_out_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    data = given(X[:, 0] + NOISE, "regression")
    with caplog.at_level(logging.INFO):
        found = baselines(data, neighbours=3, max_queries=50)
    assert "takes 50 of 100 test rows" in caplog.text
    full = baselines(data, neighbours=3)
    assert found["linear"]["rmse"] == full["linear"]["rmse"]
    assert found["3-nn"]["rmse"] != full["3-nn"]["rmse"]


def test_classes() -> None:
    line = X @ [2.0, -1.0, 0.0]
    found = baselines(given((line + 0.3 * NOISE > 0).astype(float), "binary"))
    assert found["linear"]["accuracy"] > 0.9
    assert found["linear"]["mnlp"] < found["mean"]["mnlp"]
    ring = np.digitize(np.linalg.norm(X[:, :2], axis=1), [0.8, 1.5]).astype(float)
    found = baselines(given(ring, "multiclass"))
    assert found["5-nn"]["accuracy"] > found["linear"]["accuracy"]
    assert found["5-nn"]["mnlp"] < found["mean"]["mnlp"]
    assert {"rmse_original", "mnlp_original", "brier", "ece"} <= set(found["mean"])


def test_counts() -> None:
    counts = RANDOM.poisson(np.exp(X[:, 0])).astype(float)
    found = baselines(given(counts, "count"))
    assert found["linear"]["rmse"] < found["mean"]["rmse"]


def test_probabilities_of_counts_are_those_of_rounded_normals() -> None:
    mean, std = torch.tensor([0.05, 3.0, 1e4]).double(), torch.tensor([0.22, 1.5, 90.0]).double()
    law = RoundedNormal(mean, std)
    every = torch.arange(12_000).double()[:, None]
    assert law.log_prob(every).exp().sum(0) == pytest.approx(np.ones(3), rel=1e-12)
    few, several = (
        scipy.stats.norm(float(m), float(s)) for m, s in zip(mean[:2], std, strict=False)
    )
    found = law.log_prob(torch.full((3,), 9.0).double())
    assert float(found[1]) == pytest.approx(np.log(several.sf(8.5) - several.sf(9.5)), rel=1e-9)
    # 38 standard deviations above the mean
    assert float(found[0]) == pytest.approx(few.logsf(8.5), rel=1e-9)


def test_rare_counts_are_not_scored_by_a_density() -> None:
    rare = (np.arange(len(X)) % 20 == 0).astype(float)
    data = given(rare, "count")
    share = float(data.test_y.double().mean())
    entropy = -(share * np.log(share) + (1.0 - share) * np.log1p(-share))
    # -0.02 as a density; the same probabilities for all rows cannot do better than these
    assert baselines(data)["mean"]["mnlp"] > entropy > 0.0


def test_robot_arm_defeats_the_linear_model() -> None:
    found = baselines(load(RobotArm(), task="regression"))
    assert found["linear"]["rmse"] > 0.9
    assert found["5-nn"]["rmse"] < 0.5
    assert found["boosting"]["rmse"] < 0.7


@pytest.mark.skipif(
    not DATA or not (Path(DATA) / "uci" / "kin40k" / "data.csv.gz").is_file(),
    reason="the UCI sets are not on this machine (set GPX_DATA to their folder)",
)
@pytest.mark.parametrize(
    ("name", "mean", "linear", "near"),
    [
        ("kin40k", 0.971, 0.971, 0.391),
        ("pol", 0.993, 0.727, 0.220),
        ("elevators", 1.022, 0.468, 0.611),
        ("bike", 0.989, 0.509, 0.457),
        ("keggdirected", 0.999, 0.270, 0.104),
    ],
)
def test_figures_measured_elsewhere(name: str, mean: float, linear: float, near: float) -> None:
    """Split 0, standardised, computed by an independent script on the same files."""
    found = baselines(load(UCI(name), task="regression"))
    rounding = 0.0006
    assert found["mean"]["rmse"] == pytest.approx(mean, abs=rounding)
    assert found["linear"]["rmse"] == pytest.approx(linear, abs=rounding)
    # repeated inputs leave the choice among equally near neighbours open
    assert found["5-nn"]["rmse"] == pytest.approx(near, abs=0.002)


class Outputs(Given):
    def table(self) -> Table:
        return Table(
            "given", self.x, self.y, ("x0", "x1", "x2"), "both", target_names=("first", "second")
        )


def test_baselines_of_several_outputs_are_those_of_each() -> None:
    first, second = X[:, 0] + NOISE, 50.0 * np.sin(X[:, 1]) - 3.0
    both = baselines(load(Outputs(X, np.stack([first, second], 1)), task="regression"))
    for name, y in (("first", first), ("second", second)):
        for baseline, metrics in baselines(given(y, "regression")).items():
            metrics.pop("seconds")
            found = {key: both[baseline][f"{key}.{name}"] for key in metrics}
            assert found == pytest.approx(metrics)


def test_targets_that_rows_lack_are_predicted_from_the_rows_that_have_them() -> None:
    y = np.stack([X @ [1.0, 2.0, 0.0] + 0.1 * NOISE, np.sin(X[:, 1]) + 0.1 * NOISE], 1)
    y[1::3, 0] = y[::2, 1] = np.nan
    y = np.where(np.isnan(y).all(1, keepdims=True), 0.5, y)

    class Several(Given):
        def table(self) -> Table:
            names = tuple(f"x{i}" for i in range(self.x.shape[1]))
            return Table("given", self.x, self.y, names, "a, b", target_names=("a", "b"))

    data = load(Several(X, y), task="regression")
    found = baselines(data)
    for place, name in enumerate(("a", "b")):
        trained, tested = (~part[:, place].isnan() for part in (data.train_y, data.test_y))
        scaler = Standardiser(3)
        scaler.target_scale.copy_(data.scaler.target_scale[place])
        alone = dataclasses.replace(
            data,
            train_x=data.train_x[trained],
            train_y=data.train_y[trained, place],
            test_x=data.test_x[tested],
            test_y=data.test_y[tested, place],
            target_name=name,
            target_names=(),
            scaler=scaler,
        )
        for baseline, expected in baselines(alone).items():
            own = {key: found[baseline][f"{key}.{name}"] for key in expected if key != "seconds"}
            expected.pop("seconds")
            assert own == pytest.approx(expected), baseline
