from __future__ import annotations

import math

import pytest
import torch

from gpx.metrics import (
    accuracy,
    brier,
    classification_metrics,
    ece,
    entropy,
    entropy_ecdf,
    mce,
    nlp,
    reliability,
)

DOUBLE = torch.float64


def test_worked_example_of_calibration_error() -> None:
    confidence = torch.tensor([0.95, 0.90, 0.55, 0.45], dtype=DOUBLE)
    rest = (1 - confidence)[:, None] / 5
    probabilities = torch.cat([confidence[:, None], rest.expand(4, 5)], dim=1)
    classes = torch.tensor([0, 1, 0, 1])
    # bins of width 0.2: two points in (0.8, 1], two in (0.4, 0.6]
    assert float(ece(probabilities, classes, bins=5)) == pytest.approx(0.2125)
    by_midpoint = ece(probabilities, classes, bins=5, confidence="midpoint")
    assert float(by_midpoint) == pytest.approx(0.20)
    assert float(mce(probabilities, classes, bins=5)) == pytest.approx(0.425)
    found = reliability(probabilities, classes, bins=5)
    assert found.counts.tolist() == [0, 0, 2, 0, 2]
    assert found.accuracy[[2, 4]].tolist() == [0.5, 0.5]
    assert found.confidence[[2, 4]].tolist() == pytest.approx([0.5, 0.925])
    assert bool(found.accuracy[[0, 1, 3]].isnan().all())


def test_worked_examples_of_scores() -> None:
    probabilities = torch.tensor([[0.7, 0.2, 0.1]], dtype=DOUBLE)
    first = torch.tensor([0])
    assert float(brier(probabilities, first)) == pytest.approx(0.14)
    assert float(brier(probabilities, first, over_classes="mean")) == pytest.approx(0.14 / 3)
    assert float(nlp(probabilities.log(), first)) == pytest.approx(-math.log(0.7))
    uniform = torch.full((1, 10), 0.1, dtype=DOUBLE)
    assert float(brier(uniform, first)) == pytest.approx(0.9)
    assert float(entropy(uniform)[0]) == pytest.approx(2.302585)
    assert float(entropy(probabilities)[0]) == pytest.approx(0.801819, abs=1e-6)
    assert float(entropy(torch.eye(3))[0]) == 0.0


def test_worked_example_of_the_distribution_of_entropies() -> None:
    even = torch.full((1, 4), 0.25, dtype=DOUBLE)
    certain = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=DOUBLE)
    halves = torch.tensor([[0.5, 0.5, 0.0, 0.0]], dtype=DOUBLE)
    probabilities = torch.cat([even, certain, halves, certain])
    thresholds = torch.tensor([math.log(4.0), -0.1, 0.0, 0.7, 0.5], dtype=DOUBLE)
    # entropies 0, 0, log 2 and log 4; a threshold that is met counts
    found = entropy_ecdf(probabilities, thresholds)
    assert found.tolist() == [1.0, 0.0, 0.5, 0.75, 0.5]
    single = entropy_ecdf(probabilities.float(), thresholds[3:])
    assert single.dtype == torch.float32
    assert single.tolist() == [0.75, 0.5]


def test_a_confidence_at_an_edge_belongs_to_the_bin_below() -> None:
    confidence = torch.tensor([0.5, 0.625, 0.75, 0.875], dtype=torch.float64)
    probabilities = torch.stack([confidence, 1.0 - confidence], 1)
    found = reliability(probabilities, torch.zeros(4), bins=4)
    assert found.counts.tolist() == [0.0, 1.0, 2.0, 1.0]


def test_certain_predictions_stay_in_the_last_bin() -> None:
    probabilities = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=DOUBLE)
    assert float(ece(probabilities, torch.tensor([0, 1]))) == pytest.approx(0.5)


def test_labels_drawn_from_the_probabilities_are_calibrated() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400_000, 3, generator=generator, dtype=DOUBLE)
    probabilities = logits.softmax(-1)
    classes = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    # every bin's gap has standard deviation at most 0.5 / sqrt(count): the sum stays below 0.005
    assert float(ece(probabilities, classes)) < 0.005
    expected = float(probabilities.amax(-1).mean())
    assert float(accuracy(probabilities, classes)) == pytest.approx(expected, abs=0.004)


def test_all_metrics_agree_with_their_definitions() -> None:
    probabilities = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.8, 0.2]], dtype=DOUBLE)
    found = classification_metrics(probabilities.log(), torch.tensor([0, 0, 0]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["brier"] == pytest.approx(2 * (0.16 + 0.49 + 0.04) / 3)
    assert found["rmse"] == pytest.approx(math.sqrt(found["brier"]))
    assert found["mnlp"] == pytest.approx(-math.log(0.6 * 0.3 * 0.8) / 3)
    assert found["ece"] == pytest.approx((0.4 + 0.7 + 0.2) / 3)
