"""Half an hour on a GPU: ceilings, correctness, headline runs, peers, profiles, recipes.

    python scripts/gpu_hour.py                                   # all stages, under 25 minutes
    python scripts/gpu_hour.py --call 1 --output "$OUT"          # or a third of them: 1, 2, 3
    python scripts/gpu_hour.py --table --output FOLDER           # RESULTS.md from its rows alone
    python scripts/gpu_hour.py --only ceilings correctness       # some of them, in one command
    python scripts/gpu_hour.py --skip recipes --output FOLDER
    python scripts/gpu_hour.py --device cpu --quick              # here, end to end, tiny sizes

Every stage (``scripts/gpu_stages.py``) runs in a process of its own with a time limit of its own,
and says what it finds as JSON lines, which are written to ``rows.jsonl`` as they come: what a stage
had found when its time ran out, or when it failed, is kept, with a row that says so. Stages are in
order of what is worth most if the machine goes away. ``RESULTS.md`` is made anew after every stage
from all rows of the folder, the latest of each name, with a peer's figure beside each where there
is one.

A machine that is held for half an hour in commands of at most ten minutes takes the stages in
three calls, each of which ends within nine minutes; where only a folder comes back from each, the
``rows.jsonl`` of all of them, one after the other in one file, give the table by ``--table``.

The machine that this is made for has Python 3.12 on x86-64, torch 2.11 (CUDA 13.0), Triton 3.6,
gpytorch and linear_operator with what they need, pytest, and no network. What is missing there for
runs (Hydra and what it takes, tqdm), tests (hypothesis) and KeOps is carried as wheels, 3 MiB in
all. Three packages exist as source only, which ``pip download`` with ``--only-binary=:all:``
refuses: ``pip wheel`` builds them where there is a network, pure Python for any version of it
(pykeops compiles at its first use, with the machine's nvcc):

    python -m pip wheel --no-deps -w .whl \\
        antlr4-python3-runtime==4.9.3 pykeops==2.3 keopscore==2.3
    python -m pip download --no-deps --only-binary=:all: --python-version 3.12 \\
        --platform manylinux2014_x86_64 -d .whl hydra-core==1.3.8 omegaconf==2.3.1 \\
        pyyaml tqdm packaging pybind11 hypothesis sortedcontainers
    python -m pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl  # in every call
    export PYTHONPATH=/tmp/site

Runs write no TensorBoard events and no figures here, so tensorboard and matplotlib can stay away.
gpx itself need not be installed. The data lie in ``$GPX_DATA`` (kin40k; runs whose data are not
found say so in their row).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "experiments" / "gpu" / "hour"
"""Beside the tables of that folder, whose RESULTS.md is not written here."""
LIMITS = {
    "ceilings": 90,
    "correctness": 420,
    "headline": 300,
    "peers": 300,
    "profiles": 120,
    "recipes": 240,
}
"""Stages in their order, with seconds that each may take."""
TOTAL = 25 * 60
"""Seconds that all stages together may take."""
CALLS = (("ceilings", "correctness"), ("headline", "profiles"), ("peers", "recipes"))
"""Stages of each of three commands of at most ten minutes."""
CALL_TOTAL = 9 * 60
"""Seconds of such a command; the rest is for what is installed before it."""

Row = dict[str, Any]

sys.path.insert(0, str(HERE))
from gpu_claims import verdicts  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; 1 where one of them failed or found something wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--only", nargs="*", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--skip", nargs="*", choices=LIMITS, default=[])
    parser.add_argument("--call", type=int, choices=range(1, len(CALLS) + 1), help="a third")
    parser.add_argument("--table", action="store_true", help="no stage: the table of the rows")
    parser.add_argument("--total", type=float, default=None, help="seconds for all stages")
    parser.add_argument("--output", type=Path, default=None, help="folder of rows and table")
    options = parser.parse_args(arguments)
    if options.output is None:
        options.output = Path("outputs/gpu_hour_quick") if options.quick else OUTPUT
    options.output.mkdir(parents=True, exist_ok=True)
    if options.call is not None:
        options.only = [stage for stage in CALLS[options.call - 1] if stage in options.only]
    total = options.total or (TOTAL if options.call is None else CALL_TOTAL)
    until = time.monotonic() + total
    wrong = False
    for stage, limit in LIMITS.items():
        if stage not in options.only or stage in options.skip or options.table:
            continue
        left = min(limit, until - time.monotonic())
        found = run_stage(stage, left, options) if left > 5 else skipped(stage, options)
        wrong |= any(row.get("passed") is False for row in found)
        write_table(options.output)
    if options.table:
        if not (options.output / "rows.jsonl").exists():
            parser.error(f"no rows.jsonl in {options.output}: nothing has run there")
        write_table(options.output)
    print(f"rows and table: {options.output}")
    return int(wrong)


def write_table(folder: Path) -> None:
    """RESULTS.md from ``rows.jsonl`` of the folder."""
    rows = [json.loads(line) for line in lines(folder / "rows.jsonl")]
    (folder / "RESULTS.md").write_text(results(rows))


def lines(path: Path) -> list[str]:
    """Complete lines of a file that may have been cut off."""
    return [line for line in path.read_text().splitlines() if line.endswith("}")]


def not_run(stage: str, why: str) -> Row:
    """The row of a stage that did not come to its end."""
    return {"stage": stage, "name": f"{stage}: to its end", "passed": False, "note": why}


def skipped(stage: str, options: argparse.Namespace) -> list[Row]:
    """The row of a stage for which no time is left, kept like any other."""
    row = not_run(stage, "no time left") | {"at": 0.0, "device": options.device}
    row |= {"date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    with (options.output / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print("  ", line_of(row), flush=True)
    return [row]


def run_stage(stage: str, limit: float, options: argparse.Namespace) -> list[Row]:
    """One stage in its own process, killed after ``limit`` seconds; rows are kept as they come."""
    command = [sys.executable, str(HERE / "gpu_stages.py"), stage, "--device", options.device]
    command += ["--seconds", f"{limit:.0f}"] + ["--quick"] * options.quick
    print(f"== {stage} (at most {limit:.0f} s)", flush=True)
    rows: list[Row] = []
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path_of_gpx())},
        start_new_session=True,  # what the stage has started ends with it
    )
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    listener.start()
    killer = threading.Timer(limit, end_of, [process])
    killer.start()
    with process, (options.output / "rows.jsonl").open("a") as file:

        def keep(row: Row) -> None:
            seconds = round(time.monotonic() - started, 1)
            row |= {"stage": stage, "at": seconds, "device": options.device}
            row |= {"date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print("  ", line_of(row), flush=True)

        try:
            for line in process.stdout:
                row = row_of(line)
                if row is not None:
                    keep(row)
            status = process.wait()
        finally:
            killer.cancel()
            end_of(process)
        listener.join(timeout=5)
        if status:
            late = time.monotonic() - started >= limit
            last = [e.strip() for e in errors if e.strip()][-1:] or [f"status {status}"]
            keep(not_run(stage, f"over its {limit:.0f} s" if late else last[0][:300]))
        else:
            keep({"name": f"{stage}: to its end", "passed": True})
    return rows


def row_of(line: str) -> Row | None:
    """A finding; None of other lines, and of one that was cut off as its stage was killed."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and "name" in found else None


def path_of_gpx() -> list[str]:
    """Where a stage finds gpx, installed or not, and what the caller's own path adds."""
    own = os.environ.get("PYTHONPATH")
    return [str(HERE.parent), *([own] if own else [])]


def end_of(process: subprocess.Popen[str]) -> None:
    """End a stage and all that it has started, where it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def shown(value: object) -> str:
    """A figure as tables show it."""
    if isinstance(value, bool) or value is None:
        return {True: "pass", False: "FAIL", None: ""}[value]
    if isinstance(value, int | float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)


def line_of(row: Row) -> str:
    """A row for the console."""
    parts = [row["name"], shown(row.get("passed")), shown(row.get("value")), row.get("unit", "")]
    if row.get("peer") is not None:
        parts.append(f"({row.get('peer_name', 'peer')}: {shown(row['peer'])})")
    return " ".join(p for p in [*parts, str(row.get("note", ""))[:160]] if p)


def results(rows: list[Row]) -> str:
    """RESULTS.md: a table per stage, the latest row of every name."""
    latest = {(row["stage"], row["name"], row["device"]): row for row in rows}
    text = [
        "# On a GPU",
        "",
        "Written by `scripts/gpu_hour.py` from `rows.jsonl`; the latest row of every name. A peer "
        "is another library, or another way, on the same device in the same process, unless its "
        "name says otherwise. The ratio says how many times better gpx is.",
    ]
    for stage in LIMITS:
        own = [row for row in latest.values() if row["stage"] == stage]
        if not own:
            continue
        text += ["", f"## {stage.capitalize()}", ""]
        text += ["| what | gpx | unit | peer | peer's | ratio | | date, commit |", "|---" * 8 + "|"]
        for row in own:
            cells = [
                row["name"],
                shown(row.get("value", row.get("passed"))),
                row.get("unit", ""),
                row.get("peer_name", ""),
                shown(row.get("peer")),
                ratio(row),
                str(row.get("note", "")),
                f"{row['date'][:10]} {str(row.get('commit', ''))[:8]} {row['device']}",
            ]
            clean = (c.replace("|", "/").replace("\n", " ") for c in cells)
            text.append("| " + " | ".join(clean) + " |")
    on_gpu = {row["name"]: row for row in latest.values() if row["device"].startswith("cuda")}
    if on_gpu:
        text += ["", "## Asked of one GPU", "", *verdicts(on_gpu)]
    return "\n".join(text) + "\n"


def ratio(row: Row) -> str:
    """How many times better than the peer; empty where there is none."""
    value, peer = row.get("value"), row.get("peer")
    if not isinstance(value, int | float) or not isinstance(peer, int | float) or not value:
        return ""
    found = value / peer if row.get("better") == "higher" else peer / value
    return f"{found:.2g}" if math.isfinite(found) else ""


if __name__ == "__main__":
    sys.exit(main())
