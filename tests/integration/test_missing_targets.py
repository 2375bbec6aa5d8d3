"""Tables in which rows lack some of several targets, from train.py to predict.py and Python."""

import csv
import json

import numpy as np
import pytest
import torch
from stopped_runs import stopped_at

import gpx
from gpx.commands.diagnose import main as diagnose
from gpx.commands.predict import main as predict
from gpx.errors import ConfigError, DataError, NotAvailable, ShapeError
from gpx.likelihoods import GaussianOutputs
from gpx.runs import RunFolder, load, resume

QUIET = ["trainer.figures=false", "trainer.tensorboard=false", "trainer.baselines=false"]
QUICK = ["init.num_points=100", "init.max_evaluations=5", "trainer.max_steps=8", "kernel=rbf"]
METHODS = {
    "coregional": ["approx=coregional"],
    "independent": ["approx=independent"],
    "two latents": ["approx=coregional", "approx.num_latents=2"],
    "terms": ["approx=coregional", "approx.num_latents=terms", "kernel=rbf_plus_linear"],
    "svgp": ["approx=svgp", "likelihood=gaussian_outputs", "approx.num_inducing=15"],
    "mixed": ["approx=svgp", "likelihood=mixed_outputs", "approx.num_inducing=15"],
}


def made(n=80):
    """Inputs, and targets of units 1 and 100 of which a third is missing; row 3 has none."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, (n, 2))
    wave = np.sin(6.0 * x[:, 0]) + x[:, 1]
    y = np.stack([10.0 + wave, 500.0 - 100.0 * wave], 1) * (1.0 + 0.01 * rng.normal(size=(n, 2)))
    gaps = rng.uniform(size=y.shape) < 0.3
    gaps[3] = True
    return x, np.where(gaps, np.nan, y)


X, Y = made()
NONE = int(np.isnan(Y).all(1).sum())


@pytest.fixture
def table(tmp_path):
    """Path of the same as text, with empty cells."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "zinc", "lead"])
        for row, targets in zip(X, Y, strict=True):
            writer.writerow([*row, *("" if np.isnan(cell) else cell for cell in targets)])
    return path


def options(path, *others):
    return ["data=csv", f"data.path={path}", "data.target=[zinc,lead]", *QUICK, *others]


@pytest.mark.parametrize("name", METHODS)
def test_from_a_table_to_predictions(train, table, tmp_path, capsys, name):
    metrics, folder = train(*options(table, *METHODS[name], "trainer.figures=true"))
    told = "".join(capsys.readouterr())
    assert f"{NONE} of 80 rows have no target and are left out" in told
    assert folder.read_config().facts.num_train + metrics["data.num_test"] == 80 - NONE
    # every cell that is there is trained on or tested, and none else
    for place, target in enumerate(("zinc", "lead")):
        there = metrics[f"data.train_targets.{target}"] + metrics[f"data.test_targets.{target}"]
        assert there == np.isfinite(Y[:, place]).sum()
    assert metrics["test.rmse"] == pytest.approx(
        (metrics["test.rmse.zinc"] + metrics["test.rmse.lead"]) / 2
    )
    for picture in ("predicted_against_observed_1", "calibration_2"):
        assert (folder.figures / f"{picture}.png").stat().st_size > 1000
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("b,a\n0.5,0.1\n0.2,0.9\n")
    predict([f"run={folder.path}", f"input={new}", f"output={out}"])
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert all(np.isfinite(float(cell)) for row in rows for cell in row.values())
    diagnose([f"run={folder.path}"])
    measures = json.loads((folder.path / "calibration.json").read_text())
    assert measures["measures"]["rmse.zinc"] == pytest.approx(metrics["test.rmse.zinc"])
    counts = [metrics[f"data.test_targets.{target}"] for target in ("zinc", "lead")]
    assert min(counts) <= measures["rows"] <= max(counts)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_was_stopped_ends_at_the_same_numbers(train, table, tmp_path, name):
    parts = options(table, *METHODS[name], *QUIET)
    whole, folder = train(*parts)
    with stopped_at(3):
        train(*parts, folder="stopped")
    again = resume(tmp_path / "stopped")
    assert again["test.rmse"] == whole["test.rmse"]
    assert again["train.evidence"] == whole["train.evidence"]
    first, second = (load(p).predict(X[:4]) for p in (folder.path, tmp_path / "stopped"))
    np.testing.assert_array_equal(first, second)


def test_metrics_are_those_of_the_cells_that_are_there():
    fitted = gpx.fit(
        *(X[:60], Y[:60], "approx=coregional", *QUICK, *QUIET),
        test=(X[60:], Y[60:]),
        quiet=True,
        keep=False,
    )
    found = fitted.predict(X[60:]).mean - Y[60:]
    for place, name in enumerate(("y1", "y2")):
        rmse = np.sqrt(np.nanmean(found[:, place] ** 2))
        assert fitted.metrics[f"test.rmse_original.{name}"] == pytest.approx(rmse)


def test_baselines_stand_beside(train, table):
    parts = ["trainer.figures=false", "trainer.tensorboard=false", "trainer.baselines=true"]
    metrics, _ = train(*options(table, "approx=coregional", *parts))
    for name in ("mean", "linear", "5-nn", "boosting"):
        assert np.isfinite(metrics[f"baseline.{name}.rmse.zinc"])
        assert np.isfinite(metrics[f"baseline.{name}.mnlp"])
    assert metrics["baseline.linear.rmse"] < metrics["baseline.mean.rmse"]


def test_the_default_takes_them(tmp_path):
    parts = ("kernel.candidates=[rbf,matern32]", "kernel.max_evaluations=5", "kernel=auto")
    fitted = gpx.fit(X, Y, *QUICK[:3], *QUIET, *parts, folder=tmp_path / "run", quiet=True)
    assert fitted.metrics["model.name"] == "CoregionalGP"
    there = np.isfinite(Y).sum() - sum(fitted.metrics[f"data.test_targets.y{i}"] for i in (1, 2))
    assert f"of which {there} are present" in fitted.metrics["model.choice"]
    assert np.isfinite(fitted.predict(X[:3]).mean).all()


def test_methods_that_cannot_name_those_that_can(train, table, tmp_path):
    parts = ["approx=deep_svgp", "likelihood=gaussian_outputs", "approx.num_inducing=10", *QUIET]
    words = (
        r"lacks \d+ of 1\d\d training targets, and DeepSVGP needs them all: use "
        "approx=coregional or independent, or approx=svgp with likelihood=gaussian_outputs or "
        "mixed_outputs.*"
        "or data.missing=drop"
    )
    with pytest.raises(ConfigError, match=words):
        train(*options(table, *parts))
    assert not (tmp_path / "run").exists()
    _, folder = train(*options(table, *parts, "data.missing=drop", "approx.predict_samples=3"))
    assert folder.read_config().facts.num_train < np.isfinite(Y).all(1).sum()


def test_one_target_is_never_missing(train, table):
    parts = ["data=csv", f"data.path={table}", "data.target=lead", "data.inputs=[a,b]", *QUICK]
    parts += ["data.missing=refuse"]
    with pytest.raises(DataError, match=r"column 4 \('lead'\): found an empty cell"):
        train(*parts, "approx=exact", *QUIET)


def test_a_target_that_training_rows_hardly_have(train, table):
    x, y = X[:30], Y[:30].copy()
    y[np.flatnonzero(np.isfinite(y[:, 1]))[1:], 1] = np.nan
    with pytest.raises(DataError, match=r"the target 'y2' has [01] values in training rows"):
        gpx.fit(x, y, "approx=coregional", *QUICK, *QUIET, quiet=True, keep=False)
    with pytest.raises(DataError, match="all 30 rows have no target"):
        gpx.fit(x, y * np.nan, "approx=coregional", *QUICK, *QUIET, quiet=True, keep=False)


# --- further rows of a trained model ------------------------------------------------------------


def coregional():
    parts = ("approx=coregional", *QUICK, *QUIET, "data.test_fraction=0")
    return gpx.fit(X[:50], Y[:50], *parts, quiet=True, keep=False)


def test_rows_added_are_rows_known_all_along():
    fitted = coregional()
    found = fitted.condition(X[50:], Y[50:])
    model, scaler = fitted.model.posterior, fitted.model.scaler
    x, y = (torch.from_numpy(part) for part in (X, Y))
    known = ~y.isnan()
    x, y = scaler.transform_inputs(x), scaler.transform_targets(y)
    rows, outputs = known.nonzero(as_tuple=True)
    with torch.no_grad():
        between, noise = model.between.matrix(), model.likelihood.noise_variance
        pairs = between[outputs][:, outputs] * model.kernel.evaluate(x[rows], x[rows])
        cross = between[:, outputs] * model.kernel.evaluate(x[:1], x[rows])
        residual = y[rows, outputs] - model.mean(x[rows])
        solved = torch.linalg.solve(pairs + noise[outputs].diag(), residual)
        mean = model.mean(x[:1]) + cross @ solved
    wanted = scaler.original_mean(mean[None])[0]
    np.testing.assert_allclose(found.predict(X[:1]).mean[0], wanted, rtol=1e-8)
    before = fitted.predict(X[:1]).mean[0]
    assert np.abs(before - found.predict(X[:1]).mean[0]).max() > 1e-6


def test_rows_of_a_frame_are_taken_by_the_names_of_their_targets(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(Y, columns=["zinc", "lead"])
    parts = ("approx=coregional", *QUICK, *QUIET)
    fitted = gpx.fit(X[:50], frame[:50], *parts, quiet=True, keep=False)
    turned = frame[50:][["lead", "zinc"]]
    one, other = fitted.condition(X[50:], turned), fitted.condition(X[50:], Y[50:])
    np.testing.assert_array_equal(one.predict(X[:3]), other.predict(X[:3]))


def test_what_cannot_be_added_says_so():
    fitted = coregional()
    with pytest.raises(ShapeError, match=r"targets have shape \(30,\), expected \(30, 2\)"):
        fitted.condition(X[50:], Y[50:, 0])
    with pytest.raises(DataError, match="targets: found inf"):
        fitted.condition(X[50:], np.where(np.isnan(Y[50:]), np.inf, Y[50:]))
    with pytest.raises(ShapeError, match="noise must be 30 variances, or 30 x 2 of them"):
        fitted.condition(X[50:], Y[50:], noise=np.ones((30, 3)))
    sparse = gpx.fit(X, Y, *METHODS["svgp"], *QUICK, *QUIET, quiet=True, keep=False)
    assert isinstance(sparse.model.likelihood, GaussianOutputs)
    with pytest.raises(NotAvailable, match="takes further rows of one target, and these have 2"):
        sparse.condition(X, Y)


def test_a_loaded_run_takes_rows(tmp_path):
    parts = ("approx=coregional", *QUICK, *QUIET)
    fitted = gpx.fit(X[:50], Y[:50], *parts, folder=tmp_path / "run", quiet=True)
    assert RunFolder(tmp_path / "run").metrics.exists()
    one, other = (m.condition(X[50:], Y[50:]) for m in (fitted, gpx.load(tmp_path / "run")))
    np.testing.assert_allclose(one.predict(X[:3]), other.predict(X[:3]), rtol=1e-9)
