"""Tables with texts, dates and gaps from train.py to predict.py, diagnose.py and Python."""

import csv
import json

import numpy as np
import pytest
import torch
from refusals import refused

from gpx.commands.diagnose import main as diagnose
from gpx.commands.predict import main as predict
from gpx.data import load as load_data
from gpx.errors import CheckpointError, ConfigError, DataError
from gpx.options.build import build
from gpx.runs import fit, load
from gpx.training.checkpoint import load_checkpoint, save_checkpoint

QUIET = ["trainer.figures=false", "trainer.tensorboard=false"]
LEVELS = {"red": 0.0, "green": 2.0, "blue": -2.0}


@pytest.fixture
def table(tmp_path):
    """Path of a table of 90 rows: name, colour, when, size, strength, quality."""
    rng = np.random.default_rng(0)
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "colour", "when", "size", "strength", "quality"])
        for i in range(90):
            colour, size = list(LEVELS)[i % 3], rng.uniform(0, 4)
            day = np.datetime64("2021-01-01") + int(rng.integers(300))
            strength = LEVELS[colour] + np.sin(size) + 0.05 * rng.normal()
            quality = "yes" if strength > 0.5 else "no"
            writer.writerow([f"r{i}", colour, day, f"{size:.4f}", f"{strength:.4f}", quality])
    return path


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def run_predict(folder, source, target):
    predict([f"run={folder.path}", f"input={source}", f"output={target}"])
    return rows_of(target)


def test_texts_and_dates_end_to_end(train, table, tmp_path, capsys, caplog):
    options = ["data=csv", f"data.path={table}", "data.id=name", "data.target=strength"]
    options += ["data.inputs=[colour,when,size]", "approx=exact", "trainer.max_steps=30", *QUIET]
    metrics, folder = train(*options)
    assert metrics["test.rmse"] < 0.2  # a third of it without the colours
    assert folder.read_config().facts.num_inputs == 5
    new = tmp_path / "new.csv"
    # other order, other columns, texts with commas among the names
    new.write_text(
        "size,name,when,colour,other\n"
        + '1.0,"a, b",2021-03-04,red,x\n1.0,c,2021-03-04T12:00,green,y\n1.0,d,2021-03-04,violet,z\n'
    )
    found = run_predict(folder, new, tmp_path / "out.csv")
    assert list(found[0]) == ["name", "mean", "std", "lower", "upper"]
    assert [row["name"] for row in found] == ["a, b", "c", "d"]
    assert float(found[0]["mean"]) == pytest.approx(np.sin(1.0), abs=0.4)
    assert float(found[1]["mean"]) == pytest.approx(2.0 + np.sin(1.0), abs=0.4)
    assert float(found[2]["std"]) > 2 * float(found[0]["std"])
    assert "line 4, column 4 ('colour'): found 'violet'" in caplog.text
    model = load(folder.path)
    rows = [["red", "2021-03-04", 1.0], ["green", "2021-03-04T12:00", 1.0]]
    by_hand = model.predict(rows)
    np.testing.assert_allclose(by_hand.mean, [float(r["mean"]) for r in found[:2]], rtol=1e-8)
    diagnose([f"run={folder.path}", f"points={new}"])
    points = json.loads((folder.path / "diagnostics.json").read_text())["points"]
    assert points["colour=green"] == pytest.approx([0.0, 1.0, -1.0 / 3.0])
    new.write_text("size,when,colour\n1.0,2021-02-30,red\n")
    with pytest.raises(SystemExit):
        run_predict(folder, new, tmp_path / "out.csv")
    told = capsys.readouterr().err
    assert "line 2, column 2 ('when'): found '2021-02-30', expected a date" in told


def test_text_classes_end_to_end(train, table, tmp_path):
    options = ["data=csv", f"data.path={table}", "data.inputs=[colour,size]", "approx=svgp"]
    options += ["approx.num_inducing=20", "likelihood=bernoulli", "trainer.max_steps=150", *QUIET]
    metrics, folder = train(*options)
    assert metrics["test.accuracy"] > 0.7
    (tmp_path / "new.csv").write_text("colour,size\ngreen,1.5\nblue,1.5\n")
    found = run_predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")
    assert list(found[0]) == ["label", "probability_no", "probability_yes"]
    assert [row["label"] for row in found] == ["yes", "no"]
    model = load(folder.path)
    assert model.labels == ("no", "yes")
    assert model.predict_classes([["green", 1.5]]).label.tolist() == ["yes"]


def test_gaps_are_filled_at_prediction_as_in_training(train, table, tmp_path, capsys):
    lines = table.read_text().splitlines()
    head, *rows = (line.split(",") for line in lines)
    for i in range(0, 90, 4):
        rows[i][3] = ""
    table.write_text("\n".join(",".join(row) for row in [head, *rows]) + "\n")
    options = ["data=csv", f"data.path={table}", "data.target=strength", "approx=exact"]
    options += ["data.inputs=[colour,size]", "trainer.max_steps=20", *QUIET]
    with pytest.raises(DataError, match=r"line 2, column 4 \('size'\).*data.missing=drop or data"):
        train(*options, "data.missing=refuse", folder="refused")
    _, folder = train(*options)
    said = "".join(capsys.readouterr())
    assert "note: missing values (in how many rows) are filled in with training means: 's" in said
    (tmp_path / "new.csv").write_text("colour,size\nred,\nred,1.5\n")
    found = run_predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")
    rows = load(folder.path).predict([["red", None], ["red", 1.5]])
    np.testing.assert_allclose([float(row["mean"]) for row in found], rows.mean, rtol=1e-8)
    assert rows.mean[0] == pytest.approx((1 - np.cos(4.0)) / 4, abs=0.4)  # of sin(size)
    _, folder = train(*options, "data.missing=drop", folder="dropped")
    assert folder.read_config().facts.num_train < 70
    assert "rows lack a value and are left out" in "".join(capsys.readouterr())
    with pytest.raises(SystemExit):
        run_predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")
    assert "line 2, column 2 ('size'): found an empty cell" in capsys.readouterr().err


def test_a_foreign_description_of_the_columns_is_refused(train, table):
    options = ["data=csv", f"data.path={table}", "data.target=strength", "approx=exact"]
    _, folder = train(*options, "data.inputs=[colour,size]", "trainer.max_steps=2", *QUIET)
    state = load_checkpoint(folder.checkpoint)
    kept = state["coding"]["columns"]
    for columns in (kept[:1], [{**kept[0], "kind": "eval"}, kept[1]], [3], None):
        save_checkpoint(
            folder.checkpoint, {**state, "coding": {**state["coding"], "columns": columns}}
        )
        with pytest.raises(CheckpointError, match=r"checkpoint.pt does not fit config.yaml"):
            load(folder.path)


def test_all_rows_are_trained_on(train, table, tmp_path, capsys):
    options = ["data=csv", f"data.path={table}", "data.inputs=[colour,size]", "approx=exact"]
    options += ["data.target=strength", "data.test_fraction=0", "trainer.max_steps=4"]
    metrics, folder = train(*options, "trainer.eval_every=2", "trainer.baselines=true")
    assert (metrics["data.num_test"], folder.read_config().facts.num_train) == (0, 90)
    assert not [name for name in metrics if name.startswith(("test.", "baseline."))]
    said = "".join(capsys.readouterr())
    inputs = "4 inputs (colour=blue, colour=green, colour=red, size), target strength"
    assert f"90 training and 0 test rows, {inputs}; trained on all rows, so there" in said
    assert "no test metrics: all rows were trained on" in said
    (tmp_path / "new.csv").write_text("colour,size\nred,1.5\n")
    assert len(run_predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")) == 1
    diagnose([f"run={folder.path}"])
    points = json.loads((folder.path / "diagnostics.json").read_text())["points"]
    assert len(points["size"]) == 50


def test_other_data_on_resume_is_one_sentence(train_py, train, noisy, tmp_path):
    """Data may have been moved; other data, and other columns of them, are a new run."""
    _, folder = train("data=csv", f"data.path={noisy}", "approx=exact", "trainer.max_steps=3")
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / noisy.name
    other.write_text(noisy.read_text().replace("\n", "\n1,0,2\n", 1))
    for option, expected in (
        (f"data.path={other}", "have changed since it started"),
        ("data.target=v", "data.target=v cannot be changed"),
    ):
        folder.metrics.unlink(missing_ok=True)
        status, err = train_py(f"resume={folder.path}", option)
        said = [line for line in err.splitlines() if line.startswith("error: ")]
        assert status == 2
        assert len(said) == 1
        assert expected in said[0]
        assert str(noisy) in folder.config.read_text()


def test_a_renamed_table_is_the_same_on_resume(train_py, train, noisy, tmp_path):
    _, folder = train("data=csv", f"data.path={noisy}", "approx=exact", "trainer.max_steps=3")
    noisy.rename(tmp_path / "other name.csv")
    renamed = f"data.path='{tmp_path / 'other name.csv'}'"
    status, err = train_py(f"resume={folder.path}", renamed, "trainer.max_steps=5")
    assert status == 0, err


def test_files_of_one_name_are_told_apart(train_py, train, noisy, tmp_path):
    """A test table beside a training table of the same name: a change of either is seen."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.csv").write_text(noisy.read_text())
    paths = (f"data.path={tmp_path}/one/table.csv", f"data.test_path={tmp_path}/two/table.csv")
    _, folder = train("data=csv", *paths, "approx=exact", "trainer.max_steps=3")
    changed = noisy.read_text().replace("\n", "\n1,0,2\n", 1)
    (tmp_path / "one" / "table.csv").write_text(changed)
    folder.metrics.unlink()
    status, err = train_py(f"resume={folder.path}")
    assert (status, "have changed since it started" in err) == (2, True)


@pytest.fixture
def noisy(tmp_path):
    """Path of a table of 100 rows a, v, y: noise of variance 0.01 + v; v is 0 or 4."""
    rng = np.random.default_rng(1)
    a = rng.uniform(-3, 3, 100)
    v = np.where(rng.uniform(size=100) < 0.5, 0.0, 4.0)
    y = 5 * np.sin(a) + np.sqrt(0.01 + v) * rng.normal(size=100)
    path = tmp_path / "noisy.csv"
    rows = "".join(f"{p},{q},{r}\n" for p, q, r in zip(a, v, y, strict=True))
    path.write_text("a,v,y\n" + rows)
    return path


def test_known_noise_by_row(train, noisy, tmp_path, capsys):
    options = ["data=csv", f"data.path={noisy}", "approx=exact", "trainer.max_steps=40", *QUIET]
    plain, _ = train(*options, "data.inputs=[a]", folder="plain")
    metrics, folder = train(*options, "data.noise=v")
    assert metrics["test.mnlp"] < plain["test.mnlp"] - 0.3
    assert 0.05 < load(folder.path).likelihood.noise_variance.sqrt() * 4 < 0.25
    (tmp_path / "new.csv").write_text("v,a\n0,1\n4,1\n")
    found = run_predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")
    low, high = (float(row["std"]) for row in found)
    assert high**2 == pytest.approx(low**2 + 4.0, rel=1e-6)
    (tmp_path / "new.csv").write_text("a\n1\n")
    without = run_predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")
    assert float(without[0]["std"]) == pytest.approx(low, rel=1e-6)
    law = load(folder.path).predict([[1.0]], noise=[4.0])
    assert law.std[0] == pytest.approx(high, rel=1e-6)
    np.savez(tmp_path / "new.npz", x=[[1.0], [1.0]], v=[0.0, 4.0])
    assert run_predict(folder, tmp_path / "new.npz", tmp_path / "out.csv") == found
    (tmp_path / "new.csv").write_text("v,a\n400,1\n400,0\n")
    diagnose([f"run={folder.path}", f"elsewhere={tmp_path / 'new.csv'}"])
    compared = json.loads((folder.path / "calibration.json").read_text())["elsewhere"]
    assert compared["auroc"] == 1.0  # noisier than every test row
    assert "cannot be certified" in capsys.readouterr().out
    assert "cannot be certified" in refused(capsys, diagnose, f"run={folder.path}", "threshold=1")


def test_weights_by_row(train, noisy):
    text = noisy.read_text().replace(",0.0,", ",400,").replace(",4.0,", ",1,")
    noisy.write_text(text)
    options = ["data=csv", f"data.path={noisy}", "approx=exact", "trainer.max_steps=40", *QUIET]
    metrics, _ = train(*options, "data.weights=v")
    plain, _ = train(*options, "data.inputs=[a]", folder="plain")
    assert metrics["test.mnlp"] < plain["test.mnlp"] - 0.3


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (("0.0", "-0.5"), [], r"column 2 \('v'\): found -0.5, expected a noise variance \(0 or mo"),
        (("0.0", "x"), [], r"column 2 \('v'\): found text 'x', expected a number"),
        (
            (),
            ["approx=committee"],
            "has one noise variance for all rows, .*noise= .*approx=",
        ),
        ((), ["approx.solver=iterative"], r"approx.solver=iterative takes one .*solver=cholesky"),
        ((), ["calibrate=variance"], "calibrate= needs one noise variance for all rows"),
        (
            (),
            ["trainer.certify=true"],
            "^trainer.certify=true: .*certificates take one noise varia",
        ),
        (
            (),
            ["likelihood=student_t", "approx=svgp"],
            "adds to that of the Gaussian likelihood of one output",
        ),
        (
            (),
            ["likelihood=poisson", "approx=svgp"],
            "needs targets that are real numbers|count",
        ),
    ],
)
def test_known_noise_that_cannot_be(train, noisy, change, options, words):
    if change:
        noisy.write_text(noisy.read_text().replace(f",{change[0]},", f",{change[1]},"))
    options = ["approx=exact", "data.noise=v", "trainer.max_steps=2", *QUIET, *options]
    with pytest.raises((ConfigError, DataError), match=words):
        train("data=csv", f"data.path={noisy}", *options)


@pytest.fixture(scope="module")
def skewed(tmp_path_factory):
    """Path of a table of 150 rows a, y; log y = sin(a) + noise of standard deviation 0.5."""
    rng = np.random.default_rng(3)
    a = rng.uniform(-3, 3, 150)
    y = np.exp(2 * np.sin(a) + 0.5 * rng.normal(size=150))
    path = tmp_path_factory.mktemp("skewed") / "skewed.csv"
    path.write_text("a,y\n" + "".join(f"{p},{q}\n" for p, q in zip(a, y, strict=True)))
    return path


@pytest.fixture(scope="module")
def untransformed(train_once, skewed):
    """Metrics of a run on the targets as they are."""
    options = ["data=csv", f"data.path={skewed}", "approx=exact", "trainer.max_steps=30"]
    return train_once(*options, *QUIET)[0]


@pytest.mark.parametrize("kind", ["log", "boxcox", "quantile"])
def test_targets_are_modelled_through_a_transform(
    train, skewed, untransformed, tmp_path, capsys, kind
):
    options = ["data=csv", f"data.path={skewed}", "approx=exact", "trainer.max_steps=30"]
    options += ["trainer.tensorboard=false", f"data.target_transform={kind}"]
    metrics, folder = train(*options, f"trainer.figures={kind == 'log'}".lower())
    plain = untransformed
    gain = 0.1 if kind == "quantile" else 0.3  # six knots for 135 rows
    assert metrics["test.mnlp"] < plain["test.mnlp"] - gain  # of one density, in one unit
    gained = metrics["train.log_jacobian"] + metrics["train.evidence"]
    assert gained > plain["train.evidence"] + 30
    (tmp_path / "new.csv").write_text("a\n1.5\n-1.5\n")
    found = run_predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")
    for row, centre in zip(found, (2 * np.sin(1.5), 2 * np.sin(-1.5)), strict=True):
        assert 0.0 <= float(row["lower"]) < np.exp(centre) < float(row["upper"])
        expected = np.exp(centre + 0.125)  # of the lognormal law
        assert float(row["mean"]) == pytest.approx(expected, rel=0.4)
    model = load(folder.path)
    again = model.predict([[1.5], [-1.5]])
    np.testing.assert_allclose(again.upper, [float(r["upper"]) for r in found], rtol=1e-8)
    if kind == "log":
        base = model.distribution(model.scaler.transform_inputs(torch.tensor([[1.5]]))).base
        end = base.mean + 1.959964 * base.stddev
        y = np.exp(float(end) * model.target_transform.scale + model.target_transform.shift)
        assert again.upper[0] == pytest.approx(y, rel=1e-5)
    diagnose([f"run={folder.path}"])
    said = capsys.readouterr().out
    assert "no certificate: a run with data.target_transform= cannot be certified" in said
    assert f"{metrics['test.crps_original']:12.4g}" in said


@pytest.mark.parametrize("name", ["variance", "conformal"])
def test_recalibration_is_of_the_transformed_target(train, skewed, tmp_path, name):
    """Its factor widens the normal law behind y; densities of y have the Jacobian in both."""
    options = ["data=csv", f"data.path={skewed}", "approx=exact", "trainer.max_steps=15", *QUIET]
    options += ["data.target_transform=log", f"calibrate={name}", "calibrate.fraction=0.3"]
    metrics, folder = train(*options)
    factor = metrics["calibration.factor"]
    model = load(folder.path)
    x = model.scaler.transform_inputs(torch.tensor([[1.5], [-1.5]], dtype=torch.float64))
    found, raw = model.distribution(x).base, model.modelled(x)
    torch.testing.assert_close(found.mean, raw.mean)
    torch.testing.assert_close(found.stddev, factor * raw.stddev)
    data = load_data(build(folder.read_config(), "data"), task="regression")
    for law, prefix in ((model.distribution, "test"), (None, "uncalibrated")):
        own = law or (lambda x: model.in_targets(model.modelled(x)))
        density = own(data.test_x).log_prob(data.test_y).mean()
        assert metrics[f"{prefix}.mnlp"] == pytest.approx(-float(density), rel=1e-6)
        # that of the normal law of log y, by hand
        normal = own(data.test_x).base
        y = data.scaler.original_mean(data.test_y)
        scale, shift = model.target_transform.scale, model.target_transform.shift
        by_hand = normal.log_prob((y.log() - shift) / scale) - (scale * y).log()
        by_hand = by_hand + float(data.scaler.target_scale.log())
        assert float(density) == pytest.approx(float(by_hand.mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["data.target_transform=sqrt"], "data.target_transform=sqrt: expected one of log, boxcox"),
        (["likelihood=student_t", "approx=svgp"], "=log needs likelihood=gaussian"),
        (["likelihood=poisson", "approx=svgp"], "needs a single target that is a number|count"),
        (
            ["trainer.certify=true"],
            "^trainer.certify=true: a run with data.target_transform= cannot",
        ),
        (["data.weights=a", "data.inputs=[y]", "data.target=y"], "is used twice"),
    ],
)
def test_transforms_that_cannot_be(train, skewed, options, words):
    first = ["data=csv", f"data.path={skewed}", "approx=exact", "data.target_transform=log"]
    with pytest.raises((ConfigError, DataError), match=words):
        train(*first, "trainer.max_steps=2", *QUIET, *options)


def test_codes_are_the_same_texts_in_training_and_in_prediction(train, tmp_path, caplog):
    codes = ["00501", "02139", "1.50"]
    rng, path = np.random.default_rng(0), tmp_path / "table.csv"
    rows = [(codes[i % 3], 20210301 + i % 28, round(rng.normal(), 3)) for i in range(60)]
    lines = [f"{code},{day},{size},{codes.index(code) + size}" for code, day, size in rows]
    path.write_text("\n".join(["zip,day,size,y", *lines]) + "\n")
    options = ["data.categories=[zip]", "data.dates=[day]", "data.date_format=%Y%m%d"]
    short = ["approx=exact", "trainer.max_steps=15", *QUIET]
    _, folder = train("data=csv", f"data.path={path}", *options, *short)
    found = [float(row["mean"]) for row in run_predict(folder, path, tmp_path / "out.csv")]
    inputs = [[code, str(day), size] for code, day, size in rows]
    np.testing.assert_allclose(load(folder.path).predict(inputs).mean, found, rtol=1e-8)
    diagnose([f"run={folder.path}", f"points={path}", f"elsewhere={path}"])
    points = json.loads((folder.path / "diagnostics.json").read_text())["points"]
    assert points["zip=02139"] == pytest.approx([0.0, 1.0, 0.0] * 20)
    y = [codes.index(code) + size for code, _, size in rows]
    named = [option.replace("zip", "x1").replace("[day", "[x2") for option in options]
    fitted = fit(inputs, y, *short, *named, keep=False, quiet=True)
    assert fitted.model.coding.columns[0].column.texts == tuple(codes)
    fitted.predict(inputs)
    assert "no training row has" not in caplog.text
