"""Files of rows: what several processes add at a time, and what a stopped process leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def files(script):
    return script("row_files")


def test_rows_of_processes_that_add_at_the_same_time_are_all_kept(tmp_path):
    program = (
        "import sys\n"
        "from operator import itemgetter\n"
        "from pathlib import Path\n"
        "from row_files import add_line\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for n in range(30):\n"
        "    add_line(Path(sys.argv[1]), {'by': sys.argv[2], 'n': n}, itemgetter('by', 'n'))\n"
    )
    path = tmp_path / "rows.jsonl"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), by],
            env={"PYTHONPATH": f"{EXPERIMENTS}:{EXPERIMENTS.parent}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for by in "ab"
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    found = sorted((row["by"], row["n"]) for row in map(json.loads, path.read_text().splitlines()))
    assert found == [(by, n) for by in "ab" for n in range(30)]


def test_a_row_takes_the_place_of_one_with_its_key(files, tmp_path):
    path = tmp_path / "rows.jsonl"
    for row in ({"data": "a", "n": 1}, {"data": "b", "n": 2}, {"data": "a", "n": 3}):
        found = files.add_line(path, row, itemgetter("data"))
    assert found == files.read_lines(path) == [{"data": "b", "n": 2}, {"data": "a", "n": 3}]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]  # no lock, no part


@pytest.mark.parametrize("last", ['{"n": 2', '{"n": 2}'])
def test_a_line_that_was_cut_off_is_left_out(files, tmp_path, last):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n' + last)
    whole = [{"n": 1}, {"n": 2}] if last.endswith("}") else [{"n": 1}]
    assert files.read_lines(path) == whole
    files.add_line(path, {"n": 3}, itemgetter("n"))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [*whole, {"n": 3}]


def test_a_write_that_fails_leaves_the_rows(files, tmp_path):
    path = tmp_path / "rows.jsonl"
    files.add_line(path, {"n": 1}, itemgetter("n"))
    with pytest.raises(TypeError):
        files.add_line(path, {"n": 1, "no": object()}, itemgetter("n"))
    assert files.read_lines(path) == [{"n": 1}]


@pytest.mark.parametrize(
    ("name", "file", "read"),
    [
        ("direct/uci_tables", "FOLDS", lambda module: module.read()),
        ("grief/uci", "FOLDS", lambda module: module.read()),
        ("ski/real", "CELLS", lambda module: module.read()),
        ("cells", None, lambda module: module.Cells(module.PATH, "data").rows),
    ],
)
def test_scripts_go_on_after_a_line_that_was_cut_off(
    script, monkeypatch, tmp_path, name, file, read
):
    module = script(name)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"data": "a"}\n{"da')
    monkeypatch.setattr(module, file or "PATH", path, raising=False)
    assert [row["data"] for row in read(module)] == ["a"]


def test_the_kernel_of_a_set_is_read_before_a_line_that_was_cut_off(script, monkeypatch, tmp_path):
    module = script("whole_set")
    path = tmp_path / "kernels.jsonl"
    row = {"data": "servo", "lengthscales": [1.0], "signal": 1.0, "noise": 0.1, "target_scale": 2.0}
    path.write_text(json.dumps(row) + '\n{"data')
    monkeypatch.setattr(module, "KERNELS", path)
    assert module.whole_set_kernel("servo").target_scale == 2.0
    monkeypatch.setattr(module, "fit_kernel", lambda name: row | {"data": name})
    module.whole_set_kernel("yacht")
    assert [json.loads(line)["data"] for line in path.read_text().splitlines()] == [
        *("servo", "yacht"),
    ]


def test_cells_of_other_processes_are_kept_and_known(script, tmp_path):
    cells = script("cells").Cells
    path = tmp_path / "cells.jsonl"
    one, other = cells(path, "data"), cells(path, "data")
    one.add({"data": "a", "n": 1})
    other.add({"data": "b", "n": 2})
    one.add({"data": "a", "n": 3})
    assert ("b",) in one
    assert [(row["data"], row["n"]) for row in cells(path, "data").rows] == [("b", 2), ("a", 3)]


TABLES = {
    # script: options, functions that measure, rows of another process, of all rows
    "deep/sizes": (
        [],
        {"trained_on": lambda rows, key, method: _of(rows, (*key, method), *SIZES_KEY)},
        lambda row: row["seed"] == 2,
    ),
    "deep/regression": (
        ["--data", "protein"],
        {
            "measured": lambda rows, data, method, quick: _of(
                rows, (data, method), *["data", "method"]
            )
        },
        lambda row: row["data"] != "protein",
    ),
    "deep/mnist": (
        [],
        {"measured": lambda rows, study, name, folder: _of(rows, (name,), "method")},
        lambda row: row["method"] == "CNN+MCD",
    ),
    "deep/fields": (
        [],
        {
            "measured": lambda rows, key, steps: _of(rows, key, "method", "N", "seed")[0],
            "control": lambda rows: _of(rows, (None,), "seed")[0],
        },
        lambda row: row["N"] == 4000,
    ),
    "deep/masks": (
        [],
        {"row_of": lambda rows, key, setting, steps: _of(rows, key, "method", "N", "setting")[0]},
        lambda row: row["method"] == "CNN+GP(RF)",
    ),
    "swsgp/large": (
        ["--only", "pol"],
        {"measured": lambda rows, name, options: _of(rows, (name,), "run")[0]},
        lambda row: row["run"].startswith("protein"),
    ),
}
SIZES_KEY = ("data", "N", "seed", "method")


def _of(rows, values, *names):
    return [dict(row) for row in rows if tuple(row[name] for name in names) == tuple(values)]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_keeps_rows_that_another_process_adds(script, monkeypatch, tmp_path, name):
    options, functions, elsewhere = TABLES[name]
    module, record = script(name), sys.modules["record"]
    monkeypatch.setitem(record.TITLES, tmp_path.name, "Study")
    content = json.loads((module.HERE / f"{module.__name__}.json").read_text())
    file = tmp_path / f"{module.__name__}.json"
    monkeypatch.setattr(module, "HERE", tmp_path)
    for drawing in ("draw", "draw_entropies"):
        monkeypatch.setattr(module, drawing, lambda rows: None, raising=False)
    monkeypatch.setattr(sys, "argv", [name, *options])
    others = list(filter(elsewhere, content["rows"]))
    own = []

    def measure(answer, arguments):
        if not own:  # meanwhile, another process writes its rows
            file.write_text(json.dumps(content | {"rows": others}))
        found = answer(content["rows"], *arguments)
        own.extend(found if isinstance(found, list) else [found])
        return found

    for function, answer in functions.items():
        monkeypatch.setattr(module, function, lambda *a, answer=answer: measure(answer, a))
    module.main()
    found = json.loads(file.read_text())["rows"]
    assert len(own) > 0
    assert len(others) > 0
    assert not any(map(elsewhere, own))  # nor measured again
    assert all(row in found for row in [*own, *others])


def test_runs_of_the_noisy_digits_that_another_process_adds_are_kept(script, monkeypatch, tmp_path):
    module = script("deep/noisy_digits")
    monkeypatch.setitem(sys.modules["record"].TITLES, tmp_path.name, "Study")
    content = json.loads((module.HERE / "noisy_digits.json").read_text())
    every = content["rows"]["each run"]
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "draw", lambda name, rows: None)
    monkeypatch.setattr(sys, "argv", ["noisy_digits", "--only", "CNN"])
    others = [row for row in every if row["method"] == "DKL"]

    def measured(method, seed, quick, folder):
        if seed == 0:
            rows = {"means": [], "each run": others}
            (tmp_path / "noisy_digits.json").write_text(json.dumps(content | {"rows": rows}))
        return _of(every, (method, seed), "method", "seed")

    monkeypatch.setattr(module, "measured", measured)
    module.main()
    found = json.loads((tmp_path / "noisy_digits.json").read_text())["rows"]
    assert {row["method"] for row in found["each run"]} == {"CNN", "DKL"}
    assert len(found["each run"]) == 6
    assert {row["method"] for row in found["means"]} == {"CNN", "DKL"}


def test_rows_of_cglb_that_another_process_adds_are_kept(script, monkeypatch, tmp_path):
    module = script("cglb/comparison")
    one, other = json.loads(module.ROWS.read_text())[:2]
    rows = tmp_path / "rows.json"
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "TRACES", tmp_path / "traces.json")

    def row_of(folder):
        rows.write_text(json.dumps([other]))
        return one

    monkeypatch.setattr(module, "row_of", row_of)
    monkeypatch.setattr(sys, "argv", ["comparison", "--from", "folder"])
    module.main()
    assert json.loads(rows.read_text()) == [other, one]


def test_runs_of_qsgp_that_another_process_adds_are_kept(script, monkeypatch, tmp_path):
    module = script("qsgp/regression")
    known = json.loads(module.RUNS.read_text())
    one, other = "fourier-kin40k-solved", "fourier-protein-solved"
    runs = tmp_path / "runs.json"
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "RUNS", runs)
    monkeypatch.setattr(module, "record", lambda *_: None)
    (tmp_path / "config.yaml").write_text("")

    def row_of(folder, options):
        runs.write_text(json.dumps({other: known[other]}))
        return known[one]

    monkeypatch.setattr(module, "row_of", row_of)
    monkeypatch.setattr(sys, "argv", ["regression", "--from", str(tmp_path)])
    module.main()
    assert set(json.loads(runs.read_text())) == {one, other}
