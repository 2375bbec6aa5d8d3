"""predict.py on tables a user may hand it."""

import csv

import numpy as np
import pytest
import torch

from gpx.commands.predict import main
from gpx.options.composition import composed
from gpx.runs import RunFolder, load, run

SMALL = ["init=constants", "trainer.tensorboard=false", "trainer.baselines=false"]
SMALL += ["trainer.figures=false"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a small CSV table, and that table."""
    folder = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (120, 2))
    y = 50 + 10 * np.sin(2 * x[:, 0]) + 3 * x[:, 1] + 0.1 * rng.normal(size=120)
    table = folder / "table.csv"
    write(table, np.column_stack([x, y]).tolist(), ["depth", "width", "strength"])
    options = ["approx=exact", "data=csv", f"data.path={table}", "data.target=strength", *SMALL]
    run(composed([*options, "trainer.max_steps=30"]), RunFolder(folder / "run"))
    return folder / "run", x, y


def write(path, rows, header=None):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        if header:
            writer.writerow(header)
        writer.writerows(rows)


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def predict(run, source, target):
    main([f"run={run}", f"input={source}", f"output={target}"])
    return read(target)


def test_with_and_without_header_in_any_order(trained, tmp_path):
    run, x, y = trained
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    write(new, x.tolist())
    plain = predict(run, new, out)
    assert list(plain[0]) == ["mean", "std", "lower", "upper"]
    mean = np.array([float(row["mean"]) for row in plain])
    assert np.abs(mean - y).mean() < 1.0  # in the data's own units: y runs from 35 to 65
    write(new, np.column_stack([x[:, 1], y, x[:, 0]]).tolist(), ["width", "strength", "depth"])
    assert predict(run, new, out) == plain
    inside = [float(r["lower"]) <= v <= float(r["upper"]) for r, v in zip(plain, y, strict=True)]
    assert np.mean(inside) > 0.85


def test_agrees_with_python(trained, tmp_path):
    run, x, _ = trained
    write(tmp_path / "new.csv", x.tolist())
    rows = predict(run, tmp_path / "new.csv", tmp_path / "out.csv")
    prediction = load(run).predict(x)
    assert np.allclose([float(r["mean"]) for r in rows], prediction.mean, rtol=1e-6)
    assert np.allclose([float(r["std"]) for r in rows], prediction.std, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,3\n", "column"),
        ("1,x\n", "x"),
        ("", "empty"),
        ("1,nan\n", "nan"),
        ("depth,hight\n1,2\n", "width"),
    ],
)
def test_bad_tables_are_one_line_and_write_nothing(trained, tmp_path, capsys, text, expected):
    run, _, _ = trained
    (tmp_path / "new.csv").write_text(text)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        predict(run, tmp_path / "new.csv", tmp_path / "out.csv")
    assert stop.value.code == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert expected in err.lower()
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("given", [".", ".."])
def test_a_folder_in_place_of_a_table_is_said_by_its_option(trained, tmp_path, capsys, given):
    run, _, _ = trained
    with pytest.raises(SystemExit):
        main([f"run={run}", f"input={given}", f"output={tmp_path / 'out.csv'}"])
    assert f"error: input={given} is a folder, expected a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run=x", "input=y"], "output= is missing"),
        (["run=x", "inptu=y", "output=z"], "did you mean input=?"),
        (["run=nowhere", "input=y", "output=z"], "there is no run folder nowhere"),
        (["run=x", "input=y", "output=z.parquet"], "written as comma-separated text; choose a n"),
        (["run=x", "input=y", "output=z.NPY"], "written as comma-separated text; choose a name"),
    ],
)
def test_bad_options(capsys, arguments, expected):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err


def test_a_device_out_of_memory_is_one_line(trained, tmp_path, capsys, monkeypatch):
    folder, x, _ = trained
    write(tmp_path / "new.csv", x[:3].tolist(), ["depth", "width"])

    def full(self, *inputs, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("gpx.runs.predictor.Predictor.predict", full)
    with pytest.raises(SystemExit) as stopped:
        main([f"run={folder}", f"input={tmp_path / 'new.csv'}", f"output={tmp_path / 'out.csv'}"])
    assert stopped.value.code == 2
    found = capsys.readouterr().err
    assert "device=cpu is out of memory: split" in found
    assert "Traceback" not in found
    assert not (tmp_path / "out.csv").exists()


def test_classes_get_labels_and_probabilities(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    kind = np.where(x[:, 0] > 0.5, 12345678901, np.where(x[:, 0] < -0.5, 1234567, 1234568))
    write(tmp_path / "kinds.csv", np.column_stack([x, kind]).tolist(), ["a", "b", "kind"])
    options = ["approx=svgp", "approx.num_inducing=10", "likelihood=softmax", "data=csv"]
    options += [f"data.path={tmp_path / 'kinds.csv'}", "trainer.max_steps=100", *SMALL]
    run(composed(options), RunFolder(tmp_path / "run"))
    rows = predict(tmp_path / "run", tmp_path / "kinds.csv", tmp_path / "out.csv")
    names = ["1234567", "1234568", "12345678901"]
    assert list(rows[0]) == ["label", *(f"probability_{name}" for name in names)]
    assert {row["label"] for row in rows} == set(names)
    labels = np.array([float(row["label"]) for row in rows])
    assert (labels == kind).mean() > 0.7
    assert all(abs(sum(float(row[k]) for k in list(row)[1:]) - 1) < 1e-6 for row in rows)


def test_a_header_alone_is_told_as_one_where_rows_have_texts_too(tmp_path, capsys, recwarn):
    """Its names were taken for categories, and a header= that predict.py lacks was asked for."""
    table, new = tmp_path / "table.csv", tmp_path / "new.csv"
    write(table, [[i, "ab"[i % 2], i % 7] for i in range(40)], ["size", "colour", "strength"])
    options = ["approx=exact", "data=csv", f"data.path={table}", *SMALL, "trainer.max_steps=2"]
    run(composed(options), RunFolder(tmp_path / "run"))
    capsys.readouterr()
    for names in (["size", "colour"], ["colour", "strength", "size"]):
        write(new, [], names)
        with pytest.raises(SystemExit):
            main([f"run={tmp_path / 'run'}", f"input={new}", f"output={tmp_path / 'out.csv'}"])
        error = capsys.readouterr().err
        assert error == f"error: {new} has a header (line 1) but no rows of numbers\n"
    assert not [each for each in recwarn if "no data" in str(each.message)]
