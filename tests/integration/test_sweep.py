"""A sweep on the command line and the table of its runs."""

import csv
import json
import re
import statistics

from gpx.commands.compare import main as compare


def test_a_sweep_ends_with_a_table_of_its_runs(train_py, tmp_path, capsys, monkeypatch):
    status, err = train_py(
        "-m",
        "approx=exact",
        "data=toy1d",
        "kernel=rbf,matern32",
        "data.split=0,1",
        "init=constants",
        "trainer.max_steps=3",
        "trainer.figures=false",
        "trainer.tensorboard=false",
        "hydra.sweep.dir=sweep",
    )
    assert status == 0, err
    runs = sorted(p.parent for p in tmp_path.glob("sweep/*/metrics.json"))
    assert len(runs) == 4
    (tmp_path / "sweep" / "3" / "metrics.json").unlink()
    table = (tmp_path / "sweep" / "table.md").read_text()
    assert table.count("+-") >= 4
    # beside other jobs a run has less memory, another split may have more rows
    config = tmp_path / "sweep" / "1" / "config.yaml"
    found = re.sub(r"memory_budget: \d+", "memory_budget: 12345678", config.read_text())
    found = found.replace("approx:\n", "approx:\n  num_data: 181\n")
    found = found.replace("num_train: 180", "num_train: 181")
    assert "num_train: 181" in found
    config.write_text(found)
    monkeypatch.chdir(tmp_path)
    compare(["runs=sweep", "output=table.csv"])
    out, err = capsys.readouterr()
    assert "not finished: sweep/3" in err
    assert "resume=sweep/3" in err
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["runs"] for row in rows] == ["1", "2"]
    assert {row["kernel._target_"] for row in rows} == {"kernels.Matern32", "kernels.RBF"}
    both = next(row for row in rows if row["runs"] == "2")
    values = [json.loads((tmp_path / "sweep" / n / "metrics.json").read_text()) for n in "01"]
    rmse = [v["test.rmse"] for v in values]
    expected = f"{statistics.mean(rmse):.4f} +- {statistics.stdev(rmse):.4f}"
    assert both["test.rmse"] == expected
    file = tmp_path / "sweep" / "1" / "metrics.json"
    file.write_text(json.dumps(values[1] | {"test.mnlp": None}))  # as infinity is written
    compare(["runs=sweep"])
    assert "nan" in capsys.readouterr().out
    assert expected in out
    assert "baseline.linear.rmse" in both
