"""Rows of experiments: a JSON file per table, and one generated RESULTS.md per folder.

A script calls ``write``, which saves settings, published numbers, rows, checks and the machine to
<name>.json and generates RESULTS.md from all JSON files of the folder. Scripts run as ``python
experiments/<folder>/<script>.py`` and import this file after

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

The key ``commit`` of a row is the commit at which it was measured: forty digits, followed by
``-dirty`` if there were uncommitted changes of code or options; ``not recorded`` in old rows; a
dict commit -> number of runs in a row that summarises several runs. ``write`` adds the commit to
rows of this process, and the key ``machine``, a text; ``earlier`` reads rows of earlier processes.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from row_files import locked

from gpx.atomic_file import write_atomically
from gpx.runs.environment import environment_record, source_commit

Rows = list[dict[str, Any]]

Checks = dict[str, bool | None]
"""Statement about a table -> whether it holds; None: the rows it needs were not computed."""

NOT_RECORDED = "not recorded"
COMMIT = source_commit() or NOT_RECORDED
"""Commit at the start of this process: the working tree may change while it runs."""

TITLES = {
    "auto": "Which method: what approx=auto chooses, beside the others",
    "experts": "Committees and local experts",
    "classification": "Classification on all points: who is right where",
    "deep": "Deep and convolutional networks with Gaussian processes: calibration",
    "diagnostics": "Diagnostics: what certificates show",
    "derivatives": "Derivatives observed beside values",
    "direct": "Discrete weights (DIRECT): reproductions",
    "grids": "Exact Gaussian processes on grids with gaps: reproductions",
    "gpu": "On a GPU, and as far as can be seen without one",
    "grief": "Eigenfunctions of grids (GRIEF): reproductions",
    "iterative": "Evidence by iterative solvers: measurements",
    "swsgp": "Sparse within sparse, and nearest neighbours: reproductions",
    "selectors": "Where inducing points start",
    "reweighted": "Re-weighted basis kernels: reproductions",
    "sparse_family": "The sparse family: effective priors beside exact inference",
    "ski": "Structured kernel interpolation: reproductions",
    "priors": "Priors of hyperparameters",
    "qsgp": "Quadruply stochastic Gaussian processes: reproductions",
}


def argument_parser(doc: str | None, *, quick: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help begins with the first line of a script's ``doc``.

    Args:
        quick: what --quick does; None: there is no such option.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def write(
    folder: Path | None,
    name: str,
    title: str,
    notes: Sequence[str],
    rows: Rows | dict[str, Rows],
    checks: Checks,
    *,
    hidden: Sequence[str] = (),
    pictures: Sequence[str] = (),
) -> None:
    """Write <name>.json and RESULTS.md.

    If the rows are those in the file, its machine and date are kept. A script of which several
    processes may run at a time merges its rows with those of ``earlier`` and calls this in one
    block ``locked(folder)``, see ``row_files``.

    Args:
        folder: of the script. None: only print the table, as with --quick.
        name: of the table; starts with the name of its script.
        title: of its section.
        notes: sentences under the title: settings, and sources of published numbers.
        rows: one dict per row of the table, all with the same keys; several tables: caption ->
            rows. Rows without ``commit`` were measured by this process.
        checks: statements about the rows, and whether they hold (None: not run).
        hidden: keys of rows that are saved but not shown in the table.
        pictures: file names in the folder.
    """
    environment = environment_record(torch.device("cpu"), 0, {})
    machine = {
        key: environment[key] for key in ("device_name", "num_threads", "versions", "git_commit")
    }
    content: dict[str, Any] = {
        "title": title,
        "notes": list(notes),
        "rows": rows,
        "hidden": list(hidden),
        "checks": checks,
        "pictures": list(pictures),
        "machine": machine,
        "date": date.today().isoformat(),
    }
    if folder is not None:
        path = folder / f"{name}.json"
        with locked(folder):
            before = json.loads(path.read_text()) if path.exists() else {}
            _sign(_all_rows(rows), _all_rows(before.get("rows", [])), _machine_text(machine))
            if before.get("rows") == json.loads(json.dumps(rows)):  # no new row
                content |= {key: before[key] for key in ("machine", "date")}
            write_atomically(path, json.dumps(content, indent=1) + "\n")
            results(folder)
    else:
        _sign(_all_rows(rows), [], _machine_text(machine))
    print(_section(content))


def _sign(rows: Rows, before: Rows, machine: str) -> None:
    """Add commit and machine to the rows of this process.

    Args:
        rows: all rows; changed in place.
        before: rows in the file, which keep their machine if they are written again.
        machine: of this process.
    """
    known = {_values(row): row.get("machine") for row in before}
    for row in rows:
        own = "commit" not in row or row["commit"] == COMMIT != NOT_RECORDED
        row.setdefault("commit", COMMIT)
        found = known.get(_values(row), machine if own else None)
        if found is not None:
            row.setdefault("machine", found)


def _values(row: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in row.items() if key != "machine"})


def _machine_text(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['device_name']}, {machine['num_threads']} threads, "
        f"torch {machine['versions']['torch']}"
    )


def rewrite_checks(folder: Path, name: str, notes: Sequence[str] | None, checks: Checks) -> None:
    """Replace the checks of a table and its notes (None: keep them); the rows are kept."""
    path = folder / f"{name}.json"
    with locked(folder):
        content = json.loads(path.read_text())
        content["checks"] = checks
        if notes is not None:
            content["notes"] = list(notes)
        write_atomically(path, json.dumps(content, indent=1) + "\n")
        results(folder)
    print(_section(content))


def earlier(path: Path) -> Any:
    """The ``rows`` that an earlier process passed to ``write``; [] if there is no file."""
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["rows"]
    for row in _all_rows(rows):
        row.setdefault("commit", NOT_RECORDED)
    return rows


def tally(runs: Rows) -> dict[str, int]:
    """Number of runs per commit, for a row that summarises them."""
    return dict(Counter(run.get("commit") or NOT_RECORDED for run in runs))


def origin(counts: Mapping[str, int]) -> str:
    """Text that lists the commits and the number of rows measured at each."""
    found = [words(commit) + f" ({count})" for commit, count in sorted(counts.items())]
    return "rows measured at " + ", ".join(found)


def verdict(what: str, ok: bool | None) -> str:
    """A line of RESULTS.md with the outcome of a check."""
    return f"- {'not run' if ok is None else 'pass' if ok else 'FAIL'}: {what}"


def words(commit: str | None) -> str:
    """Text that names a commit in RESULTS.md."""
    if commit is None or commit == NOT_RECORDED:
        return "a commit that was not recorded"
    digits, _, dirty = commit.partition("-")
    return f"commit {digits[:12]}" + (" with uncommitted changes" if dirty else "")


def _all_rows(rows: Rows | dict[str, Rows]) -> Rows:
    return [row for table in rows.values() for row in table] if isinstance(rows, dict) else rows


def results(folder: Path) -> None:
    """Generate RESULTS.md from the tables of a folder; other JSON files are ignored."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    sections = [content for content in files if "checks" in content]
    text = f"# {TITLES[folder.name]}\n\n"
    text += "Written by the scripts of this folder from their JSON files.\n"
    text += "".join(_section(content) for content in sections)
    write_atomically(folder / "RESULTS.md", text)


def _section(content: dict[str, Any]) -> str:
    lines = [f"\n## {content['title']}\n", *content["notes"], ""]
    rows = content["rows"]
    for caption, table in (rows if isinstance(rows, dict) else {"": rows}).items():
        if caption:
            lines += [caption, ""]
        hidden = [*content.get("hidden", []), "commit", "machine"]
        header = [key for key in table[0] if key not in hidden]
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        for row in table:
            lines.append("| " + " | ".join(_cell(row[key]) for key in header) + " |")
        lines.append("")
    for picture in content.get("pictures", []):
        lines += [f"![{content['title']}]({picture})", ""]
    lines += [verdict(what, ok) for what, ok in content["checks"].items()]
    machine = content["machine"]
    counts: Counter[str] = Counter()
    for row in _all_rows(rows):
        commit = row.get("commit", NOT_RECORDED)
        counts.update(commit if isinstance(commit, dict) else {commit: 1})
    where = Counter(
        row.get("machine", "a machine that was not recorded") for row in _all_rows(rows)
    )
    several = ", ".join(f"{text} ({count})" for text, count in sorted(where.items()))
    lines.append(
        f"- {content['date']}, {_machine_text(machine)}; table written at "
        f"{words(machine['git_commit'])}, {origin(counts)}"
        + f"; rows measured on {several}"
        * any("machine" in row for row in _all_rows(rows))
    )
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "[" + ", ".join(_cell(v) for v in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
