"""The README's commands for kin40k, with their test metrics and times.

    python experiments/main_road/run.py                 # missing rows, then the table
    python experiments/main_road/run.py --from FOLDER   # add a finished run folder as a row

Rows go to rows.json, the table to RESULTS.md beside this file. Split 0, standardised targets.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpx_runs import ROOT, Finished, train_in
from record import words
from row_files import locked

from gpx.atomic_file import write_atomically

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows.json"

COMMANDS = {
    "vecchia": ["approx=vecchia", "data=kin40k"],
    "committee": ["approx=committee", "data=kin40k"],
    "qsgp": ["approx=qsgp", "data=kin40k"],
    "svgp": ["approx=svgp", "data=kin40k", "kernel=matern32"],
    "sgpr": ["approx=sgpr", "data=kin40k", "kernel=matern32"],
}
PUBLISHED = {
    "vecchia": "none for this split",
    "committee": "none for this split",
    "qsgp": "RMSE 0.174, MNLP 0.135 (QSGP paper table 2: RFF, 10^5 steps on a GPU)",
    "svgp": "RMSE 0.247, MNLP 0.055 (QSGP paper table 2: GPflow, 512 inducing points)",
    "sgpr": "RMSE 0.196 (GPyTorch, 30 Adam steps on the same machine)",
}
NO_MATTER = ("hydra.", "trainer.figures=", "trainer.tensorboard=", "trainer.quiet=")
"""Beginnings of options that change no figure of a row."""
COLUMNS = ("test.rmse", "test.mnlp", "test.coverage_95", "train.steps", "train.seconds")


def command_of(folder: Path) -> str:
    """Name of the command that a run folder comes from; ends the script if it is another."""
    given = Finished.of(folder).environment.get("command", [])[1:]
    options = [o for o in given if o != "train" and not o.startswith(NO_MATTER)]
    for name, own in COMMANDS.items():
        if sorted(own) == sorted(options):
            return name
    sys.exit(
        f"error: {folder} is a run of `{' '.join(options)}`, which is no command of this table"
    )


def row_of(folder: Path, name: str) -> dict[str, Any]:
    metrics, _, environment = Finished.of(folder)
    ended = (folder / "metrics.json").stat().st_mtime
    of_machine = {key: environment[key] for key in ("num_threads", "versions", "git_commit")}
    return {
        "name": name,
        "settings": COMMANDS[name],
        "metrics": metrics,
        "device": environment["device_name"],
        **of_machine,
        "date": date.fromtimestamp(ended).isoformat(),
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# kin40k, split 0: the commands of the README",
        "",
        "Written by `experiments/main_road/run.py` from `rows.json`. Standardised targets; seconds",
        "include initialisation and exclude metrics and figures.",
        "",
        "| command | RMSE | MNLP | 95 % coverage | steps | seconds | MiB | published or known |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        metrics = row["metrics"]
        cells = [f"`{' '.join(row['settings'])}`"]
        cells += [f"{metrics[c]:.3f}" for c in COLUMNS[:3]]
        cells += [str(metrics["train.steps"]), f"{metrics['train.seconds']:.0f}"]
        cells += [f"{metrics['memory.peak_mib']:.0f}", PUBLISHED[name]]
        lines.append("| " + " | ".join(cells) + " |")
    first = next(iter(rows.values()))
    for baseline in ("linear", "5-nn"):
        values = [first["metrics"][f"baseline.{baseline}.{key}"] for key in ("rmse", "mnlp")]
        lines.append(f"| {baseline} | {values[0]:.3f} | {values[1]:.3f} | | | | | |")
    lines.append("")
    for name, row in rows.items():
        lines.append(
            f"- {name}: {row['date']}, {row['device']}, {row['num_threads']} threads, "
            f"torch {row['versions']['torch']}, {words(row['git_commit'])}"
        )
    return "\n".join(lines) + "\n"


def read() -> dict[str, dict[str, Any]]:
    """Rows that are there, by name."""
    found: dict[str, dict[str, Any]] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="folders", nargs="*", type=Path, default=None)
    parser.add_argument("--only", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    arguments = parser.parse_args()
    new = {}
    for folder in arguments.folders or []:
        name = command_of(folder)
        new[name] = row_of(folder, name)
    for name in arguments.only if arguments.folders is None else []:
        if name not in read():
            folder = ROOT / "outputs" / f"main_road-{name}"
            train_in(folder, COMMANDS[name])
            new[name] = row_of(folder, name)
    with locked(HERE):
        rows = read() | new
        rows = {name: rows[name] for name in COMMANDS if name in rows}
        if not rows:
            sys.exit("error: no rows yet")
        write_atomically(ROWS, json.dumps(rows, indent=1) + "\n")
        write_atomically(HERE / "RESULTS.md", table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
