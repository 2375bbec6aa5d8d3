"""Tables of experiments: commits of rows, and outcomes of checks."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def record(monkeypatch):
    """experiments/record.py, in a process that began at a clean commit of ones."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    path = ROOT / "experiments" / "record.py"
    spec = importlib.util.spec_from_file_location("record", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "record", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "COMMIT", "1" * 40)
    return module


@pytest.fixture
def cells(record, monkeypatch):
    """experiments/cells.py, beside that record."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    monkeypatch.delitem(sys.modules, "cells", raising=False)
    yield importlib.import_module("cells").Cells
    del sys.modules["cells"]


@pytest.fixture
def folder(tmp_path, record, monkeypatch):
    monkeypatch.setitem(record.TITLES, tmp_path.name, "Study")
    return tmp_path


def test_rows_of_a_resumed_table_keep_their_commits(record, folder):
    table = folder / "study.json"
    first = [{"n": 1}, {"n": 2, "commit": "2" * 40 + "-dirty"}]
    record.write(folder, "study", "Title", [], first, {})
    assert first[0]["commit"] == "1" * 40
    record.COMMIT = "3" * 40
    rows = [*record.earlier(table), {"n": 3}]
    record.write(folder, "study", "Title", [], rows, {})
    assert [row["commit"][0] for row in json.loads(table.read_text())["rows"]] == ["1", "2", "3"]
    text = (folder / "RESULTS.md").read_text()
    assert (
        "rows measured at commit 111111111111 (1), commit 222222222222 with uncommitted changes "
        "(1), commit 333333333333 (1)"
    ) in text
    assert "| n |\n" in text  # no column of its own


def test_rows_from_before_are_not_given_a_commit(record, folder):
    table = folder / "study.json"
    record.write(folder, "study", "Title", [], [{"n": 1}], {})
    content = json.loads(table.read_text())
    del content["rows"][0]["commit"]
    table.write_text(json.dumps(content))
    record.write(folder, "study", "Title", [], [*record.earlier(table), {"n": 2}], {})
    text = (folder / "RESULTS.md").read_text()
    assert "commit 111111111111 (1), a commit that was not recorded (1)" in text


def test_a_row_that_sums_up_runs_counts_them_by_commit(record, folder):
    runs = [{"commit": "2" * 40}, {"commit": "2" * 40}, {"commit": None}, {}]
    assert record.tally(runs) == {"2" * 40: 2, record.NOT_RECORDED: 2}
    record.write(folder, "study", "Title", [], [{"n": 1, "commit": record.tally(runs)}], {})
    text = (folder / "RESULTS.md").read_text()
    assert "commit 222222222222 (2), a commit that was not recorded (2)" in text


def test_judging_again_leaves_rows_machine_and_date(record, folder):
    table = folder / "study.json"
    record.write(folder, "study", "Title", ["as it was"], {"": [{"n": 1}]}, {"small": True})
    before = json.loads(table.read_text())
    record.COMMIT = "3" * 40
    checks = {"small": False, "large": None, "round": True}
    record.rewrite_checks(folder, "study", None, checks)
    assert json.loads(table.read_text()) == before | {"checks": checks}
    text = (folder / "RESULTS.md").read_text()
    assert "- FAIL: small\n- not run: large\n- pass: round\n" in text


def test_a_table_written_again_keeps_its_machine_and_date(record, folder):
    table = folder / "study.json"
    record.write(folder, "study", "Title", [], [{"n": 1, "commit": "2" * 40}], {})
    elsewhere = json.loads(table.read_text()) | {"date": "2020-01-01"}
    elsewhere["machine"]["num_threads"] = 77
    table.write_text(json.dumps(elsewhere))
    record.write(folder, "study", "New title", [], record.earlier(table), {"small": True})
    again = json.loads(table.read_text())
    assert again == elsewhere | {"title": "New title", "checks": {"small": True}}
    record.write(folder, "study", "Title", [], [*record.earlier(table), {"n": 2}], {})
    assert json.loads(table.read_text())["date"] > "2020-01-01"


def test_rows_keep_the_machine_that_measured_them(record, folder, monkeypatch):
    def machine(name):
        found = {"device_name": name, "num_threads": 1, "versions": {"torch": "2"}}
        return lambda *_: found | {"git_commit": None}

    table = folder / "study.json"
    monkeypatch.setattr(record, "environment_record", machine("old machine"))
    record.write(folder, "study", "Title", [], [{"n": 0}, {"n": 1}], {})
    content = json.loads(table.read_text())
    del content["rows"][0]["machine"]  # as a row from before it was recorded
    table.write_text(json.dumps(content))
    monkeypatch.setattr(record, "environment_record", machine("new machine"))
    summary = {"n": 9, "commit": {"2" * 40: 3}}  # of runs on any machine
    again = [{"n": 0, "commit": "1" * 40}, {"n": 1, "commit": "1" * 40}, {"n": 2}]
    record.write(folder, "study", "Title", [], [*again, summary], {})
    rows = json.loads(table.read_text())["rows"]
    assert [row.get("machine", "").split(",")[0] for row in rows] == [
        *("", "old machine", "new machine", ""),
    ]
    text = (folder / "RESULTS.md").read_text()
    assert (
        "; rows measured on a machine that was not recorded (2), new machine, 1 threads, torch 2 "
        "(1), old machine, 1 threads, torch 2 (1)\n"
    ) in text
    assert "| n |\n" in text
    before = table.read_text()
    monkeypatch.setattr(record, "environment_record", machine("a third"))
    record.write(folder, "study", "Title", [], [dict(row) for row in again] + [summary], {})
    assert table.read_text() == before


def test_a_rehearsal_is_printed_and_not_kept(record, cells, tmp_path, capsys):
    record.write(None, "study", "Title", [], [{"n": 1}], {"small": True})
    assert "- pass: small" in capsys.readouterr().out
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"data": "a", "split": 0, "n": 1}) + "\n")
    short = cells(None, "data", "split")
    assert ("a", 0) not in short  # nor taken for a whole run
    short.add({"data": "a", "split": 0, "n": 2})
    assert ("a", 0) in short
    assert path.read_text().count("\n") == 1


def test_a_cell_is_kept_at_once_and_measured_again_takes_its_own_place(cells, tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"data": "a", "n": 1}) + "\n")
    found = cells(path, "data", "split", split=0)
    assert ("a", 0) in found  # as a cell from before there were splits
    found.add({"data": "a", "split": 1, "n": 2})
    found.add({"data": "a", "split": 0, "n": 3})
    again = cells(path, "data", "split", split=0)
    assert [(row["split"], row["n"]) for row in again.rows] == [(1, 2), (0, 3)]
    assert all(row["commit"] == "1" * 40 for row in again.rows)


@functools.cache
def top_level_names(path):
    """Names that a module defines or imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        else:
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found


def test_scripts_import_names_that_their_neighbours_define():
    missing = []
    for script in sorted((ROOT / "experiments").rglob("*.py")):
        for node in ast.walk(ast.parse(script.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            places = (script.parent / f"{node.module}.py", ROOT / f"experiments/{node.module}.py")
            source = next((place for place in places if place.exists()), None)
            if source is not None:
                defined = top_level_names(source)
                missing += [f"{script.name}: {a.name}" for a in node.names if a.name not in defined]
    assert not missing
