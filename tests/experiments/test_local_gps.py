"""E16: published figures that a Gaussian law cannot have, and units."""

from __future__ import annotations

import math

import pytest
import torch


def test_published_losses_below_the_least_are_named(script):
    said = " ".join(script("swsgp/local_gps").floors())
    assert "POWERPLANT, SWSGP-64-8: 2.40 (least 2.86)" in said
    assert "KIN8NM, SWSGP-64-8: -1.38 (least -0.88)" in said
    assert "inductive" not in said
    assert "transductive" not in said


def test_losses_in_units_of_the_data(script):
    module = script("swsgp/local_gps")
    fold = module.Fold(*(torch.zeros(1),) * 4, unit=17.0)
    found = module.in_units({"rmse": 0.25, "mnll": 0.1, "rmse to f": 1.0}, fold)
    law = torch.distributions.Normal(0.0, 17.0)
    assert found == {"rmse": 4.25, "mnll": 0.1 + math.log(17.0)}
    unit = torch.distributions.Normal(0.0, 1.0)
    y = torch.tensor(3.0)
    assert float(-law.log_prob(17.0 * y)) == pytest.approx(float(-unit.log_prob(y)) + math.log(17))


def test_local_gps_that_are_better_than_published(script):
    module = script("swsgp/local_gps")
    rows = {"KIN8NM": [{"model": "inductive", "rmse": 0.1, "mnll": -0.9}]}
    assert "RMSE 0.1 (0.13), MNLL -0.90 (-0.40)" in module.beside_published(rows)[0]
    rows["KIN8NM"][0]["mnll"] = -0.3
    assert module.beside_published(rows) == []
