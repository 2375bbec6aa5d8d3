"""CONTRIBUTING.md is a promise: its files, written to a folder outside the package, train."""

import json
import re
import sys
from pathlib import Path

import pytest

from gpx.commands.predict import main as predict

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
PREDICT = ["run=out", "input=new.csv", "output=predictions.csv"]


def write_files(folder):
    """The files of the page."""
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(files) == 10
    for name, text in files:
        target = folder / "my_research" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The files of the page, where this process imports from as well."""
    write_files(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "my_research"))
    yield
    for path in (tmp_path / "my_research").glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_basis_of_the_page(train_py, tmp_path, own):
    options = ["init=constants", "hydra.run.dir=out", "approx.num_basis=200"]
    options += ["approx=qsgp", "basis=hinges", "approx.basis.seed=1", "approx.block_columns=100"]
    train = ["--config-dir", "my_research/configs", "data=spiral", *options]
    status, err = train_py(*train)
    assert status == 0, err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["test.rmse"] < metrics["baseline.linear.rmse"]
    (tmp_path / "new.csv").write_text("east,north\n1,2\n")
    predict([*PREDICT, "trust=hinges,spiral"])
    assert (tmp_path / "predictions.csv").exists()


def test_likelihood_of_the_page(train_py, tmp_path, own):
    options = ["init=constants", "hydra.run.dir=out", "approx.num_inducing=40"]
    options += ["trainer.max_steps=150", "approx=svgp", "likelihood=outliers"]
    train = ["--config-dir", "my_research/configs", "data=spiral", *options]
    status, err = train_py(*train)
    assert status == 0, err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["test.rmse"] < metrics["baseline.linear.rmse"]
    (tmp_path / "new.csv").write_text("east,north\n1,2\n")
    predict([*PREDICT, "trust=outliers,spiral"])
    assert (tmp_path / "predictions.csv").exists()


def test_kernel_objective_and_data_set_of_the_page(command, tmp_path, own, monkeypatch, capsys):
    status, _, err = command(
        "train.py",
        "--config-dir",
        "my_research/configs",
        "approx=exact",
        "kernel=heavy_tail",
        "objective=tempered_mll",
        "data=spiral",
        "init=constants",
        "trainer.max_steps=10",
        "hydra.run.dir=out",
        PYTHONPATH=str(tmp_path / "my_research"),
    )
    assert status == 0, err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["train.objective"] == "TemperedMLL"
    assert metrics["data.name"] == "spiral"
    assert metrics["test.rmse"] < metrics["baseline.linear.rmse"]
    (tmp_path / "new.csv").write_text("east,north\n1,2\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        predict(PREDICT)
    assert stop.value.code == 2
    assert "if that code is yours, or you trust it, add trust=" in capsys.readouterr().err
    predict([*PREDICT, "trust=heavy_tail,tempered_mll,spiral"])
    assert (tmp_path / "predictions.csv").exists()
