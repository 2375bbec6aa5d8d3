"""Measure gpx on a GPU within half an hour.

    python scripts/gpu_hour.py                                   # all stages, under 25 minutes
    python scripts/gpu_hour.py --call 1 --output "$OUT"          # a third of the stages: 1, 2 or 3
    python scripts/gpu_hour.py --table --output FOLDER           # only rewrite RESULTS.md
    python scripts/gpu_hour.py --only ceilings correctness       # some stages
    python scripts/gpu_hour.py --skip recipes --output FOLDER
    python scripts/gpu_hour.py --device cpu --quick              # a test with tiny sizes

The stages are ceilings (rates of the device itself), correctness, headline (runs of the README),
peers (comparisons with other libraries), profiles, sizes (steps that a CPU takes minutes for) and
recipes (runs of published length), the most important ones first. Each runs
``scripts/gpu_stages.py`` in its own process with its own time limit. Its results are JSON lines,
appended to ``rows.jsonl`` as they appear, so that they are kept if a stage fails or is stopped; a
further row then says so. After every stage ``RESULTS.md`` is written from the latest row of each
name, beside the figure of a peer where there is one.

If a machine allows commands of at most ten minutes, ``--call`` divides the stages into three calls
of at most nine minutes each. If every call returns a folder of its own, concatenate their
``rows.jsonl`` and use ``--table``.

The script is written for a machine with Python 3.12 on x86-64, torch 2.11 (CUDA 13.0), Triton 3.6,
gpytorch and linear_operator with their requirements, pytest, and no network. Other requirements of
runs (Hydra and its own, tqdm), of tests (hypothesis) and KeOps are brought as wheels, 3 MiB in
all. Three packages exist as source only, which ``pip download`` with ``--only-binary=:all:``
refuses. ``pip wheel`` builds them on a machine with a network, as pure Python for any version
(pykeops compiles at its first use, with nvcc of the GPU's machine):

    python -m pip wheel --no-deps -w .whl \\
        antlr4-python3-runtime==4.9.3 pykeops==2.3 keopscore==2.3
    python -m pip download --no-deps --only-binary=:all: --python-version 3.12 \\
        --platform manylinux2014_x86_64 -d .whl hydra-core==1.3.8 omegaconf==2.3.1 \\
        pyyaml tqdm packaging pybind11 hypothesis sortedcontainers
    python -m pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl  # in every call
    export PYTHONPATH=/tmp/site

If only the files of the repository are brought, without .git, put the commit into GPX_COMMIT, so
that the rows name it.

Runs write no TensorBoard events and no figures, so tensorboard and matplotlib are not needed, and
gpx need not be installed. Data are read from ``$GPX_DATA`` (kin40k); without them, the row of a run
says so.
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
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "experiments" / "gpu" / "hour"
"""A folder of its own, because experiments/gpu has another RESULTS.md."""
LIMITS = {
    "ceilings": 60,
    "correctness": 450,
    "headline": 270,
    "peers": 300,
    "profiles": 90,
    "sizes": 120,
    "recipes": 240,
}
"""Stages in order, with the time limit of each in seconds."""
TOTAL = 25 * 60
"""Time limit of all stages together, in seconds."""
CALLS = (("ceilings", "correctness"), ("headline", "profiles", "sizes"), ("peers", "recipes"))
"""Stages of each ``--call``, a command of at most ten minutes."""
CALL_TOTAL = 9 * 60
"""Time limit of a ``--call`` in seconds; the rest of the ten minutes is for installing packages."""

Row = dict[str, Any]

sys.path.insert(0, str(HERE))
from gpu_claims import verdicts  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; return 1 if one of them failed or found an error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to test that all stages run"
    )
    parser.add_argument("--only", nargs="*", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--skip", nargs="*", choices=LIMITS, default=[])
    parser.add_argument(
        "--call", type=int, choices=range(1, len(CALLS) + 1), help="a third of the stages"
    )
    parser.add_argument("--table", action="store_true", help="only write the table of the rows")
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
    # KeOps cannot be imported, nor GPyTorch with it, after a process was stopped while it wrote
    with tempfile.TemporaryDirectory() as options.keops:
        for stage, limit in LIMITS.items():
            if stage not in options.only or stage in options.skip or options.table:
                continue
            left = min(limit, until - time.monotonic())
            found = run_stage(stage, left, options) if left > 5 else skipped(stage, options)
            wrong |= any(row.get("passed") is False for row in found)
            write_table(options.output)
    if options.table:
        if not (options.output / "rows.jsonl").exists():
            parser.error(f"{options.output} has no rows.jsonl: no stage has run there")
        write_table(options.output)
    print(f"rows and table: {options.output}")
    return int(wrong)


def write_table(folder: Path) -> None:
    """Write RESULTS.md from ``rows.jsonl`` of the folder; lines that were cut off are left out."""
    found = map(parse_row, (folder / "rows.jsonl").read_text().splitlines())
    rows = [row for row in found if row is not None and {"stage", "device", "date"} <= row.keys()]
    (folder / "RESULTS.md").write_text(results(rows))


@contextlib.contextmanager
def appended(path: Path) -> Iterator[TextIO]:
    """A file to append lines to; a last line that was cut off is ended first."""
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    with path.open("a") as file:
        yield file


def not_run(stage: str, why: str) -> Row:
    """The row of a stage that did not finish."""
    return {"stage": stage, "name": f"{stage}: to its end", "passed": False, "note": why}


def skipped(stage: str, options: argparse.Namespace) -> list[Row]:
    """Write the row of a stage for which no time is left."""
    row = not_run(stage, "no time left") | {"at": 0.0, "device": options.device}
    row |= {"date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    with appended(options.output / "rows.jsonl") as file:
        file.write(json.dumps(row) + "\n")
    print("  ", console_line(row), flush=True)
    return [row]


def run_stage(stage: str, limit: float, options: argparse.Namespace) -> list[Row]:
    """Run a stage in its own process, stop it after ``limit`` seconds, and write its rows."""
    command = [sys.executable, str(HERE / "gpu_stages.py"), stage, "--device", options.device]
    command += ["--until", str(time.time() + limit)] + ["--quick"] * options.quick
    print(f"== {stage} (at most {limit:.0f} s)", flush=True)
    rows: list[Row] = []
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(python_path()), "KEOPS_CACHE_FOLDER": options.keops},
        start_new_session=True,  # so that its child processes can be stopped with it
    )
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    listener.start()
    killer = threading.Timer(limit, kill_group, [process])
    killer.start()
    with process, appended(options.output / "rows.jsonl") as file:

        def keep(row: Row) -> None:
            seconds = round(time.monotonic() - started, 1)
            row |= {"stage": stage, "at": seconds, "device": options.device}
            row |= {"date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print("  ", console_line(row), flush=True)

        try:
            for line in process.stdout:
                row = parse_row(line)
                if row is not None:
                    keep(row)
            status = process.wait()
        finally:
            killer.cancel()
            kill_group(process)
        listener.join(timeout=5)
        if status:
            late = time.monotonic() - started >= limit
            last = ": ".join([f"status {status}", *[e.strip() for e in errors if e.strip()][-1:]])
            keep(not_run(stage, f"over its {limit:.0f} s" if late else last[:300]))
        else:
            keep({"name": f"{stage}: to its end", "passed": True})
    return rows


def parse_row(line: str) -> Row | None:
    """A row from a line of output; None for other lines and for incomplete ones."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and "name" in found else None


def python_path() -> list[str]:
    """Folders of PYTHONPATH for a stage: this repository, and those of the caller."""
    own = os.environ.get("PYTHONPATH")
    return [str(HERE.parent), *([own] if own else [])]


def kill_group(process: subprocess.Popen[str]) -> None:
    """Stop a stage and its child processes, if they still run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def format_value(value: object) -> str:
    """Text of a value in tables."""
    if isinstance(value, bool) or value is None:
        return {True: "pass", False: "FAIL", None: ""}[value]
    if isinstance(value, int | float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)


def console_line(row: Row) -> str:
    """A row as a line of text."""
    parts = [
        row["name"],
        format_value(row.get("passed")),
        format_value(row.get("value")),
        row.get("unit", ""),
    ]
    if row.get("peer") is not None:
        parts.append(f"({row.get('peer_name', 'peer')}: {format_value(row['peer'])})")
    return " ".join(p for p in [*parts, str(row.get("note", ""))[:160]] if p)


def results(rows: list[Row]) -> str:
    """Text of RESULTS.md: a table per stage, with the latest row of every name."""
    latest = {(row["stage"], row["name"], row["device"]): row for row in rows}
    text = [
        "# On a GPU",
        "",
        "Written by `scripts/gpu_hour.py` from `rows.jsonl`, with the latest row of every name. A "
        "peer is another library or method, on the same device and in the same process unless its "
        "name says otherwise. The ratio is how many times better gpx is.",
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
                format_value(row.get("value", row.get("passed"))),
                row.get("unit", ""),
                row.get("peer_name", ""),
                format_value(row.get("peer")),
                ratio(row),
                str(row.get("note", "")),
                f"{row['date'][:10]} {(row.get('commit') or 'unknown')[:8]} {device_of(row)}",
            ]
            clean = (c.replace("|", "/").replace("\n", " ") for c in cells)
            text.append("| " + " | ".join(clean) + " |")
    on_gpu = {row["name"]: row for row in latest.values() if row["device"].startswith("cuda")}
    if on_gpu:
        cards = sorted({device_of(row) for row in on_gpu.values() if row.get("card")})
        text += ["", "## Asked of one GPU", "", *verdicts(on_gpu)]
        text += ["", f"Measured on: {', '.join(cards)}."] * bool(cards)
    return "\n".join(text) + "\n"


def device_of(row: Row) -> str:
    """The device of a row, by the name of its GPU if that is known."""
    named = row.get("card") if row["device"].startswith("cuda") else None
    return named or row["device"]


def ratio(row: Row) -> str:
    """How many times better gpx is than the peer, as text; empty without a peer."""
    value, peer = row.get("value"), row.get("peer")
    if not isinstance(value, int | float) or not isinstance(peer, int | float) or not value:
        return ""
    found = value / peer if row.get("better") == "higher" else peer / value
    return f"{found:.2g}" if math.isfinite(found) else ""


if __name__ == "__main__":
    sys.exit(main())
