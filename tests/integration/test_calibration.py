"""Runs that recalibrate: rows held out, metrics before and after, loading, resuming, refusals."""

import json
import math

import numpy as np
import pytest
import torch
from refusals import refused
from stopped_runs import stopped_at

import gpx
from gpx.calibration import Temperature
from gpx.commands.diagnose import main as diagnose
from gpx.data import load as load_data
from gpx.errors import CheckpointError, ConfigError, DataError
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.runs import RunFolder, load, resume, run
from gpx.runs.calibration_report import CalibrationReport

SMALL = ["trainer.tensorboard=false", "trainer.eval_every=0", "trainer.baselines=false"]
CLASSES = [
    *("approx=cnn", "data=digits", "data.noise=0.5"),
    *("data.train_size=500", "trainer.max_steps=150", "calibrate=temperature"),
]
NUMBERS = [
    *("approx=svgp", "approx.num_inducing=20", "data=robot_arm", "data.num_points=600"),
    *("trainer.max_steps=20", "init.num_points=60", "init.max_evaluations=5"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("calibrated") / "run")
    return folder, run(composed([*SMALL, *CLASSES]), folder)


def test_a_temperature_keeps_the_errors(finished):
    folder, metrics = finished
    assert metrics["test.accuracy"] == metrics["uncalibrated.accuracy"]
    assert metrics["test.mnlp"] < metrics["uncalibrated.mnlp"]
    assert metrics["calibration.temperature"] > 1.0  # such a network is over-confident
    assert json.loads(folder.metrics.read_text()) == metrics
    assert (folder.figures / "reliability.png").stat().st_size > 1000


def test_a_loaded_model_predicts_with_it(finished):
    folder, metrics = finished
    data = load_data(build(folder.read_config(), "data"), task="multiclass")
    predictor = load(folder.path)
    assert isinstance(predictor.calibration, Temperature)
    label, probability = predictor.predict_classes(data.scaler.original_inputs(data.test_x).numpy())
    truth = data.test_y.long().numpy()
    found = -np.log(probability[np.arange(len(truth)), truth]).mean()
    assert found == pytest.approx(metrics["test.mnlp"], rel=1e-4)
    assert (label == truth).mean() == pytest.approx(metrics["test.accuracy"])


def test_held_out_rows_are_not_trained_on(finished):
    folder, _ = finished
    assert folder.read_config().facts.num_train == 450


def test_a_resumed_run_calibrates_alike(finished, tmp_path):
    _, whole = finished
    folder = RunFolder(tmp_path / "stopped")
    with stopped_at(30):
        run(composed([*SMALL, *CLASSES, "trainer.figures=false"]), folder)
    resumed = resume(folder.path)
    for name in ("test.mnlp", "uncalibrated.mnlp", "calibration.temperature"):
        assert resumed[name] == whole[name]


def test_another_calibration_than_that_of_the_checkpoint_is_refused(tmp_path):
    folder = RunFolder(tmp_path / "run")
    run(composed([*SMALL, *NUMBERS, "calibrate=variance", "trainer.figures=false"]), folder)
    text = folder.config.read_text()
    folder.config.write_text(text.replace("calibration.Variance", "calibration.Conformal"))
    with pytest.raises(CheckpointError, match="its checkpoint was trained with"):
        load(folder.path)
    folder.config.write_text(text.replace("gpx.calibration.Variance", "gpx.kernels.RBF"))
    with pytest.raises(CheckpointError, match="calibration"):
        load(folder.path)


@pytest.mark.parametrize("name", ["variance", "conformal"])
def test_numbers(tmp_path, name):
    folder = RunFolder(tmp_path / "run")
    metrics = run(composed([*SMALL, *NUMBERS, f"calibrate={name}"]), folder)
    assert (folder.figures / "calibration.png").exists()
    assert metrics["calibration.factor"] != 1.0
    assert metrics["test.rmse"] == pytest.approx(metrics["uncalibrated.rmse"], rel=1e-5)
    assert metrics["test.mnlp"] != metrics["uncalibrated.mnlp"]


def test_heavy_tails_are_kept(tmp_path):
    folder = RunFolder(tmp_path / "run")
    options = [*SMALL, *NUMBERS, "likelihood=student_t", "calibrate=variance"]
    metrics = run(composed([*options, "trainer.figures=false"]), folder)
    predictor = load(folder.path)
    law = predictor.distribution(torch.zeros(2, 8))
    df = float(predictor.likelihood.df.detach())
    far = law.mean + 1e3 * law.stddev
    # the density of Student's t falls like the distance to the power -(df + 1)
    fall = law.log_prob(far) - law.log_prob(law.mean + 1e4 * law.stddev)
    assert fall.tolist() == pytest.approx([(df + 1.0) * math.log(10.0)] * 2, rel=1e-2)
    assert metrics["test.rmse"] == pytest.approx(metrics["uncalibrated.rmse"], rel=1e-5)


def test_a_few_rows_without_an_error_do_not_make_a_model_under_confident():
    """Fifteen confidences of 0.9: all are right in a fifth of all cases."""
    error = math.sqrt(0.9 * 0.1 / 15)
    measures = {"confidence": 0.9, "accuracy": 1.0, "confidence_error": error}
    report = CalibrationReport("multiclass", 15, measures, None, {})
    assert report.sentence().startswith("calibrated, as far as 15 test points can tell")
    surer = {**measures, "confidence_error": error / 4.0}  # 240 of them
    found = CalibrationReport("multiclass", 240, surer, None, {}).sentence()
    assert found.startswith("under-confident")


def test_diagnose_shows_classes_before_and_after(finished, tmp_path, capsys):
    folder, metrics = finished
    others = tmp_path / "others.csv"
    table = np.random.default_rng(0).uniform(0.0, 16.0, (40, 64))
    np.savetxt(others, table, delimiter=",")
    diagnose([f"run={folder.path}", f"elsewhere={others}"])
    lines = capsys.readouterr().out.splitlines()
    for words, name in (("Brier score", "brier"), ("(ECE), by the mean", "ece"), ("(MCE)", "mce")):
        line = next(line for line in lines if words in line)
        before, after = (float(cell) for cell in line.split()[-2:])
        assert before == pytest.approx(metrics[f"uncalibrated.{name}"], rel=1e-3)
        assert after == pytest.approx(metrics[f"test.{name}"], rel=1e-3)
    assert any("the mean confidence is" in line for line in lines)
    assert any("recalibrated on held-out rows: temperature" in line for line in lines)
    assert any("no certificate: a run of CNN cannot be certified" in line for line in lines)
    kept = json.loads((folder.path / "calibration.json").read_text())
    assert kept["before"]["ece"] == pytest.approx(metrics["uncalibrated.ece"], rel=1e-5)
    assert kept["settings"]["temperature"] == metrics["calibration.temperature"]
    confidence, error = (kept["measures"][k] for k in ("confidence", "confidence_error"))
    assert 0.0 < error <= math.sqrt(confidence * (1.0 - confidence) / kept["rows"])
    assert 0.0 <= kept["elsewhere"]["auroc"] <= 1.0
    assert kept["elsewhere"]["rows"] == 40
    assert any(f"AUROC of {kept['elsewhere']['auroc']:.3f}" in line for line in lines)


def test_diagnose_shows_numbers_in_their_own_unit(tmp_path, capsys):
    folder = RunFolder(tmp_path / "run")
    metrics = run(composed([*SMALL, *NUMBERS, "calibrate=conformal"]), folder)
    before = (folder.figures / "calibration.png").read_bytes()
    (folder.figures / "calibration.png").unlink()
    diagnose([f"run={folder.path}"])
    said = capsys.readouterr().out
    for name in ("coverage_95", "crps_original", "interval_score_95_original"):
        assert f"{metrics[f'uncalibrated.{name}']:12.4g}{metrics[f'test.{name}']:12.4g}" in said
    assert "95 % intervals contain" in said
    assert (folder.figures / "calibration.png").read_bytes() == before


def test_diagnose_without_test_rows(tmp_path, capsys):
    folder = RunFolder(tmp_path / "run")
    options = ["approx=qsgp", "data=toy1d", "data.test_fraction=0", "approx.num_basis=100"]
    run(composed([*SMALL, *options, "init=constants", "trainer.figures=false"]), folder)
    assert "has no test rows" in refused(capsys, diagnose, f"run={folder.path}")


def test_from_python(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    y = (x[:, 0] + 0.5 * generator.normal(size=200) > 0).astype(float)
    fitted = gpx.fit(
        *(x, y, *SMALL, "approx=deep_rf", "likelihood=bernoulli", "calibrate=platt"),
        *("approx.num_features=20", "trainer.max_steps=30", "trainer.figures=false"),
        folder=tmp_path / "run",
    )
    assert fitted.metrics["calibration.slope"] > 0.0
    assert fitted.predict_classes(x).probability.sum(1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (["calibrate=temperature"], ConfigError, "is for binary, multiclass and ordinal"),
        (["calibrate=variance", "calibrate.fraction=0.001"], DataError, "rows to calibrate on"),
        (["calibrate=variance", "calibrate.fraction=0.9"], ConfigError, "cannot be held out"),
        (
            ["calibrate=conformal", "calibrate.fraction=0.02"],
            DataError,
            r"11 held-out rows cannot .* calibrate.fraction=0.02, or lower calibrate.level=0.95",
        ),
    ],
)
def test_what_does_not_fit(tmp_path, options, error, words):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(error, match=words):
        run(composed([*SMALL, *NUMBERS, *options]), folder)
    assert not folder.path.exists()
    assert torch.get_default_dtype() == torch.float32
