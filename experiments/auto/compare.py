"""Methods beside one another on sets of 300 to 50,000 rows, and what approx=auto would have chosen.

    python experiments/auto/compare.py --sets concrete airfoil --methods exact vecchia
    python experiments/auto/compare.py --table      # the table of the cells measured so far

A cell is one call of ``gpx.fit`` in a process of its own, without baselines, figures and TensorBoard,
on one thread; its processor seconds are those of the whole call. Cells are kept in
compare_cells.jsonl, so that a stopped script goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

HERE = Path(__file__).resolve().parent
CELLS = HERE / "compare_cells.jsonl"
MOST_TEST = 5000
"""Test rows at most."""
LONGEST = 900
"""Seconds of wall time after which a cell is given up."""
QUIET = (
    *("trainer.baselines=false", "trainer.figures=false", "trainer.tensorboard=false"),
    *("trainer.eval_every=0", "trainer.num_threads=1"),
)

SETS: dict[str, int | None] = {
    **dict.fromkeys(("yacht", "autompg", "diabetes", "housing", "forest", "stock", "pendulum")),
    **dict.fromkeys(("energy", "concrete", "solar", "airfoil", "wine", "gas", "skillcraft", "sml")),
    **{"elevators": 3581, "parkinsons": None, "kin40k": 8985, "protein": 9008, "pol": None},
}
"""Sets, and how many training rows are taken of the larger ones (None: all)."""

METHODS = {
    name: (f"approx={name}",)
    for name in ("exact", "vecchia", "committee", "sgpr", "svgp", "qsgp", "boosting")
}


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training inputs and targets, test inputs and targets: the published split 0.

    diabetes, which has none: the fold that ``gpx.fit`` holds out of its rows.
    """
    from gpx.data import UCI
    from gpx.data.source import DataSource
    from gpx.data.table import Table

    source: DataSource
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        found = load_diabetes()
        names = tuple(found.feature_names)
        made = Table(name, found.data, found.target, input_names=names, target_name="progression")

        class Diabetes(DataSource):
            def table(self) -> Table:
                return made

        source = Diabetes()
    else:
        source = UCI(name)
    table = source.table()
    train, test = source.split_rows(table)
    draws = np.random.default_rng(0)
    if SETS[name] is not None:
        train = np.sort(draws.permutation(train)[: SETS[name]])
    if len(test) > MOST_TEST:
        test = np.sort(draws.permutation(test)[:MOST_TEST])
    return table.x[train], table.y[train], table.x[test], table.y[test]


def measure(name: str, method: str) -> dict[str, Any]:
    """One cell, in this process."""
    import torch

    torch.set_num_threads(1)
    train_x, train_y, test_x, test_y = rows_of(name)
    row: dict[str, Any] = {"set": name, "n": len(train_y), "d": train_x.shape[1], "method": method}
    if method == "boosting":
        return row | boosted(train_x, train_y, test_x, test_y)
    import gpx

    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        fitted = gpx.fit(
            *(train_x, train_y, *METHODS[method], *QUIET),
            test=(test_x, test_y),
            folder=Path(folder) / "run",
        )
        seconds = time.process_time() - started
        size = (Path(folder) / "run" / "checkpoint.pt").stat().st_size
    metrics = fitted.metrics
    return row | {
        "rmse": metrics["test.rmse"],
        "mnlp": metrics["test.mnlp"],
        "coverage": metrics["test.coverage_95"],
        "seconds": seconds,
        "steps": metrics["train.steps"],
        "checkpoint_mb": size / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cell", nargs=2, help="set and method: one cell, printed as JSON")
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure(*arguments.cell)))
        return
    from record import COMMIT

    done = {(c["set"], c["method"]) for c in cells()}
    for name in arguments.sets:
        for method in arguments.methods:
            if (name, method) in done:
                continue
            command = [sys.executable, str(HERE / "compare.py"), "--cell", name, method]
            try:
                found = subprocess.run(
                    command, capture_output=True, text=True, timeout=LONGEST, check=False
                )
            except subprocess.TimeoutExpired:
                print(f"{name} {method}: not done in {LONGEST} s", flush=True)
                continue
            if found.returncode:
                print(f"{name} {method}: {found.stderr.strip().splitlines()[-1:]}", flush=True)
                continue
            cell = json.loads(found.stdout.strip().splitlines()[-1]) | {"commit": COMMIT}
            with CELLS.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            print(
                {k: round(v, 3) if isinstance(v, float) else v for k, v in cell.items()}, flush=True
            )


def cells() -> list[dict[str, Any]]:
    """Cells measured so far."""
    if not CELLS.exists():
        return []
    return [json.loads(line) for line in CELLS.read_text().splitlines() if line]


if __name__ == "__main__":
    main()
