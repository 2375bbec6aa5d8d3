"""Scripts of experiments: which run a row comes from, and what a table says of it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpx.options.composition import composed

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def run_folder(path, options, **metrics):
    """A finished run of ``train.py`` with these options."""
    path.mkdir()
    (path / "config.yaml").write_text("approx: {}")
    environment = {"command": ["train.py", *options], "device_name": "cpu", "num_threads": 1}
    environment |= {"versions": {"torch": "2"}, "git_commit": None}
    (path / "environment.json").write_text(json.dumps(environment))
    (path / "metrics.json").write_text(json.dumps(metrics))
    return path


@pytest.mark.parametrize(
    "options",
    [
        ["approx=svgp", "data=protein", "approx.num_inducing=64"],
        ["approx=svgp", "data=kin40k"],
        ["approx=svgp", "data=kin40k", "kernel=matern32", "data.split=1"],
        ["approx=exact", "data=kin40k"],
    ],
)
def test_the_main_road_takes_no_run_of_another_command(script, monkeypatch, tmp_path, options):
    module = script("main_road/run")
    rows = module.ROWS.read_text()
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "ROWS", tmp_path / "rows.json")
    module.ROWS.write_text(rows)
    name = {"approx=svgp": "SVGP", "approx=exact": "ExactGP"}[options[0]]
    folder = run_folder(tmp_path / "run", options, **{"model.name": name})
    monkeypatch.setattr(sys, "argv", ["run", "--from", str(folder)])
    with pytest.raises(SystemExit, match="is no command of this table"):
        module.main()
    assert module.ROWS.read_text() == rows


def test_the_main_road_takes_a_run_of_its_commands_with_the_date_of_its_end(
    script, monkeypatch, tmp_path
):
    module = script("main_road/run")
    rows = json.loads(module.ROWS.read_text())
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "ROWS", tmp_path / "rows.json")
    module.ROWS.write_text(json.dumps(rows))
    options = [
        "kernel=matern32",
        "approx=svgp",
        "data=kin40k",
        "hydra.run.dir=a",
        "trainer.quiet=true",
    ]
    metrics = rows["svgp"]["metrics"] | {"test.rmse": 0.5}
    folder = run_folder(tmp_path / "run", options, **metrics)
    ended = 1_600_000_000
    os.utime(folder / "metrics.json", (ended, ended))
    monkeypatch.setattr(sys, "argv", ["run", "--from", str(folder)])
    module.main()
    found = json.loads(module.ROWS.read_text())
    assert found["svgp"]["metrics"]["test.rmse"] == 0.5
    assert found["svgp"]["date"].startswith("2020-09-1")
    assert {name: row for name, row in found.items() if name != "svgp"} == {
        name: row for name, row in rows.items() if name != "svgp"
    }


def test_a_series_that_takes_too_long_ends_no_others(script, monkeypatch, tmp_path):
    module = script("auto/series")
    tried, shown = [], []

    def run(command, timeout, **options):
        tried.append(command[-2:])
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(module, "CELLS", tmp_path / "cells.jsonl")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(module, "table", shown.append)
    monkeypatch.setattr(sys, "argv", ["series"])
    module.main()
    assert len(tried) > len(module.SETS)
    assert shown == [[]]


def test_the_annealed_bound_is_compared_with_every_other_search(script):
    module = script("direct/uci_tables")
    bounds = {"one search: bound": 5.0, "restarts: bound": 0.0, "annealed: bound": 0.0}
    tables = {
        "Three searches, first fold": [{"data": "yacht", **bounds}],
        "Searches, as published": [
            {"data": "yacht", "one search: bound": 0.5, "annealed: bound": 0.0}
        ],
    }
    assert module.annealed_bounds(tables) == {
        "yacht, three searches, one search": False,
        "yacht, three searches, restarts": True,
        "yacht, searches, one search": True,
    }


def test_noisy_digits_call_figures_that_are_not_published_a_reference(script):
    module = script("deep/noisy_digits")
    rows = json.loads((module.HERE / "noisy_digits.json").read_text())["rows"]["each run"]
    line = next(row for row in module.summary(rows) if row["method"] == "CNN")
    assert line["reference ERR"] == module.REFERENCE["CNN"][0]
    assert not any("published" in key for key in line)


def test_without_a_prior_its_share_is_a_thousandth_at_every_number_of_images(script):
    module = script("deep/masks")
    weak = {size: s.options for (_, size, name), s in module.runs().items() if name == "no prior"}
    assert weak == {
        size: (f"objective.num_data={1000 * size}",) for size in (module.SIZE, module.SIZES[0])
    }


def test_cglb_is_compared_with_what_is_published_from_the_published_start_only(script):
    module = script("cglb/comparison")
    known = json.loads(module.ROWS.read_text())
    row = next(r for r in known if (r["data"], r["method"]) == ("elevators", "cglb-1024"))
    wrong = row | {"protocol": "subset", "rmse": 0.8, "split": 1}
    words = "elevators cglb-1024, 1 of 3 splits"
    assert row["protocol"] == "ones"
    assert [ok for what, ok in module.accept([row, wrong]).items() if words in what] == [True]
    assert not any(words in what for what in module.accept([wrong]))


def traced(inducing, cold, **runs):
    keys = ("median steps, first quarter", "median steps, last quarter")
    steps = {"warm start": (6.0, 2.0), "cold start": (9.0, cold), "adam": (3.0, 1.0)} | runs
    bounds = {"warm start": -1.0}
    summary = {
        name: dict(zip(keys, found, strict=True))
        | {"evaluations": 9, "best bound": bounds.get(name, -2.0), "all solves converged": True}
        for name, found in steps.items()
    }
    record = {"data": "protein", "rows": 2000, "inducing": inducing, "commit": "a" * 40}
    return record | {"summary": summary}


def test_settings_of_cglb_traces_are_judged_one_by_one_and_in_the_order_of_m(
    script, monkeypatch, tmp_path
):
    module = script("cglb/comparison")
    monkeypatch.setattr(module, "TRACES", tmp_path / "traces.json")
    assert module.training() == []
    settings = [
        traced(256, 3.0, **{"warm start": (6.0, 3.0)}),
        traced(64, 4.0, **{"iterative GP": (7.0, 8.0)}),
    ]
    module.TRACES.write_text(json.dumps(settings))
    lines = module.training()
    judged = [line for line in lines if line.startswith(("- pass", "- FAIL"))]
    assert [line.split(":")[0] for line in judged] == ["- pass"] * 4 + ["- FAIL"] + ["- pass"] * 3
    assert "M = 64: the iterative GP" in judged[3]
    assert "M = 256: warm start: median" in judged[4]
    assert "more inducing points (64, 256)" in judged[-1]
    module.TRACES.write_text(json.dumps([traced(64, 4.0), traced(256, 5.0)]))
    assert [line for line in module.training() if "FAIL: protein, n = 2,000: more" in line]


def test_it_is_said_how_soon_lbfgs_is_near_where_adam_ends_higher(script):
    module = script("cglb/comparison")
    record = traced(64, 4.0)
    assert module.adam_higher(record) == []
    record["summary"]["adam"]["best bound"] = -0.5
    ways = {"warm start": [-90.0, -20.0, -1.0], "cold start": [-2.0], "adam": [-90.0, -31.0, -0.5]}
    record["runs"] = {name: [{"bound": value} for value in way] for name, way in ways.items()}
    said = " ".join(module.adam_higher(record))
    assert "after 2 evaluations, Adam after 3; Adam ends 0.5 nats higher" in said


def test_five_of_six_sets_must_have_the_higher_bound(script):
    module = script("cglb/comparison")
    assert module.enough(5, 1) is True
    assert module.enough(4, 1) is None
    assert module.enough(3, 2) is False
    row = json.loads(module.ROWS.read_text())[0]
    row |= {"num_train": 2000, "protocol": "ones", "split": 0, "stopped": "max_steps=9 reached"}
    pair = [row | {"method": f"{m}-64", "evidence": e} for m, e in (("cglb", 1.0), ("sgpr", 3.0))]
    words = next(what for what in module.accept(pair) if "five of the six" in what)
    assert "by 2.0 nats with both at the cap on evaluations" in words
    assert module.accept(pair)[words] is None


def test_cglb_runs_that_the_cap_ended_are_counted(script):
    module = script("cglb/comparison")
    row = json.loads(module.ROWS.read_text())[0]
    reasons = ("max_steps=60 evaluations reached", "CONVERGENCE", "trainer.max_steps=60 reached")
    ended = [row | {"stopped": why} for why in reasons]
    assert list(map(module.capped, ended)) == [True, False, True]
    pair = [r | {"split": split} for split, r in enumerate(ended)]
    line = next(t for t in module.table(pair).split("\n") if t.startswith(f"| {row['data']}"))
    assert line.split(" | ")[11] == "2"


def test_one_split_does_not_tell_whether_a_prior_is_worse(script):
    module = script("priors/few_rows")
    name = module.DATA[0]

    def checks(*splits, worse=-0.1):
        cell = {
            "rmse": 1.0,
            "mnlp": 1.0,
            "coverage": 0.9,
            "steps": 1,
            "seconds": 1.0,
            "commit": "a",
        }
        cells = [
            {**cell, "data": name, "split": split, "prior": prior}
            | {"mnlp": 1.0 + 0.1 * split + worse * (prior != "none") * (1.0 + 0.1 * split)}
            for split in splits
            for prior in module.PRIORS
        ]
        return set(module.table(cells)[1].values())

    assert checks(0) == checks() == {None}
    assert checks(0, 1) == {True}
    assert checks(0, 1, worse=3.0) == {False}


def test_rates_read_the_noise_variance_as_the_model_does(script):
    module = script("qsgp/rates")
    config = composed(["experiment=qsgp_kin40k", "likelihood.noise_variance=1.25"])
    likelihood = module.Gaussian(1.25)
    state = {f"likelihood.{key}": value for key, value in likelihood.state_dict().items()}
    assert math.isclose(module.noise_of(config, state), 1.25, rel_tol=1e-6)


def test_seconds_of_mnist_are_those_of_finished_work(script, monkeypatch):
    module = script("qsgp/mnist")
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert module.clock(torch.device("cpu")) > 0.0
    assert waited == []
    module.clock(torch.device("cuda"))
    assert waited == [torch.device("cuda")]


def test_a_committee_that_was_stopped_between_its_rules_is_run_again(script, monkeypatch, tmp_path):
    module = script("experts/compare")
    cells = [json.loads(line) for line in module.CELLS.read_text().splitlines()]
    path = tmp_path / "cells.jsonl"
    monkeypatch.setattr(module, "CELLS", path)
    monkeypatch.setattr(module, "report", lambda cells: None)
    monkeypatch.setattr(sys, "argv", ["compare", "--sets", "airfoil"])
    monkeypatch.delitem(module.SPARSE, "svgp")  # not among the cells
    asked = []

    def cells_of(data, name, options):
        asked.append((data, name))
        return [c for c in cells if (c["data"], c["plan"]) == (data, name)]

    monkeypatch.setattr(module, "cells_of", cells_of)
    committee = [c for c in cells if (c["data"], c["plan"]) == ("airfoil", "committee, random")]
    path.write_text("".join(json.dumps(c) + "\n" for c in cells if c not in committee[1:]))
    assert len(committee) == 4
    module.main()
    assert asked == [("airfoil", "committee, random")]
    module.main()
    assert len(asked) == 1  # all rules are there


@pytest.mark.parametrize(("name", "arguments"), [("swsgp/large", ()), ("experts/compare", (1,))])
def test_seconds_by_the_clock_are_not_shown_as_processor_seconds(script, name, arguments):
    module = script(name)
    trained = json.loads(module.MAIN_ROAD.read_text())
    for row in module.main_road(*arguments):
        kind = "svgp" if "svgp" in row["run"] else "sgpr"
        assert row["processor seconds"] is None
        assert row[module.TRAINING] == trained[kind]["metrics"]["train.seconds"]


def test_the_commoner_class_of_training_rows_is_judged_on_test_rows(script):
    module = script("swsgp/airline")
    train, test = torch.tensor([1, 1, 0]), torch.tensor([0, 0, 0, 1])
    assert module.error_of_commoner(train, test) == 0.75
    assert module.error_of_commoner(1 - train, 1 - test) == 0.75


def test_selectors_with_a_larger_trace_than_uniform_points_are_named_with_the_error(script):
    module = script("diagnostics/inducing")
    rows = [
        {"selector": name, "T": trace, "standard error": error}
        for name, trace, error in (
            ("uniform", 33.2, 2.0),
            ("rls", 33.7, 1.5),
            ("greedy", 29.0, 0.3),
        )
    ]
    assert "rls by 0.50, within two standard errors" in module.beside_uniform(rows)
    assert module.beside_uniform(rows).endswith("(5.00).")
    rows[1] = rows[1] | {"T": 40.0}
    assert "rls by 6.80, beyond" in module.beside_uniform(rows)
    assert module.beside_uniform(rows[::2]) == ""


def test_a_finished_run_is_not_taken_for_one_of_other_options(script, tmp_path):
    module = script("gpx_runs")
    folder = module.RunFolder(tmp_path / "run")
    options = [*module.QUIET, "approx=svgp", "data=toy1d", "trainer.quiet=true"]
    assert module.train_or_resume([*options, "trainer.max_steps=2"], folder) > 0.0
    assert module.train_or_resume([*options, "trainer.max_steps=2"], folder) is None
    for takes in (module.train_or_resume, lambda given, kept: module.train_in(kept.path, given)):
        with pytest.raises(ValueError, match=r"trainer.max_steps=2, not 3: delete it, or train it"):
            takes([*options, "trainer.max_steps=3"], folder)


def test_the_latest_row_of_the_gpu_answers_a_check(script, monkeypatch, tmp_path):
    module = script("gpu_rows")
    monkeypatch.setattr(module, "HOUR", tmp_path)
    assert module.gpu_check("grid of", "large enough") == {"large enough": None}
    row = {"name": "grid of 9 cells", "value": 1.0, "unit": "s", "note": "4 steps", "card": "A GPU"}
    lines = [json.dumps(row | {"passed": passed}) for passed in (False, True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    ((what, ok),) = module.gpu_check("grid of", "large enough").items()
    assert ok
    assert what.startswith("large enough (A GPU, experiments/gpu/hour: grid of 9 cells: 1 s;")
