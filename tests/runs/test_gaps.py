"""Rows that lack a value: predictions against sums over the values it may have had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gpx
from gpx.data.columns.gaps import STAND_INS
from gpx.runs.gaps import LATTICE
from gpx.runs.predictor import Predictor

NAN = np.nan
FEW = ("data.missing=mean", "data.test_fraction=0", "approx=exact", "trainer.max_steps=30")


def slope(seed: int, gaps: int = 3, rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a steep function of the first input, which some rows lack."""
    draws = np.random.default_rng(seed)
    x = draws.uniform(-2, 2, (rows, 2))
    y = 3 * x[:, 0] + np.sin(2 * x[:, 1]) + 0.1 * draws.standard_normal(rows)
    x[:gaps, 0] = NAN
    return x, y


@pytest.fixture(scope="module")
def model() -> Predictor:
    x, y = slope(0)
    x[3:6, 1] = NAN
    return gpx.fit(x, y, *FEW, "kernel=rbf", quiet=True, keep=False).model


def test_it_is_the_average_over_training_values(model: Predictor) -> None:
    assert model.coding is not None
    first, second = (column.stand_ins for column in model.coding.columns)
    found = model.predict([[NAN, 0.5], [0.3, 0.5], [NAN, NAN]])
    paired = [second[LATTICE * k % len(second)] for k in range(len(first))]
    for row, rows in ((0, [[v, 0.5] for v in first]), (2, list(zip(first, paired, strict=True)))):
        parts = model.predict(rows)
        variance = (parts.std**2).mean() + parts.mean.var()
        np.testing.assert_allclose(found.mean[row], parts.mean.mean(), rtol=1e-10)
        np.testing.assert_allclose(found.std[row], np.sqrt(variance), rtol=1e-10)
    alone = model.predict([[0.3, 0.5]])
    np.testing.assert_allclose([found.mean[1], found.std[1]], [alone.mean[0], alone.std[0]], 1e-12)


def test_several_missing_values_are_paired_as_if_independent() -> None:
    places = np.arange(STAND_INS)
    assert sorted(places * LATTICE % STAND_INS) == places.tolist()
    orders = [places * LATTICE**number % STAND_INS for number in range(3)]
    correlations = np.corrcoef(orders)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.25


def test_so_are_those_of_the_function_and_those_with_known_noise(model: Predictor) -> None:
    rows = [[NAN, 0.5], [0.3, 0.5]]
    noisy, known = model.predict(rows), model.predict(rows, noise=[0.5, 0.0])
    np.testing.assert_allclose(known.mean, noisy.mean, rtol=1e-12)
    np.testing.assert_allclose(known.std**2 - noisy.std**2, [0.5, 0.0], rtol=1e-9, atol=1e-12)
    noise = float(model.likelihood.noise_variance.detach()) * float(model.scaler.target_scale) ** 2
    latent = model.latent(rows)
    np.testing.assert_allclose(latent.mean, noisy.mean, rtol=1e-12)
    np.testing.assert_allclose(noisy.std**2 - latent.std**2, noise, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "rbf+linear"])
def test_rows_that_lack_a_value_are_predicted_with_the_spread_they_have(kernel: str) -> None:
    x, y = slope(1)
    new, truth = slope(2, gaps=400, rows=400)
    fitted = gpx.fit(x, y, *FEW, f"kernel={kernel}", quiet=True, keep=False)
    found = fitted.predict(new)
    away = (truth - found.mean) / found.std
    # uniform inputs under a normal law of their variance: no residual is 3 deviations away
    assert np.abs(away).max() < 3.0
    assert np.sqrt(np.mean((truth - found.mean) ** 2)) < 1.1 * truth.std()
    assert 0.8 < np.sqrt(np.mean(away**2)) < 1.2


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_of_classes_are_averaged(classes: int) -> None:
    x, y = slope(3)
    labels = np.digitize(y, [0.0] if classes == 2 else [-2.0, 2.0])
    likelihood = "bernoulli" if classes == 2 else "softmax"
    options = ("approx=laplace", "kernel=rbf", f"likelihood={likelihood}", "trainer.max_steps=3")
    fitted = gpx.fit(x, labels, *FEW, *options, quiet=True, keep=False).model
    assert fitted.coding is not None
    found = fitted.predict_classes([[NAN, 0.5], [0.3, 0.5]]).probability
    parts = fitted.predict_classes([[v, 0.5] for v in fitted.coding.columns[0].stand_ins])
    np.testing.assert_allclose(found[0], parts.probability.mean(0), rtol=1e-10)
    np.testing.assert_allclose(found[1], fitted.predict_classes([[0.3, 0.5]]).probability[0])


def test_a_folder_of_before_predicts_as_it_did(tmp_path: Path) -> None:
    x, y = slope(0)
    gpx.fit(x, y, *FEW, "kernel=rbf", quiet=True, folder=tmp_path / "run")
    path, rows = tmp_path / "run" / "checkpoint.pt", [[NAN, 0.5], [0.3, 0.5]]
    new = gpx.load(path.parent)
    with torch.no_grad():  # what the model itself says where the indicator is 1
        at_rows = new.placed(new.scaler.transform_inputs(torch.from_numpy(new.coded(rows))))
        law = new.posterior.predictive(at_rows, new.likelihood)
    kept = torch.load(path, weights_only=False)
    for column in kept["coding"]["columns"]:
        del column["stand_ins"]
    torch.save(kept, path)
    old = gpx.load(path.parent).predict(rows)
    np.testing.assert_allclose(old.mean, new.scaler.original_mean(law.mean), rtol=1e-12)
    np.testing.assert_allclose(old.std, new.scaler.original_std(law.stddev), rtol=1e-12)
    assert abs(new.predict(rows).std[0] - old.std[0]) > 1e-3
