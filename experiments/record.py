"""Rows of experiments: a JSON file per table, and one generated RESULTS.md per folder.

A script writes <name>.json through ``write``: what was run, what was published, its rows, what
they had to show, and the machine. RESULTS.md is made from all of them, so a table cannot disagree
with its rows. Scripts run as ``python experiments/<folder>/<script>.py`` find this file through

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

Every row says which commit it was measured at, under ``commit``: forty digits, with ``-dirty``
where code or options differed from it; ``not recorded`` where a row is older than this rule; for a
row that sums up several runs, a dict commit -> number of runs. Rows of this process get theirs
from ``write``; a script that keeps rows of earlier processes reads them with ``earlier``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from gpx.runs.environment import environment_record, source_commit

Rows = list[dict[str, Any]]

Checks = dict[str, bool | None]
"""What a table had to show: whether it does, None where what that takes was not run."""

NOT_RECORDED = "not recorded"
COMMIT = source_commit() or NOT_RECORDED
"""Of this process: taken when it starts, since a working tree may move on while it runs."""

TITLES = {
    "auto": "Which method: what approx=auto chooses, beside the others",
    "experts": "Committees and local experts",
    "classification": "Classification on all points: who is right where",
    "deep": "Deep and convolutional networks with Gaussian processes: calibration",
    "diagnostics": "Diagnostics: what certificates show",
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
    """Write <name>.json and RESULTS.md; machine and date stay where no row is another one.

    Args:
        folder: of the script. None: only print the table, of a rehearsal (--quick), say.
        name: of the table; starts with the name of its script.
        title: of its section.
        notes: sentences under the title: setting, and where published numbers come from.
        rows: one dict per row of the table, all with the same keys; several tables: caption ->
            rows. Those without ``commit`` were measured by this process.
        checks: what the rows had to show, and whether they do (None: not run).
        hidden: keys of rows that are in the file but not in the table.
        pictures: file names in the folder.
    """
    for row in _all_rows(rows):
        row.setdefault("commit", COMMIT)
    environment = environment_record(torch.device("cpu"), 0, {})
    machine = {
        key: environment[key] for key in ("device_name", "num_threads", "versions", "git_commit")
    }
    content = {
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
        before = json.loads(path.read_text()) if path.exists() else {}
        if before.get("rows") == json.loads(json.dumps(rows)):  # none was measured here and now
            content |= {key: before[key] for key in ("machine", "date")}
        path.write_text(json.dumps(content, indent=1) + "\n")
        results(folder)
    print(_section(content))


def judged_again(folder: Path, name: str, notes: Sequence[str] | None, checks: Checks) -> None:
    """Write other notes (None: the same) and checks beside rows that stay as they were measured."""
    path = folder / f"{name}.json"
    content = json.loads(path.read_text())
    content["checks"] = checks
    if notes is not None:
        content["notes"] = list(notes)
    path.write_text(json.dumps(content, indent=1) + "\n")
    results(folder)
    print(_section(content))


def earlier(path: Path) -> Any:
    """Rows of a table that an earlier process wrote, as ``write`` took them; [] without a file."""
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["rows"]
    for row in _all_rows(rows):
        row.setdefault("commit", NOT_RECORDED)
    return rows


def tally(runs: Rows) -> dict[str, int]:
    """Number of runs by commit, for the row that sums them up."""
    return dict(Counter(run.get("commit") or NOT_RECORDED for run in runs))


def origin(counts: Mapping[str, int]) -> str:
    """In words, at which commits how many rows were measured."""
    found = [words(commit) + f" ({count})" for commit, count in sorted(counts.items())]
    return "rows measured at " + ", ".join(found)


def verdict(what: str, ok: bool | None) -> str:
    """Line of a check."""
    return f"- {'not run' if ok is None else 'pass' if ok else 'FAIL'}: {what}"


def words(commit: str | None) -> str:
    """A commit as tables name it."""
    if commit is None or commit == NOT_RECORDED:
        return "a commit that was not recorded"
    digits, _, dirty = commit.partition("-")
    return f"commit {digits[:12]}" + (" with uncommitted changes" if dirty else "")


def _all_rows(rows: Rows | dict[str, Rows]) -> Rows:
    return [row for table in rows.values() for row in table] if isinstance(rows, dict) else rows


def results(folder: Path) -> None:
    """Write RESULTS.md again from the tables of a folder; other JSON files there are left out."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    sections = [content for content in files if "checks" in content]
    text = f"# {TITLES[folder.name]}\n\n"
    text += "Written by the scripts of this folder from their JSON files.\n"
    text += "".join(_section(content) for content in sections)
    (folder / "RESULTS.md").write_text(text)


def _section(content: dict[str, Any]) -> str:
    lines = [f"\n## {content['title']}\n", *content["notes"], ""]
    rows = content["rows"]
    for caption, table in (rows if isinstance(rows, dict) else {"": rows}).items():
        if caption:
            lines += [caption, ""]
        hidden = [*content.get("hidden", []), "commit"]
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
    lines.append(
        f"- {content['date']}, {machine['device_name']}, {machine['num_threads']} threads, "
        f"torch {machine['versions']['torch']}; table written at "
        f"{words(machine['git_commit'])}, {origin(counts)}"
    )
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "[" + ", ".join(_cell(v) for v in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
