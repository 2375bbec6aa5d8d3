"""CONTRIBUTING.md is a promise: its files, written to a folder outside the package, train."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


def write_files(folder):
    """The files of the page."""
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(files) == 8
    for name, text in files:
        target = folder / "my_research" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def test_basis_of_the_page(command, tmp_path):
    write_files(tmp_path)
    own = {"PYTHONPATH": str(tmp_path / "my_research")}
    options = ["init=constants", "hydra.run.dir=out", "approx.num_basis=200"]
    options += ["approx=qsgp", "basis=hinges", "approx.basis.seed=1", "approx.block_columns=100"]
    train = ["train.py", "--config-dir", "my_research/configs", "data=spiral", *options]
    status, _, err = command(*train, **own)
    assert status == 0, err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["test.rmse"] < metrics["baseline.linear.rmse"]
    (tmp_path / "new.csv").write_text("east,north\n1,2\n")
    predict = ["predict.py", "run=out", "input=new.csv", "output=predictions.csv"]
    status, _, err = command(*predict, "trust=hinges,spiral", **own)
    assert status == 0, err


def test_kernel_objective_and_data_set_of_the_page(command, tmp_path):
    write_files(tmp_path)
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
    predict = ["predict.py", "run=out", "input=new.csv", "output=predictions.csv"]
    own = {"PYTHONPATH": str(tmp_path / "my_research")}
    status, _, err = command(*predict, **own)
    assert status == 2
    assert "if that code is yours, or you trust it, add trust=" in err
    status, _, err = command(*predict, "trust=heavy_tail,tempered_mll,spiral", **own)
    assert status == 0, err
    assert (tmp_path / "predictions.csv").exists()
