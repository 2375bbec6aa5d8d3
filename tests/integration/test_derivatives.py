"""Tables of values and derivatives, from train.py to predict.py and Python."""

import csv
import json

import numpy as np
import pytest
from stopped_runs import stopped_at

import gpx
from gpx.commands.diagnose import main as diagnose
from gpx.commands.predict import main as predict
from gpx.errors import ConfigError, DataError
from gpx.runs import load, resume

QUIET = ["trainer.figures=false", "trainer.tensorboard=false", "trainer.baselines=false"]
QUICK = ["init.num_points=100", "init.max_evaluations=10", "trainer.max_steps=25", "kernel=rbf"]
NAMES = ["energy", "dE_dx", "dE_dy"]
TARGETS = "data.target=[energy,dE_dx,dE_dy]"


def function(x):
    """In units of a hundred, over inputs of units 1 and 10: f, df/dx and df/dy."""
    a, b = x[:, 0], x[:, 1] / 10.0
    parts = (
        np.sin(2.0 * a) * np.cos(b),
        2.0 * np.cos(2.0 * a) * np.cos(b),
        -0.1 * np.sin(2.0 * a) * np.sin(b),
    )
    return 100.0 * np.stack(parts, 1) + [500.0, 0.0, 0.0]


def made(n=50):
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, (n, 2)) * [3.0, 30.0]
    y = function(x) + rng.normal(size=(n, 3)) * [1.0, 2.0, 0.1]
    y[rng.uniform(size=y.shape) < 0.3] = np.nan
    return x, y


X, Y = made()
NEW = np.random.default_rng(1).uniform(0.1, 0.9, (100, 2)) * [3.0, 30.0]


@pytest.fixture
def table(tmp_path):
    """Writes a table and returns its path."""

    def write(y=Y, name="rows.csv"):
        path = tmp_path / name
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["x", "y", *NAMES])
            for row, targets in zip(X, y, strict=True):
                writer.writerow([*row, *("" if np.isnan(cell) else cell for cell in targets)])
        return f"data.path={path}"

    return write


def options(*others):
    return ["data=csv", TARGETS, "approx=derivatives", *QUICK, *others]


def test_from_a_table_to_predictions(train, table, tmp_path, capsys):
    metrics, folder = train(*options(table(), "trainer.figures=true", "trainer.baselines=true"))
    told = "".join(capsys.readouterr())
    assert "dE_dx (d energy / d x), dE_dy (d energy / d y)" in told
    assert folder.read_config().approx.with_respect_to == [0, 1]
    assert metrics["test.rmse_original.energy"] < 5.0
    assert metrics["test.rmse_original.dE_dy"] < 1.0
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("y,x\n" + "".join(f"{row[1]},{row[0]}\n" for row in NEW))
    predict([f"run={folder.path}", f"input={new}", f"output={out}"])
    with out.open() as file:
        rows = list(csv.DictReader(file))
    for place, name in enumerate(NAMES):
        mean, std = (
            np.array([float(row[f"{part}_{name}"]) for row in rows]) for part in ("mean", "std")
        )
        apart = (mean - function(NEW)[:, place]) / std
        assert np.sqrt((apart**2).mean()) < 1.5
    diagnose([f"run={folder.path}"])
    measures = json.loads((folder.path / "calibration.json").read_text())["measures"]
    assert measures["rmse.dE_dx"] == pytest.approx(metrics["test.rmse.dE_dx"])


def test_a_run_that_was_stopped_ends_at_the_same_numbers(train, table, tmp_path):
    parts = options(table(), *QUIET, "approx.with_respect_to=[x,y]")
    whole, folder = train(*parts)
    with stopped_at(3):
        train(*parts, folder="stopped")
    again = resume(tmp_path / "stopped")
    assert again["test.rmse"] == whole["test.rmse"]
    assert again["train.evidence"] == whole["train.evidence"]
    first, second = (load(p).predict(X[:4]) for p in (folder.path, tmp_path / "stopped"))
    np.testing.assert_array_equal(first, second)


def test_derivatives_by_some_inputs_in_any_order(train, table):
    turned = ["data=csv", "data.target=[energy,dE_dy,dE_dx]", "approx=derivatives", *QUICK]
    path = table()
    one, _ = train(*options(path, *QUIET))
    other, _ = train(*turned, path, "approx.with_respect_to=[y,x]", *QUIET, folder="other")
    assert other["train.evidence"] == pytest.approx(one["train.evidence"], rel=1e-3)
    some, folder = train(
        *("data=csv", "data.target=[energy,dE_dy]", "data.inputs=[x,y]", "approx=derivatives"),
        *(*QUICK, path, "approx.with_respect_to=y", *QUIET),
        folder="some",
    )
    assert folder.read_config().approx.with_respect_to == [1]
    assert np.isfinite(some["test.rmse.dE_dy"])


def fitted(y, *more, **options):
    parts = ("approx=derivatives", *QUICK, *QUIET, "data.test_fraction=0", *more)
    return gpx.fit(X, y, *parts, quiet=True, keep=False, **options)


def errors(model):
    return np.sqrt(((model.predict(NEW).mean - function(NEW)) ** 2).mean(0))


def test_values_alone_give_derivatives_and_derivatives_give_values():
    values, slopes = Y.copy(), Y.copy()
    values[:, 1:] = np.nan
    slopes[:, 0] = np.nan
    slopes[11, 0] = function(X[11:12])[0, 0]
    both, of_values, of_slopes = map(fitted, (Y, values, slopes))
    spread = function(NEW).std(0)
    assert (errors(both) < 0.05 * spread).all()
    assert (errors(of_values) < 0.6 * spread).all()
    assert (errors(of_slopes) < 0.1 * spread).all()
    assert errors(both)[0] < errors(of_values)[0]
    exact = gpx.fit(
        *(X[np.isfinite(Y[:, 0])], Y[np.isfinite(Y[:, 0]), 0], "approx=exact"),
        *(*QUICK[:3], "trainer.max_steps=60", *QUIET, "data.test_fraction=0"),
        quiet=True,
        keep=False,
    )
    again = fitted(values, "trainer.max_steps=60")
    # the inputs are standardised by other rows, and nothing else differs
    wanted = exact.predict(NEW).mean
    np.testing.assert_allclose(again.predict(NEW).mean[:, 0], wanted, atol=0.02 * spread[0])


def test_a_table_without_derivatives_runs_to_its_end(train, table):
    values = Y.copy()
    values[:, 2] = np.nan
    metrics, folder = train(
        *options(table(values), "trainer.figures=true", "trainer.baselines=true")
    )
    assert np.isfinite(metrics["test.rmse.energy"])
    assert "test.rmse.dE_dy" not in metrics
    diagnose([f"run={folder.path}"])


def test_kernels_are_not_compared_by_derivatives(train, table, capsys):
    metrics, folder = train(*options(table(), *QUIET, "kernel=auto"))
    assert "derivatives are no independent targets to compare kernels" in "".join(
        capsys.readouterr()
    )
    assert folder.read_config().kernel["_target_"] == "gpx.kernels.Matern52"
    assert np.isfinite(metrics["test.rmse"])


def test_rows_are_added_and_functions_drawn():
    model = fitted(Y)
    more = model.condition(NEW[:3], function(NEW[:3]))
    before = np.abs(model.predict(NEW[:3]).mean - function(NEW[:3]))
    assert (np.abs(more.predict(NEW[:3]).mean - function(NEW[:3])) < before + 1.0).all()
    assert (more.predict(NEW[:3]).std <= model.predict(NEW[:3]).std).all()
    drawn = model.sample(NEW[:2], 300, jointly=True)
    assert drawn.shape == (300, 2, 3)
    latent = model.latent(NEW[:2])
    np.testing.assert_allclose(drawn.mean(0), latent.mean, atol=0.3 * latent.std.max())
    np.testing.assert_allclose(drawn.std(0), latent.std, rtol=0.2)


def test_error_bars_of_cells_are_in_the_units_of_the_table():
    """Whose noise variances are large counts little."""
    y, noise = Y.copy(), np.full(Y.shape, 1e-2)
    y[::2, 1] += 300.0
    noise[::2, 1] = 1e6
    told, untold = fitted(y, noise=noise), fitted(y)
    of_slopes = [m.hyperparameters["likelihood.noise_variance"][1] for m in (told, untold)]
    assert of_slopes[0] < 0.01 * of_slopes[1]
    assert (errors(told) < [3.0, 5.0, 0.3]).all()


def test_frames_name_inputs_and_targets(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, y = pandas.DataFrame(X, columns=["x", "y"]), pandas.DataFrame(Y, columns=NAMES)
    parts = ("approx=derivatives", *QUICK, *QUIET, "approx.with_respect_to=[y]")
    model = gpx.fit(x, y[["energy", "dE_dy"]], *parts, folder=tmp_path / "run", quiet=True)
    assert model.model.posterior.with_respect_to == (1,)
    assert gpx.load(tmp_path / "run").target_names == ("energy", "dE_dy")


REFUSED = {
    "one target": (["data.target=energy", "data.missing=drop"], DataError, "has one target"),
    "another number": (
        ["data.target=[energy,dE_dx]", "data.inputs=[x,y]"],
        DataError,
        r"after energy are dE_dx \(1\), and the inputs are x, y \(2\): approx.with_respect_to=",
    ),
    "no such input": (["approx.with_respect_to=[x,z]"], DataError, "no column 'z' among"),
    "a rough kernel": (["kernel=matern12"], ConfigError, "Matern12 .* take kernel=rbf, matern52"),
    "one noise": (["likelihood=gaussian"], ConfigError, "take likelihood=gaussian_outputs"),
    "a transform": (["data.target_transform=log"], DataError, "needs a single target"),
    "files": (["data=stream", "data.target=energy"], ConfigError, "training rows|data=stream"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(train, table, name, tmp_path):
    more, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as refusal:
        train(*options(table(), *QUIET), *more)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_one_value_among_derivatives_runs_to_its_end(train, table):
    slopes = Y.copy()
    slopes[:, 0] = np.nan
    slopes[11, 0] = function(X[11:12])[0, 0]
    metrics, _ = train(
        *options(table(slopes), "trainer.figures=true", "trainer.baselines=true", "data.split=3")
    )
    assert np.isfinite(metrics["test.rmse.dE_dx"])
    assert np.isfinite(metrics["baseline.linear.rmse"])
