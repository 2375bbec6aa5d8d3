"""Half an hour on a GPU, rehearsed on the CPU at tiny sizes; its table, and what if it is late."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import launches
import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx.options.composition import composed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu_hour(monkeypatch):
    """The script as a module."""
    found = importlib.util.spec_from_file_location("gpu_hour", ROOT / "scripts" / "gpu_hour.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def rows_of(folder):
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_every_stage_runs_here_at_tiny_sizes(gpu_hour, tmp_path):
    assert gpu_hour.main(["--device", "cpu", "--quick", "--output", str(tmp_path)]) == 0
    rows = rows_of(tmp_path)
    ended = [row["stage"] for row in rows if row["name"].endswith(": to its end")]
    assert ended == list(gpu_hour.LIMITS)
    assert all(row.get("passed") is not False for row in rows)
    assert any(row.get("peer") for row in rows)


@pytest.fixture
def stages(monkeypatch):
    """``gpu_stages`` as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("gpu_stages")


def test_every_run_of_the_stages_is_one_that_there_is(stages, monkeypatch):
    """Composed with all its options; a name that is no more would fail there, half an hour in."""
    assert launches.QUICK  # the oracle of that name is what the script imports
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = importlib.util.spec_from_file_location("table", ROOT / "scripts" / "launches.py")
    table = importlib.util.module_from_spec(script)
    script.loader.exec_module(table)
    runs = {**sys.modules["gpu_correctness"].FIVE_STEPS, **table.TABLE}
    for name, options in runs.items():
        named = any(o.startswith("approx=") for o in options)
        composed([*options] if named else [f"approx={name}", *options])
    for options, _, _ in stages.HEADLINE:
        composed([*options, *stages.SILENT_RUN])
    for recipe, _, _ in stages.RECIPES:
        composed([*recipe.split(), *stages.SILENT_RUN])


def test_peers_of_the_headline_runs_are_the_figures_of_the_readme(stages):
    rows = json.loads((ROOT / "experiments" / "main_road" / "rows.json").read_text())
    peers = {options: seconds for options, _, seconds in stages.HEADLINE}
    for name in ("qsgp", "svgp", "sgpr", "vecchia"):
        run = tuple(rows[name]["settings"])
        assert peers[run] == rows[name]["metrics"]["train.seconds"]


def test_draws_for_the_other_device_are_those_of_the_cpu(stages):
    with claimed_cuda():
        plain = torch.randn(3, generator=torch.Generator().manual_seed(7))
        with sys.modules["drawn_alike"].drawn_alike():
            generator = torch.Generator("cuda").manual_seed(7)
            assert generator.device.type == "cuda"
            found = torch.randn(3, generator=generator, device="cuda")
            assert found.is_cuda
            empty = torch.empty(2, device="cuda")
            assert empty.normal_(generator=generator) is empty
            assert empty.is_cuda
    assert found.tolist() == plain.tolist()


def test_ceilings_run_here_and_make_a_table(gpu_hour, tmp_path):
    arguments = ["--device", "cpu", "--quick", "--only", "ceilings", "--output", str(tmp_path)]
    assert gpu_hour.main(arguments) == 0
    names = {row["name"] for row in rows_of(tmp_path)}
    assert {"machine", "launch latency", "copy", "product, float64", "Cholesky, float32"} <= names
    table = (tmp_path / "RESULTS.md").read_text()
    assert "## Ceilings" in table
    assert "| copy |" in table
    assert "TB/s" in table


def test_programs_of_a_stage_find_the_packages_that_were_carried(
    stages, monkeypatch, tmp_path, capsys
):
    """On a machine without a network they lie in a folder of their own."""
    (tmp_path / "carried.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = [sys.executable, "-c", "import carried, gpx"]
    sys.modules["gpu_correctness"].command(stages.Machine("cpu", True, 60.0), "it", words, 60)
    assert json.loads(capsys.readouterr().out)["passed"]


def test_runs_of_the_stages_need_no_package_that_is_not_carried():
    """They write no events and no figures, and read no pictures and no Parquet."""
    program = (
        "import sys\n"
        "absent = 'tensorboard', 'matplotlib', 'PIL', 'pandas', 'pyarrow', 'joblib_launcher'\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from gpu_machine import SILENT_RUN, SMALL_DATA, run_metrics\n"
        "import gpu_stages\n"
        "words = ['approx=sod', 'approx.num_points=20', *SMALL_DATA, *SILENT_RUN]\n"
        "words += ['trainer.baselines=false', 'trainer.max_steps=1']\n"
        "assert run_metrics(words)['train.steps'] == 1\n"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def stage_that(gpu_hour, monkeypatch, tmp_path, program):
    """A stage whose process runs ``program`` in the place of gpu_stages.py."""
    script = tmp_path / "gpu_stages.py"
    script.write_text(program)
    monkeypatch.setattr(gpu_hour, "HERE", tmp_path)
    folder = tmp_path / "out"
    return folder, ["--device", "cpu", "--only", "ceilings", "--output", str(folder)]


def has_ended(status, seconds=10.0):
    """Whether a process is gone, or a zombie, soon: a busy machine takes a while to end it."""
    for _ in range(int(10 * seconds)):
        try:
            if "State:\tZ" in status.read_text():
                return True
        except OSError:  # no such process
            return True
        time.sleep(0.1)
    return False


def test_the_limits_of_grief_at_the_size_of_electric(stages, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = []
    for _ in range(2):
        stages.two_million_points(stages.Machine("cpu", True, 60.0))
        rows.append(json.loads(capsys.readouterr().out))
        monkeypatch.setattr(sys.modules["electric_size"], "MOST_SECONDS", 0.0)
    assert [row["passed"] for row in rows] == [True, False]
    assert rows[0]["name"] == "GRIEF, evidence and gradient, n = 4,000, p = 50"
    assert rows[0]["value"] > 0.0
    stages.two_million_points(stages.Machine("cpu", True, 0.0))
    assert json.loads(capsys.readouterr().out)["passed"] is None


def test_rows_of_a_stage_that_is_stopped_are_kept(gpu_hour, monkeypatch, tmp_path):
    program = (
        "import json, subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "first = {'name': 'first', 'value': 2.0, 'peer': 8.0, 'child': child.pid}\n"
        "print(json.dumps(first), flush=True)\n"
        "child.wait()\n"
    )
    folder, arguments = stage_that(gpu_hour, monkeypatch, tmp_path, program)
    assert gpu_hour.main([*arguments, "--total", "6"]) == 1
    first, last = rows_of(folder)
    assert (first["name"], first["value"]) == ("first", 2.0)
    assert has_ended(Path(f"/proc/{first['child']}/status"))
    assert last["passed"] is False
    assert "over its 6 s" in last["note"]
    assert "| first | 2 |  |  | 8 | 4 |" in (folder / "RESULTS.md").read_text()


def test_a_line_that_was_cut_off_ends_no_other_stage(gpu_hour, monkeypatch, tmp_path):
    program = 'print(\'{"name": "whole"}\')\nprint(\'{"name": "cut\', flush=True)\n'
    folder, arguments = stage_that(gpu_hour, monkeypatch, tmp_path, program)
    assert gpu_hour.main(arguments) == 0
    assert [row["name"] for row in rows_of(folder)] == ["whole", "ceilings: to its end"]


def test_a_table_without_rows_is_one_sentence(gpu_hour, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        gpu_hour.main(["--table", "--output", str(tmp_path)])
    assert stop.value.code == 2
    assert f"{tmp_path} has no rows.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("cut", ['{"name": "cut', '{"name": "cut", "note": "{}'])
def test_rows_after_a_line_that_was_cut_off_are_kept(gpu_hour, monkeypatch, tmp_path, cut):
    folder, arguments = stage_that(gpu_hour, monkeypatch, tmp_path, 'print(\'{"name": "a"}\')')
    folder.mkdir()
    (folder / "rows.jsonl").write_text(cut)
    assert gpu_hour.main(arguments) == 0
    assert gpu_hour.main([*arguments, "--total", "1"]) == 1  # no time left
    lines = (folder / "rows.jsonl").read_text().splitlines()
    assert lines[0] == cut
    assert [json.loads(line)["name"] for line in lines[1:]] == ["a", *2 * ["ceilings: to its end"]]
    assert "| a |" in (folder / "RESULTS.md").read_text()


def test_time_that_a_stage_takes_to_start_counts(gpu_hour, monkeypatch, tmp_path):
    program = (
        "import json, sys, time\n"
        "until = float(sys.argv[sys.argv.index('--until') + 1])\n"
        "print(json.dumps({'name': 'left', 'value': until - time.time()}))\n"
    )
    folder, arguments = stage_that(gpu_hour, monkeypatch, tmp_path, program)
    assert gpu_hour.main([*arguments, "--total", "20"]) == 0
    assert 0.0 < rows_of(folder)[0]["value"] < 20.0


def test_a_stage_knows_the_time_until_it_is_stopped(stages, monkeypatch):
    left = []
    monkeypatch.setitem(stages.STAGES, "ceilings", lambda machine: left.append(machine.left()))
    own = ["gpu_stages.py", "ceilings", "--device", "cpu"]
    for options in (["--until", str(time.time() + 30.0)], ["--seconds", "50"]):
        monkeypatch.setattr(sys, "argv", [*own, *options])
        stages.main()
    assert 0.0 < left[0] < 30.0 < left[1] < 50.0


def test_an_error_that_ends_the_use_of_the_device_ends_no_stage(stages, monkeypatch, capsys):
    def illegal():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", illegal)
    sys.modules["gpu_machine"].card.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_name", illegal)
    with stages.catch_errors("part"):
        illegal()
    sys.modules["gpu_machine"].card.cache_clear()
    row = json.loads(capsys.readouterr().out)
    assert (row["name"], row["passed"], row["card"]) == ("part", False, None)


def test_grief_that_cannot_be_imported_leaves_the_other_headline_runs(stages, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "electric_size", None)
    stages.two_million_points(stages.Machine("cpu", True, 60.0))
    row = json.loads(capsys.readouterr().out)
    assert (row["name"], row["passed"]) == ("GRIEF, evidence and gradient", False)


def test_a_row_begins_a_line_of_its_own(stages, gpu_hour, capsys):
    print("[library] compiling ... ", end="")
    stages.write_row("product", value=1.0)
    rows = list(filter(None, map(gpu_hour.parse_row, capsys.readouterr().out.splitlines())))
    assert [row["name"] for row in rows] == ["product"]


def cuda_row(stage, name, **more):
    return {"stage": stage, "name": name, "device": "cuda", "date": "2026-01-01", **more}


def verdict(gpu_hour, claim, *rows):
    """pass, FAIL or not run."""
    lines = gpu_hour.results(list(rows)).splitlines()
    (found,) = (line for line in lines if line.startswith("- ") and claim in line)
    return found.removeprefix("- ").split(":")[0]


def test_claims_of_runs_that_failed_or_took_too_long(gpu_hour):
    run = cuda_row("headline", "train.py approx=qsgp data=kin40k")
    claim = "data=kin40k in at most 20 s"
    stopped = {"passed": None, "note": "stopped"}
    assert verdict(gpu_hour, claim, run | {"passed": False}) == "FAIL"
    assert verdict(gpu_hour, claim, run | stopped | {"seconds_at_least": 60.0}) == "FAIL"
    # the start of the process may have taken so long
    assert verdict(gpu_hour, claim, run | stopped | {"seconds_at_least": 25.0}) == "not run"
    assert verdict(gpu_hour, claim, run | {"passed": None, "note": "no time left"}) == "not run"
    step = cuda_row("peers", "SVGP-512, 1,024 rows, float32, replayed", value=0.5, peer=9.0)
    wrong = step | {"passed": False}  # another loss than that of the plain step
    for claim in ("a step of SVGP-512", "the same step"):
        assert verdict(gpu_hour, claim, step) == "pass"
        assert verdict(gpu_hour, claim, wrong) == "FAIL"


def test_products_are_compared_on_one_gpu_only(gpu_hour):
    triton, keops = (
        cuda_row("peers", f"product, n = 100,000, 16 columns, {name}", value=value, card="H100")
        for name, value in (("triton", 1.0), ("keops", 9.0))
    )
    claim = "kernel product"
    assert verdict(gpu_hour, claim, triton, keops) == "pass"
    assert verdict(gpu_hour, claim, triton, keops | {"card": "H200"}) == "not run"
    assert verdict(gpu_hour, claim, triton | {"passed": False, "value": None}, keops) == "FAIL"
    assert verdict(gpu_hour, claim, triton, keops | {"passed": False, "value": None}) == "not run"
    table = gpu_hour.results([triton, keops | {"card": "H200"}])
    assert "Measured on: H100, H200." in table
    assert "2026-01-01 unknown H100 |" in table


def test_what_is_asked_of_a_gpu_is_judged_by_its_rows(gpu_hour):
    row = cuda_row
    product = "product, n = 100,000, 16 columns, {}"
    rows = [
        row("peers", product.format("keops"), value=30.0),
        row("peers", product.format("triton"), value=9.0),
        row("peers", "SVGP-512, 1,024 rows, float32, replayed", value=0.9, peer=0.8),
        row("headline", "train.py approx=qsgp data=kin40k", value=25.0),
        row("recipes", "experiment=qsgp_kin40k", value=0.17, seconds=100.0),
        row("sizes", "grid of 50,653,000 cells, a fifth missing: solve", value=2.0, passed=False),
    ]
    verdicts = [line for line in gpu_hour.results(rows).splitlines() if line.startswith("- ")]
    assert [line.split(":")[0] for line in verdicts] == [
        *("- pass", "- pass", "- FAIL", "- FAIL", "- pass", "- not run", "- FAIL"),
    ]
    slower = [rows[0], rows[1] | {"value": 11.0}]
    assert "- FAIL: kernel product" in gpu_hour.results(slower)
    assert "Asked of one GPU" not in gpu_hour.results([r | {"device": "cpu"} for r in rows])


def test_rows_that_are_judged_are_those_of_the_stages(stages, gpu_hour):
    """A row by another name would stay "not run" for ever."""
    named = {"train.py " + " ".join(options) for options, _, _ in stages.HEADLINE}
    assert "train.py approx=qsgp data=kin40k" in named
    assert stages.RECIPES[0][0] == "experiment=qsgp_kin40k"
    script = (ROOT / "scripts" / "gpu_comparisons.py").read_text()
    assert 'f"product, n = {n:,}, {columns} columns, {backend}"' in script
    assert 'f"SVGP-{size}, {batch:,} rows, {named(dtype)}"' in script
    assert 'f"{name}, replayed"' in script
    assert 'f"exact GP, n = {n:,}, {named(dtype)}"' in script
    assert gpu_hour.verdicts.__globals__["GRID"].startswith(f"grid of {370**3:,} cells, a fifth")
    assert sys.modules["timing"].named(torch.float32) == "float32"


def test_the_recipe_that_is_asked_for_in_two_minutes_has_them(stages, gpu_hour):
    assert gpu_hour.LIMITS["recipes"] * stages.FIRST_SHARE - 5 > 140


def test_a_run_over_its_limit_leaves_the_others_theirs(stages, capsys):
    options = ["data=toy1d", "approx=svgp", "trainer.max_steps=1000000", "optimizer.settled=null"]
    machine = stages.Machine("cpu", True, 60.0)
    assert stages.run_train_py(machine, "long", options, 3.0) is None
    row = json.loads(capsys.readouterr().out)
    assert (row["name"], row["passed"], row["seconds_at_least"]) == ("long", None, 3.0)
    assert "stopped after 3 s" in row["note"]
    assert stages.run_train_py(machine, "wrong", ["approx=nothing"], 60.0) is None
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_a_stage_that_fails_says_why_and_the_next_one_goes_on(gpu_hour, monkeypatch, tmp_path):
    folder, arguments = stage_that(gpu_hour, monkeypatch, tmp_path, "raise SystemExit('no wheels')")
    monkeypatch.setattr(gpu_hour, "LIMITS", {"ceilings": 30, "peers": 30})
    assert gpu_hour.main([*arguments[:3], "ceilings", "peers", *arguments[4:]]) == 1
    assert [row["stage"] for row in rows_of(folder)] == ["ceilings", "peers"]
    assert all("no wheels" in row["note"] for row in rows_of(folder))


def test_the_latest_row_of_a_name_is_the_tables(gpu_hour):
    row = {"stage": "peers", "name": "product", "device": "cuda", "date": "2026-01-01", "peer": 9.0}
    table = gpu_hour.results([{**row, "value": 6.0}, {**row, "value": 3.0, "note": "a|b"}])
    assert table.count("| product |") == 1
    assert "| 3 |" in table
    assert "| 9 | 3 | a/b |" in table
    assert gpu_hour.ratio({"value": 3.0, "peer": 6.0, "better": "higher"}) == "0.5"
    assert gpu_hour.ratio({"value": 3.0}) == ""


def test_three_calls_take_all_stages_in_the_time_of_each(gpu_hour):
    """Ten minutes a command, half an hour in all with a start of a minute for each."""
    stages = [stage for call in gpu_hour.CALLS for stage in call]
    assert sorted(stages) == sorted(gpu_hour.LIMITS)
    for call in gpu_hour.CALLS:
        assert sum(gpu_hour.LIMITS[stage] for stage in call) <= gpu_hour.CALL_TOTAL <= 570
    assert sum(gpu_hour.LIMITS.values()) + 3 * 60 < 30 * 60


def test_a_call_runs_its_stages_and_their_rows_make_one_table(gpu_hour, monkeypatch, tmp_path):
    folder, arguments = stage_that(gpu_hour, monkeypatch, tmp_path, "raise SystemExit('none')")
    arguments = [a for a in arguments if a not in ("--only", "ceilings")]
    for call, stages in enumerate(gpu_hour.CALLS, 1):
        own = [*arguments[:-1], str(folder / str(call)), "--call", str(call)]
        assert gpu_hour.main(own) == 1
        assert [row["stage"] for row in rows_of(folder / str(call))] == list(stages)
    rows = "".join((folder / str(k) / "rows.jsonl").read_text() for k in (1, 2, 3))
    (folder / "rows.jsonl").write_text(rows)
    assert gpu_hour.main([*arguments, "--table"]) == 0
    table = (folder / "RESULTS.md").read_text()
    assert all(f"## {stage.capitalize()}" in table for stage in gpu_hour.LIMITS)
