"""Arrays, data frames and images that gpx.fit is given, and their columns."""

import numpy as np
import pytest
import torch
from frames import Frame
from quick_fits import QUICK

import gpx
from gpx.commands.predict import main as predict
from gpx.errors import DataError, DTypeError, ShapeError
from gpx.runs.given_data import given_data


def test_names_of_a_frame_are_kept(arrays, tmp_path):
    x, y = arrays
    frame, target = Frame(depth=x[:, 0], width=x[:, 1]), Frame(strength=y)["strength"]
    held = (Frame(width=x[:5, 1], depth=x[:5, 0]), y[:5])
    fitted = gpx.fit(frame, target, *QUICK, test=held, folder=tmp_path / "frame")
    plain = gpx.fit(x, y, *QUICK, test=(x[:5], y[:5]), folder=tmp_path / "plain")
    assert fitted.metrics["test.rmse"] == plain.metrics["test.rmse"]
    expected = plain.predict(x).mean
    for model in (fitted, gpx.load(fitted.folder)):
        np.testing.assert_array_equal(model.predict(frame).mean, expected)
        turned = Frame(width=x[:, 1], depth=x[:, 0])
        np.testing.assert_array_equal(model.predict(turned).mean, expected)
        with pytest.raises(DataError, match="no column 'width'"):
            model.predict(Frame(depth=x[:, 0], with_=x[:, 1]))
    assert (fitted.model.input_names, fitted.model.target_name) == (("depth", "width"), "strength")
    assert (plain.model.input_names, plain.model.target_name) == (("x1", "x2"), "y")
    with pytest.raises(DataError, match="test inputs have no column 'depth'"):
        gpx.fit(frame, y, *QUICK, test=(Frame(a=x[:, 0], b=x[:, 1]), y), folder=tmp_path / "no")
    one = gpx.fit(frame["depth"], y, *QUICK, folder=tmp_path / "one")
    assert one.model.input_names == ("depth",)
    (tmp_path / "new.csv").write_text("width,depth\n0.5,-1\n")
    arguments = [f"run={fitted.folder}", f"input={tmp_path / 'new.csv'}"]
    predict([*arguments, f"output={tmp_path / 'out.csv'}"])
    written = float((tmp_path / "out.csv").read_text().splitlines()[1].split(",")[0])
    assert written == pytest.approx(plain.predict([[-1.0, 0.5]]).mean[0], rel=1e-8)


def test_names_that_cannot_be_kept(arrays, tmp_path):
    x, y = arrays
    for names, words in ((["a", "a"], "two columns named 'a'"), (["a", "${b}"], "rename it")):
        frame = Frame(a=x[:, 0], b=x[:, 1])
        frame.columns = names
        frame.data = dict.fromkeys(names, x[:, 0])
        with pytest.raises(DataError, match=words):
            gpx.fit(frame, y, *QUICK, folder=tmp_path / "no")
        assert not (tmp_path / "no").exists()


def test_tensors_are_arrays(arrays, tmp_path):
    x, y = (torch.tensor(array, requires_grad=True) for array in arrays)
    found = gpx.fit(x, y, *QUICK, folder=tmp_path / "tensors").metrics["train.evidence"]
    expected = gpx.fit(*arrays, *QUICK, folder=tmp_path / "arrays").metrics["train.evidence"]
    assert found == expected


def test_tensors_of_half_precision(arrays, tmp_path):
    x, y = (torch.from_numpy(a).bfloat16() for a in arrays)
    first = gpx.fit(x, y, *QUICK, folder=tmp_path / "a").metrics["train.evidence"]
    second = gpx.fit(x.double(), y.double(), *QUICK, folder=tmp_path / "b").metrics
    assert first == second["train.evidence"]


CLASSES = ("approx=svgp", "approx.num_inducing=10", "trainer.max_steps=60", *QUICK[3:])


def test_columns_of_texts_and_dates(tmp_path):
    colours = np.array(["red", "green", "blue"] * 20)
    size = np.linspace(-1.0, 1.0, 60)
    days = np.datetime64("2021-01-01") + np.arange(60)
    strength = 3.0 * (colours == "red") + size
    rows = np.array([colours, days, size], dtype=object).T
    fitted = gpx.fit(rows, strength, *QUICK, "kernel=matern32", folder=tmp_path / "rows")
    assert fitted.model.input_names == (
        *("x1=blue", "x1=green", "x1=red"),
        *("x2 (days since 1970-01-01)", "x3"),
    )
    new = [["red", "2021-01-04", 0.5], ["blue", np.datetime64("2021-01-04"), 0.5]]
    mean = fitted.predict(new).mean
    assert mean[0] - mean[1] > 1.0
    np.testing.assert_array_equal(gpx.load(fitted.folder).predict(new).mean, mean)
    held = (rows[:3], strength[:3])
    other = gpx.fit(rows[3:], strength[3:], *QUICK, test=held, folder=tmp_path / "held")
    assert other.metrics["data.num_test"] == 3
    with pytest.raises(ShapeError, match="test inputs have 2 columns, training inputs 3"):
        gpx.fit(rows, strength, *QUICK, test=(rows[:, :2], strength), folder=tmp_path / "no")
    with pytest.raises(DTypeError, match="inputs must be an array of real numbers"):
        gpx.fit([[object()]] * 60, strength, *QUICK, folder=tmp_path / "no")


def test_texts_that_are_numbers_are_kept_as_given():
    rows = [["01", 0.0], ["1", 1.0], ["02", 2.0]]
    given = given_data(rows, ["1", "01", "2"], test=([["3", 1.0], [4.0, 2.5]], [1.0, 2.5]))
    assert given.arrays["x1"].tolist() == ["01", "1", "02", "3", "4"]
    assert given.arrays["x2"].tolist() == [0.0, 1.0, 2.0, 1.0, 2.5]
    assert given.arrays["y"].tolist() == ["1", "01", "2", "1", "2.5"]
    assert not given.has_text_targets
    later = given_data(rows, np.arange(3.0), test=([[1.0, 0.0], [2.0, 0.0]], [0.0, 0.0]))
    assert later.arrays["x1"].tolist() == ["01", "1", "02", "1", "2"]
    with pytest.raises(DTypeError, match=r"test inputs must be .* numbers \(.*'a'"):
        given_data(np.zeros((3, 2)), np.zeros(3), test=([["a", 1.0]], [0.0]))


def test_words_for_numbers_are_read_as_in_training():
    flags = np.array(["true", "false"] * 20)
    fitted = gpx.fit(flags, flags == "true", *QUICK, keep=False, quiet=True)
    mean = fitted.predict(["true", "false"]).mean
    np.testing.assert_array_equal(mean, fitted.predict([1.0, 0.0]).mean)
    with pytest.raises(DTypeError, match="inputs must be an array of real numbers"):
        fitted.predict(["true", "maybe"])


def test_classes_that_are_texts(tmp_path):
    x = np.linspace(-1.0, 1.0, 80)
    y = np.where(x > 0.0, "yes", "no")
    fitted = gpx.fit(x, y.tolist(), *CLASSES, "likelihood=bernoulli", folder=tmp_path / "run")
    assert fitted.predict_classes([[-0.9], [0.9]]).label.tolist() == ["no", "yes"]
    assert gpx.load(fitted.folder).labels == ("no", "yes")


NETWORK = ("approx=cnn", "trainer.max_steps=2", "trainer.figures=false", *QUICK[5:])


def test_images_are_rows_of_pixels_that_know_their_places(tmp_path):
    """Of 4 x 6 pixels in three colours, which as rows of 72 numbers nobody could tell."""
    generator = np.random.default_rng(1)
    images, y = generator.random((40, 4, 6, 3)), np.arange(40) % 3
    held = (images[:8], y[:8])
    fitted = gpx.fit(images, y, *NETWORK, test=held, folder=tmp_path / "images")
    rows = gpx.fit(
        *(np.moveaxis(images, -1, 1).reshape(40, 72), y, *NETWORK, "approx.image_shape=[3,4,6]"),
        test=(np.moveaxis(held[0], -1, 1).reshape(8, 72), y[:8]),
        folder=tmp_path / "rows",
    )
    found = fitted.predict_classes(images[:5])
    flat = np.moveaxis(images[:5], -1, 1).reshape(5, 72)
    for other in (fitted.predict_classes(flat), rows.predict_classes(flat)):
        np.testing.assert_array_equal(found.probability, other.probability)
    assert fitted.metrics["test.mnlp"] == rows.metrics["test.mnlp"]
    np.testing.assert_array_equal(
        gpx.load(fitted.folder).predict_classes(images[:5]).probability, found.probability
    )
    grey = gpx.fit(torch.rand(30, 5, 6), y[:30], *NETWORK, folder=tmp_path / "grey")
    assert grey.predict_classes(torch.rand(2, 5, 6)).probability.shape == (2, 3)


@pytest.mark.parametrize(
    ("x", "test", "words"),
    [
        ([np.zeros((8, 8)), np.zeros((7, 7))], None, "inputs are rows or images of different"),
        (np.zeros((4, 5, 5)), (np.zeros((2, 4, 5)), [0, 1]), "images of 5 x 5 pixels with 1"),
        (np.zeros((4, 2, 5, 5)), None, r"images of shape \(4, 2, 5, 5\): expected"),
        (np.zeros((4, 5, 5, 5, 3)), None, r"or images \(n, h, w\)"),
    ],
)
def test_images_that_are_none(tmp_path, x, test, words):
    y = np.arange(len(x)) % 2
    with pytest.raises(ShapeError, match=words):
        gpx.fit(x, y, *NETWORK, test=test, folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_arrays_without_rows_or_columns(shape):
    with pytest.raises(ShapeError, match=f"have {shape[0]} rows and {shape[1]} columns; give one"):
        given_data(np.zeros(shape), np.zeros(shape[0]))


def test_gaps_in_an_array(arrays, tmp_path):
    x, y = arrays
    x[::5, 1] = np.nan
    with pytest.raises(DataError, match=r"^the data set, .*column 2 \('x2'\): found nan"):
        gpx.fit(x, y, *QUICK, folder=tmp_path / "no")
    fitted = gpx.fit(x, y, *QUICK, "data.missing=mean", folder=tmp_path / "mean")
    assert fitted.model.input_names == ("x1", "x2", "x2 is missing")
    assert np.isfinite(fitted.predict(x[:6]).mean).all()
    dropped = gpx.fit(
        x, y, *QUICK, "data.missing=drop", "data.test_fraction=0", folder=tmp_path / "d"
    )
    assert dropped.metrics["data.num_test"] == 0
    assert not [name for name in dropped.metrics if name.startswith(("test.", "baseline."))]


def test_numbers_of_tasks_reach_a_kernel_as_they_are_in_training_and_after(tmp_path):
    x = np.stack([np.linspace(-2.0, 2.0, 40), np.arange(40.0) % 3], axis=1)
    exact = ("approx=exact", *QUICK[2:])
    fitted = gpx.fit(x, x[:, 0], *exact, "data.unscaled=[1]", folder=tmp_path / "run")
    assert set(fitted.model.posterior.inputs[:, 1].tolist()) == {0.0, 1.0, 2.0}
    loaded = gpx.load(fitted.folder)
    assert loaded.scaler.transform_inputs(torch.tensor([[0.0, 7.0]]))[0, 1] == 7.0
    np.testing.assert_array_equal(loaded.predict(x).mean, fitted.predict(x).mean)


def test_columns_of_a_frame_that_cannot_be_inputs_are_left_out(capsys):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(60) ** 2 % 13, "name": [f"n{i}" for i in range(60)]})
    y = np.sin(np.arange(60.0))
    fitted = gpx.fit(frame, y, *QUICK, keep=False)
    assert fitted.model.columns == ("a",)
    assert "left out of the inputs: 'name' (54 different texts" in capsys.readouterr().err
    assert fitted.predict(frame).mean.shape == (60,)  # by name
    np.testing.assert_array_equal(fitted.predict(frame).mean, fitted.predict(frame[["a"]]).mean)
    with pytest.raises(DataError, match="column 'x2' has 54 different texts"):
        gpx.fit(frame.to_numpy().tolist(), y, *QUICK, keep=False)  # new rows go by position
    with pytest.raises(DataError, match=r"row 3, column 1 \('x1'\): found nan"):
        gpx.fit(np.where(np.arange(60) == 2, np.nan, 1.0), y, *QUICK, keep=False)


def test_rows_of_a_frame_without_a_class_are_left_out(capsys):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.linspace(0.0, 1.0, 60)})
    labels = ["no", "yes", None] * 20
    fitted = gpx.fit(frame, labels, *QUICK, "approx=svgp", "likelihood=bernoulli", keep=False)
    assert fitted.model.labels == ("no", "yes")
    assert "20 of 60 rows have no target and are left out" in capsys.readouterr().err
    with pytest.raises(DataError, match="found an empty cell, expected a text"):
        gpx.fit(frame.to_numpy(), labels, *QUICK, "approx=svgp", "likelihood=bernoulli", keep=False)


def test_frames_of_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "colour": pandas.Categorical(["red", "green", "blue"] * 20),
            "text": ["a", None, "b"] * 20,
            "when": pandas.date_range("2021-01-01", periods=60, tz="Europe/Vienna"),
            "count": pandas.array([1, None, 3, 4] * 15, dtype="Int64"),
            "size": np.linspace(0.0, 1.0, 60),
        },
        index=range(100, 160),
    )
    y = pandas.Series(frame["size"] + 1.0 * (frame["colour"] == "red"), name="strength")
    with pytest.raises(DataError, match=r"the data set, data row 2, column 2 \('text'\): found an"):
        gpx.fit(frame, y, *QUICK, "data.missing=refuse", folder=tmp_path / "no")
    fitted = gpx.fit(frame, y, *QUICK, folder=tmp_path / "run")
    assert fitted.model.columns == tuple(frame.columns)
    assert fitted.model.target_name == "strength"
    assert "count is missing" in fitted.model.input_names
    expected = fitted.predict(frame).mean
    turned = frame[["size", "when", "text", "colour", "count"]].assign(other=1.0)
    np.testing.assert_array_equal(gpx.load(fitted.folder).predict(turned).mean, expected)
    first = fitted.predict(frame.iloc[:1]).mean
    assert first == pytest.approx(expected[:1], rel=1e-9)


@pytest.mark.parametrize("form", ["list", "objects", "integers"])
def test_long_whole_numbers_may_be_categories(form, tmp_path):
    codes = [2**60 + i % 3 for i in range(30)]  # one number in float64
    size = [i % 7 + 0.5 * (form == "list") for i in range(30)]
    rows = [[code, value] for code, value in zip(codes, size, strict=True)]
    if form != "list":
        rows = np.array(rows, dtype=object if form == "objects" else np.int64)
    y = np.array([float(code - 2**60) for code in codes])
    options = (*QUICK, "data.categories=[x1]", "data.test_fraction=0")
    fitted = gpx.fit(rows, y, *options, folder=tmp_path / "run")
    assert fitted.model.input_names == (*(f"x1={2**60 + i}" for i in range(3)), "x2")
    for model in (fitted, gpx.load(fitted.folder)):
        mean = model.predict(rows[:3]).mean
        assert mean[0] < mean[1] - 0.5 < mean[2] - 1.0
    plain = gpx.fit(rows, y, *QUICK, "data.test_fraction=0", folder=tmp_path / "plain")
    expected = gpx.fit(np.array(rows, float), y, *QUICK, "data.test_fraction=0", keep=False)
    np.testing.assert_array_equal(plain.predict(rows).mean, expected.predict(rows).mean)
