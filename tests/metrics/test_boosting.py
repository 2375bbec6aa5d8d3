"""Boosted trees as a baseline: how many trees, which variance, and what is left out."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from gpx.data import DataSource, Table, load
from gpx.metrics import baselines, boosting
from gpx.metrics.boosting import boosted_trees

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(400, 3))
STEP = np.where(X[:, 0] > 0.3, 2.0, -1.0) * (X[:, 1] > 0)


class Given(DataSource):
    def __init__(self, y):
        super().__init__(test_fraction=0.2)
        self.y = y

    def table(self):
        return Table("given", X[: len(self.y)], self.y, ("a", "b", "c"), "y")


def given(y, task):
    return load(Given(y), task=task)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(boosting, "MAX_TREES", 30)


def test_steps_are_learned_and_the_variance_is_that_of_held_out_rows(few):
    noisy = STEP + 0.3 * RANDOM.normal(size=400)
    data = given(noisy, "regression")
    law, rows = boosted_trees(data)
    assert rows == data.num_train
    found = baselines(data)["boosting"]
    assert found["rmse"] < 0.5 * min(baselines(data)[name]["rmse"] for name in ("mean", "linear"))
    held_out = float(law.stddev[0])  # of fitted rows the error is far smaller
    assert held_out == pytest.approx(found["rmse"], rel=0.35)
    assert "rows" not in found


def test_the_number_of_trees_follows_held_out_rows(monkeypatch):
    """On noise a first tree is as good as any: predictions stay near the mean."""
    law, _ = boosted_trees(given(RANDOM.normal(size=400), "regression"))
    assert float(law.mean.std()) < 0.3
    monkeypatch.setattr(boosting, "MAX_TREES", 30)
    again, _ = boosted_trees(given(STEP, "regression"))
    assert float(again.mean.std()) > 0.6


def test_the_same_data_give_the_same_predictions(few):
    first, second = (boosted_trees(given(STEP, "regression"))[0] for _ in range(2))
    assert torch.equal(first.mean, second.mean)


def test_classes_and_counts(few):
    ring = np.digitize(np.linalg.norm(X[:, :2], axis=1), [0.8, 1.5]).astype(float)
    found = baselines(given(ring, "multiclass"))
    assert found["boosting"]["accuracy"] > found["linear"]["accuracy"]
    assert found["boosting"]["mnlp"] < found["mean"]["mnlp"]
    binary = baselines(given((ring == 1).astype(float), "binary"))
    assert binary["boosting"]["accuracy"] > binary["linear"]["accuracy"]
    counts = RANDOM.poisson(np.exp(1.0 + STEP)).astype(float)
    found = baselines(given(counts, "count"))
    assert found["boosting"]["rmse"] < found["linear"]["rmse"]
    assert (boosted_trees(given(counts, "count"))[0].mean > 0).all()


@pytest.mark.parametrize("last", range(3))
def test_rare_classes_have_some_probability(few, last):
    """A class with one row may be held out, or fitted, or tested; its probability is never 0."""
    y = np.array([0.0, 1.0] * 15)
    y[7 + last] = 2.0
    log_probabilities, _ = boosted_trees(given(y, "multiclass"))
    assert torch.isfinite(log_probabilities).all()
    total = log_probabilities.exp().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_of_too_many_rows_random_ones_are_taken_and_said(few, monkeypatch, caplog):
    monkeypatch.setattr(boosting, "MAX_ENTRIES", 3 * 100)
    with caplog.at_level("INFO"):
        found = baselines(given(STEP, "regression"))["boosting"]
    assert found["rows"] == 100
    assert "boosting is fitted to 100 random training rows" in caplog.text


def test_few_rows_and_constant_targets(few):
    assert boosted_trees(given(STEP[:10], "regression"))[0].mean.shape == (2,)
    law, _ = boosted_trees(given(np.ones(50), "regression"))
    assert torch.equal(law.mean, torch.zeros_like(law.mean))
    law, _ = boosted_trees(given(np.zeros(50), "count"))
    assert torch.equal(law.mean, torch.zeros_like(law.mean))


def test_importing_the_command_does_not_import_what_few_runs_need():
    slow = {"sklearn", "scipy.stats", "matplotlib", "pandas"}
    code = f"import sys, gpx.commands.train; print(sorted({slow} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
