"""Known noise of every cell of several targets, through a whole run."""

import csv

import numpy as np
import pytest

import gpx
from gpx.commands.predict import main as predict
from gpx.errors import ConfigError, DataError, GPXError, ShapeError
from gpx.runs import load
from gpx.runs.predictor import Predictor

QUICK = ("trainer.max_steps=4", "init.max_evaluations=5", "trainer.baselines=false", "kernel=rbf")
QUIET = ("trainer.loggers=[]", "trainer.figures=false", "data.test_fraction=0")
METHODS = ("independent", "coregional")
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (50, 2))
NOISE = rng.uniform(0.01, 2.0, (50, 2))
Y = np.stack([np.sin(X[:, 0]), 20 * np.cos(X[:, 1])], 1) + NOISE**0.5 * rng.normal(size=(50, 2))


def fit(method, *options, y=Y, **arrays):
    return gpx.fit(X, y, f"approx={method}", *QUICK, *QUIET, *options, quiet=True, **arrays)


@pytest.mark.parametrize("method", METHODS)
def test_variances_are_in_the_squared_units_of_the_targets(method, tmp_path):
    fitted = fit(method, noise=NOISE, folder=tmp_path / "run")
    kept = fitted.model.posterior.row_noise
    assert kept.shape == (50, 3)
    scale = fitted.model.scaler.target_scale.numpy()
    np.testing.assert_allclose(kept[:, :2].numpy() * scale**2, NOISE)
    plain = fitted.predict(X[:3]).std
    more = fitted.model.predict(X[:3], noise=NOISE[:3]).std
    np.testing.assert_allclose(more**2, plain**2 + NOISE[:3], rtol=1e-9)
    of_rows = fitted.model.predict(X[:3], noise=NOISE[:3, 0]).std
    np.testing.assert_allclose(of_rows**2, plain**2 + NOISE[:3, :1], rtol=1e-9)
    again = load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(X[:3]).mean, fitted.predict(X[:3]).mean)
    added = fitted.condition(X[:2] + 0.1, Y[:2], noise=NOISE[:2])
    assert isinstance(added, Predictor)
    assert added.posterior.row_noise.shape == (52, 3)
    for wrong in (NOISE[:3, :1], NOISE[:2], -NOISE[:3]):
        with pytest.raises(ShapeError, match="noise must be 3 variances, or 3 x 2 of them"):
            fitted.model.predict(X[:3], noise=wrong)


def test_noise_of_each_target_is_that_of_a_run_of_its_own(tmp_path):
    converged = ("trainer.max_steps=100", "init.max_evaluations=100")
    together = fit("independent", *converged, noise=NOISE, keep=False)
    evidence = 0.0
    for target in range(2):
        own = {"y": Y[:, target], "noise": NOISE[:, target]}
        alone = fit("exact", *converged, **own, keep=False)
        evidence += alone.metrics["train.evidence"]
        mean = together.predict(X[:5]).mean[:, target]
        np.testing.assert_allclose(mean, alone.predict(X[:5]).mean, rtol=1e-2)
    # searches end where the evidence is flat, not at the same point of it
    assert together.metrics["train.evidence"] == pytest.approx(evidence, abs=5e-3)


@pytest.mark.parametrize("method", METHODS)
def test_one_variance_for_a_row_holds_for_all_of_its_targets(method):
    one = fit(method, noise=NOISE[:, 0], keep=False)
    both = fit(method, noise=NOISE[:, [0, 0]], keep=False)
    np.testing.assert_array_equal(one.predict(X[:5]).mean, both.predict(X[:5]).mean)


@pytest.fixture
def table(tmp_path):
    """Path of a table: one value of lead is missing with its noise, both as empty cells."""
    rows = ["a,b,zinc,lead,v_zinc,v_lead"]
    for i in range(50):
        cells = [repr(float(cell)) for cell in (*X[i], *Y[i], *NOISE[i])]
        if i == 3:
            cells[3] = cells[5] = ""
        rows.append(",".join(cells))
    path = tmp_path / "table.csv"
    path.write_text("\n".join(rows))
    return path


@pytest.mark.parametrize("method", METHODS)
def test_columns_of_a_table(method, table, train, tmp_path):
    source = ("data=csv", f"data.path={table}", "data.target=[zinc,lead]", f"approx={method}")
    metrics, folder = train(*source, "data.noise=[v_zinc,v_lead]", *QUICK, *QUIET)
    assert metrics["train.missing_targets"] == 1
    model = load(folder.path)
    assert model.columns == ("a", "b")
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("v_lead,b,a,v_zinc\n100,0.5,0.1,0\n0,0.5,0.1,25\n")
    predict([f"run={folder.path}", f"input={new}", f"output={out}"])
    with out.open() as file:
        first, second = list(csv.DictReader(file))
    plain = model.predict([[0.1, 0.5]]).std[0]
    found = [float(first["std_zinc"]), float(second["std_zinc"])]
    np.testing.assert_allclose(found, [plain[0], (plain[0] ** 2 + 25) ** 0.5], rtol=1e-6)
    found = [float(first["std_lead"]), float(second["std_lead"])]
    np.testing.assert_allclose(found, [(plain[1] ** 2 + 100) ** 0.5, plain[1]], rtol=1e-6)
    predict([f"run={folder.path}", f"input={table}", f"output={out}"])  # empty: nothing is added
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[3]["std_lead"]) == pytest.approx(model.predict(X[3:4]).std[0, 1], rel=1e-6)
    new.write_text("b,a\n0.5,0.1\n")  # a table without them is taken too
    predict([f"run={folder.path}", f"input={new}", f"output={out}"])
    archive = tmp_path / "new.npz"
    np.savez(archive, a=[0.1], b=[0.5], v_zinc=[25.0], v_lead=[0.0])
    predict([f"run={folder.path}", f"input={archive}", f"output={out}"])
    with out.open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["std_zinc"]) == pytest.approx((plain[0] ** 2 + 25) ** 0.5, rel=1e-6)


def test_what_is_refused(table, train, tmp_path):
    source = ("data=csv", f"data.path={table}", "data.target=[zinc,lead]", "approx=independent")
    cut = tmp_path / "cut.csv"
    lines = table.read_text().splitlines()
    cut.write_text("\n".join([*lines[:2], lines[2].rsplit(",", 1)[0] + ",", *lines[3:]]))
    less = tmp_path / "less.csv"
    less.write_text("\n".join([*lines[:2], lines[2].rsplit(",", 1)[0] + ",-2", *lines[3:]]))
    for options, words in (
        (("data.noise=[v_zinc,v_lead,a]",), "noise= has 3 columns and there are 2 targets"),
        (("data.noise=[v_zinc,v_zinc]",), "v_zinc"),
        (("data.noise=[v_zinc,v_gold]",), "v_gold"),
        (
            (f"data.path={cut}", "data.noise=[v_zinc,v_lead]"),
            r"line 3, column 6 \('v_lead'\): the noise variance of a target is missing",
        ),
        (
            (f"data.path={less}", "data.noise=[v_zinc,v_lead]"),
            r"line 3, column 6 \('v_lead'\): found -2, expected a noise variance",
        ),
    ):
        with pytest.raises(GPXError, match=words):
            train(*source, *QUICK, *QUIET, *options)
    for wrong in (NOISE[1:], NOISE[:, [0, 1, 1]]):
        with pytest.raises(ShapeError, match=r"expected \(50,\): .* or \(50, 2\): one for each"):
            fit("independent", noise=wrong, keep=False)
    with pytest.raises(DataError, match=r"found -0\.5, expected a noise variance"):
        fit("independent", noise=np.where(NOISE[4, 1] == NOISE, -0.5, NOISE), keep=False)
    with pytest.raises(ConfigError, match="several targets is taken by"):
        fit("svgp", "likelihood=gaussian_outputs", noise=NOISE, keep=False)
