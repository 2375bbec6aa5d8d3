"""``gpx compare``: which runs share a row of the table, and what is wrong with a folder."""

import csv
import json
import math

from refusals import refused

from gpx.commands.compare import main as compare


def write_run(folder, split, rmse, **options):
    """A finished run as far as its table reads it."""
    folder.mkdir(parents=True)
    config = {"seed": split, **{name: {"a": value} for name, value in options.items()}}
    config["approx"] = {"_target_": f"gpx.models.{options['model']}", "size": options["size"]}
    (folder / "config.yaml").write_text(json.dumps(config))
    names = {"data.name": "toy", "model.name": options["model"]}
    (folder / "metrics.json").write_text(json.dumps({**names, "test.rmse": rmse}))


def test_only_runs_that_differ_in_seed_and_split_share_a_row(tmp_path, capsys):
    """Also where options of the data or of the model differ within one model."""
    number = 0
    for model in ("SGPR", "SV|GP"):
        for size in (10, 20):
            for rows in (100, 200):
                for split in (0, 1):
                    number += 1
                    run = tmp_path / "runs, all" / str(number)
                    write_run(run, split, float(number), model=model, size=size, data=rows)
    compare([f"runs={tmp_path / 'runs, all'}", f"output={tmp_path / 'table.csv'}"])
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["runs"] for row in rows] == ["2"] * 8
    assert {(r["model"], r["approx.size"], r["data.a"]) for r in rows} == {
        (model, size, count)
        for model in ("SGPR", "SV|GP")
        for size in ("10", "20")
        for count in ("100", "200")
    }
    assert rows[0]["test.rmse"] == "1.5000 +- 0.7071"
    assert r"SV\|GP" in capsys.readouterr().out


def test_metrics_that_are_not_finite_are_shown_and_broken_files_are_named(tmp_path, capsys):
    for split, rmse in enumerate((0.5, math.nan)):
        write_run(tmp_path / str(split), split, rmse, model="SGPR", size=10)
    compare([f"runs={tmp_path}"])
    assert "| nan" in capsys.readouterr().out
    for name, text in (
        ("metrics.json", "{"),
        ("metrics.json", "{}"),
        ("config.yaml", "- 1"),
        ("config.yaml", "a: [b"),
    ):
        (tmp_path / "1" / name).write_text(text)
        said = refused(capsys, compare, f"runs={tmp_path}")
        assert said.startswith(f"error: {tmp_path / '1' / name} ")
        if name == "metrics.json":
            (tmp_path / "1" / name).write_text((tmp_path / "0" / name).read_text())


def test_mistakes_of_a_comparison_are_one_line(tmp_path, capsys):
    for given, said in (
        ([f"runs={tmp_path}/none"], "none is no folder"),
        ([f"runs={tmp_path}"], "there is no finished run in it"),
        ([f"run={tmp_path}"], "did you mean runs=?"),
    ):
        assert said in refused(capsys, compare, *given)


def test_runs_may_be_listed_in_brackets(tmp_path, capsys):
    for split in (0, 1):
        write_run(tmp_path / str(split), split, 0.5, model="SGPR", size=10)
    compare([f"runs=[{tmp_path / '0'}, {tmp_path / '1'}]"])
    assert "| 2    | 0.5000 +- 0.0000" in capsys.readouterr().out
