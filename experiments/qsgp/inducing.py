"""Inducing-point QSGP (Phi = S = K, m = n) on large regression sets: QSGP paper table 3.

    python experiments/qsgp/inducing.py                          # all data sets, split 0
    python experiments/qsgp/inducing.py --quick                  # 4,000 training rows of each
    python experiments/qsgp/inducing.py --data kin40k --paper    # the published optimiser as well
    python experiments/qsgp/inducing.py --from FOLDER            # add a finished run as a row

Runs go to inducing_runs.json (those that have one are not repeated, stopped ones are resumed), the
table to inducing.json and RESULTS.md. Every run is one ``python train.py approx=qsgp_inducing``;
RMSE and MNLP are in the data's own units, as published.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from omegaconf import OmegaConf
from record import write

HERE = Path(__file__).resolve().parent

ROOT = HERE.parents[1]
RUNS = HERE / "inducing_runs.json"
QUICK_ROWS = 4000

PUBLISHED = {
    "kin40k": {"qsgp": (0.154, -0.348), "svgp": (0.171, -0.089), "rows": 36000},
    "protein": {"qsgp": (0.598, 1.157), "svgp": (0.598, 1.159), "rows": 41157},
    "keggdirected": {"qsgp": (0.124, -0.554), "svgp": (0.124, -0.883), "rows": 43944},
    "keggundirected": {"qsgp": (0.123, 0.848), "svgp": (0.118, 64.014), "rows": 57247},
}
"""RMSE (mean of five splits) and MNLP (first split): Evans and Nair 2020, table 3."""


def command(data: str, *, quick: bool, paper: bool) -> list[str]:
    options = ["approx=qsgp_inducing", f"data={data}"]
    if quick:
        share = 0.9 * QUICK_ROWS / PUBLISHED[data]["rows"]
        options += [f"data.train_fraction={share:.6f}", "approx.rank=500"]
    if paper:
        steps = 300 if quick else 10_000
        options += ["optimizer=qsgp_inducing_paper", "approx.variance=augmented"]
        options += ["trainer.batch_size=3000", f"trainer.max_steps={steps}"]
    return options


def row_of(folder: Path, options: list[str]) -> dict[str, Any]:
    metrics = json.loads((folder / "metrics.json").read_text())
    environment = json.loads((folder / "environment.json").read_text())
    config = OmegaConf.load(folder / "config.yaml")
    return {
        "data": metrics["data.name"],
        "split": metrics["data.split"],
        "training_rows": config.facts.num_train,
        "optimizer": str(config.optimizer._target_).rsplit(".", 1)[-1],
        "variance": config.approx.variance,
        "settings": options,
        "metrics": metrics,
        "device": environment["device_name"],
        "num_threads": environment["num_threads"],
        "git_commit": environment["git_commit"],
        "date": date.today().isoformat(),
    }


def record(runs: dict[str, dict[str, Any]]) -> None:
    """The table and its checks."""
    rows, checks = [], {}
    for run in runs.values():
        metrics, known = run["metrics"], PUBLISHED[run["data"]]
        rmse, mnlp = metrics["test.rmse_original"], metrics["test.mnlp_original"]
        rows.append(
            {
                "data": run["data"],
                "training rows": run["training_rows"],
                "optimiser": run["optimizer"],
                "variance": run["variance"],
                "RMSE": rmse,
                "MNLP": mnlp,
                "steps": metrics["train.steps"],
                "seconds": round(metrics["train.seconds"]),
                "MiB": round(metrics["memory.peak_mib"]),
                "published QSGP": "{:.3f} / {:.3f}".format(*known["qsgp"]),
                "published SVGP": "{:.3f} / {:.3f}".format(*known["svgp"]),
                "command": "`" + " ".join(run["settings"]) + "`",
            }
        )
        if run["training_rows"] == known["rows"] and run["optimizer"] == "InducingSteps":
            better = rmse <= known["qsgp"][0] and mnlp <= known["qsgp"][1]
            checks[f"{run['data']}: RMSE and MNLP at most as published"] = better
    notes = [
        "Phi = S = K, m = n, the data's own units; seconds include initialisation. Published (QSGP",
        "paper, table 3): RMSE of five splits, MNLP of the first, on a GPU; measured: split 0",
        "where all training rows are used, else a random split (and no comparison).",
    ]
    title = "Regression with inducing points at the training inputs"
    write(HERE, "inducing", title, notes, rows, checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} training rows")
    parser.add_argument("--paper", action="store_true", help="the published optimiser as well")
    parser.add_argument("--from", dest="folders", nargs="*", type=Path, default=None)
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    for folder in arguments.folders or []:
        row = row_of(folder, [])
        row["settings"] = command(row["data"], quick=False, paper=row["optimizer"] == "FirstOrder")
        config = OmegaConf.load(folder / "config.yaml")
        row["settings"].append(f"init.num_points={config.init.num_points}")
        rows[f"{row['data']}-{row['optimizer']}-{row['training_rows']}"] = row
    jobs = [] if arguments.folders else [(d, False) for d in arguments.data]
    jobs += [(d, True) for d, _ in jobs] if arguments.paper else []
    for data, paper in jobs:
        name = "-".join([data, "paper" if paper else "solved"] + ["quick"] * arguments.quick)
        if name in rows:
            continue
        options = command(data, quick=arguments.quick, paper=paper)
        folder = ROOT / "outputs" / f"qsgp-inducing-{name}"
        target = [f"hydra.run.dir={folder}", *options]
        if (folder / "checkpoint.pt").exists() and not (folder / "metrics.json").exists():
            target = [f"resume={folder}"]
        if not (folder / "metrics.json").exists():
            subprocess.run([sys.executable, str(ROOT / "train.py"), *target], check=True)
        rows[name] = row_of(folder, options)
        RUNS.write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        sys.exit("error: no rows yet")
    RUNS.write_text(json.dumps(rows, indent=1) + "\n")
    record(rows)


if __name__ == "__main__":
    main()
