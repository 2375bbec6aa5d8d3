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
COLUMNS = ("test.rmse", "test.mnlp", "test.coverage_95", "train.steps", "train.seconds")


def row_of(folder: Path, name: str) -> dict[str, Any]:
    metrics, _, environment = Finished.of(folder)
    of_machine = {key: environment[key] for key in ("num_threads", "versions", "git_commit")}
    return {
        "name": name,
        "settings": COMMANDS[name],
        "metrics": metrics,
        "device": environment["device_name"],
        **of_machine,
        "date": date.today().isoformat(),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="folders", nargs="*", type=Path, default=None)
    parser.add_argument("--only", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    for folder in arguments.folders or []:
        name = Finished.of(folder).metrics["model.name"].lower()
        rows[name] = row_of(folder, name)
    for name in arguments.only if arguments.folders is None else []:
        if name not in rows:
            folder = ROOT / "outputs" / f"main_road-{name}"
            train_in(folder, COMMANDS[name])
            rows[name] = row_of(folder, name)
    rows = {name: rows[name] for name in COMMANDS if name in rows}
    if not rows:
        sys.exit("error: no rows yet")
    ROWS.write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "RESULTS.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
