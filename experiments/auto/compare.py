"""Methods beside one another on sets of 300 to 50,000 rows, and what approx=auto would have chosen.

    python experiments/auto/compare.py --sets concrete airfoil --methods exact vecchia
    python experiments/auto/compare.py --table      # the table of the cells measured so far

A cell is one call of ``gpx.fit`` in a process of its own, without baselines, figures and
TensorBoard, on one thread; its processor seconds are those of the whole call. Cells are kept in
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
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from record import COMMIT, tally

from gpx.data import UCI, DataSource, Table

Array = NDArray[np.float64]
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
    **{"elevators": 3581, "parkinsons": None, "kin40k": 8985, "protein": 9008},
}
"""Sets, and how many training rows are taken of the larger ones (None: all)."""

METHODS: dict[str, tuple[str, ...]] = {
    "default": (),  # approx=auto, with kernel=auto
    **{
        name: (f"approx={name}",)
        for name in ("exact", "vecchia", "committee", "sgpr", "svgp", "qsgp", "boosting")
    },
}


def rows_of(name: str) -> tuple[Array, Array, Array, Array]:
    """Training inputs and targets, test inputs and targets: the published split 0.

    diabetes, which has none: the fold that ``gpx.fit`` holds out of its rows.
    """
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
        return row | boosting(train_x, train_y, test_x, test_y)
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


def boosting(train_x: Array, train_y: Array, test_x: Array, test_y: Array) -> dict[str, Any]:
    """The cell of the baseline, on the same rows."""
    from gpx.data import load
    from gpx.metrics import evaluate
    from gpx.metrics.boosting import boosted

    mask = np.repeat([False, True], [len(train_y), len(test_y)])[:, None]
    x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
    names = tuple(f"x{i}" for i in range(x.shape[1]))

    class Rows(DataSource):
        def table(self) -> Table:
            return Table("rows", x, y, names, "y", test_masks=mask)

    data = load(Rows(), task="regression")
    started = time.process_time()
    law, _ = boosted(data)
    seconds = time.process_time() - started
    scores = evaluate(data.task, law, data.test_y, data.scaler)
    return {
        "rmse": scores["rmse"],
        "mnlp": scores["mnlp"],
        "coverage": scores["coverage_95"],
        "seconds": seconds,
        "steps": None,
        "checkpoint_mb": None,
    }


def table(found: list[dict[str, Any]]) -> None:
    """compare.json and RESULTS.md from the cells."""
    from record import write

    from gpx.training.method_choice import Facts, choose

    by = {(cell["set"], cell["method"]): cell for cell in found}
    rows: list[dict[str, Any]] = []
    near_best, near_first, quick = [], [], []
    for name in SETS:
        cells_of = {m: by[name, m] for m in METHODS if (name, m) in by}
        if not cells_of:
            continue
        one = next(iter(cells_of.values()))
        chosen = choose(Facts(one["n"], one["d"])).name
        row: dict[str, Any] = {"set": name, "n": one["n"], "d": one["d"], "auto": chosen}
        for method in METHODS:
            cell = cells_of.get(method)
            row[method] = cell and shown(cell)
        models = {m: c for m, c in cells_of.items() if m != "boosting"}
        row["commit"] = tally(list(cells_of.values()))
        rows.append(row)
        if "default" not in models or len(models) < 2:
            continue
        own = models["default"]
        best = {key: min(c[key] for c in models.values()) for key in ("rmse", "mnlp")}
        near_best.append(own["rmse"] <= 1.05 * best["rmse"] and own["mnlp"] <= best["mnlp"] + 0.05)
        if "boosting" in cells_of:
            first = min(c["rmse"] for c in cells_of.values())
            near_first.append(own["rmse"] <= 1.03 * first)
        if own["n"] <= 10_000:
            quick.append(own["seconds"] <= 60.0)
    sets = len(near_best)
    write(
        HERE,
        "compare",
        "Methods on sets of 300 to 50,000 rows, and the choice of approx=auto",
        [
            "RMSE / MNLP / processor seconds on split 0 (diabetes: a tenth of the rows),",
            "targets standardised, one thread; of larger sets as many training rows as n says.",
            "default: no option at all (the method of column auto, kernel=auto); methods that are",
            "named have kernel=rbf. Seconds are those of the whole call but for the imports.",
            "boosting: histogram gradient boosting, at most 300 trees, their number chosen on",
            "held-out rows. A dash: not run.",
        ],
        rows,
        {
            f"the default is within 5 % of the best RMSE and 0.05 of the best MNLP of all methods "
            f"on nine sets of ten ({sum(near_best)} of {sets})": sets > 0
            and sum(near_best) >= 0.9 * sets,
            f"the default is first or within 3 % of the first in RMSE, boosting included, on four "
            f"sets of five ({sum(near_first)} of {len(near_first)})": (
                sum(near_first) >= 0.8 * len(near_first) if near_first else None
            ),
            f"the default takes at most 60 processor seconds where n <= 10,000 ({sum(quick)} of "
            f"{len(quick)})": all(quick) if quick else None,
            "kin40k with 36,000 rows, protein with 41,157 and pol with 13,500": None,
            "several budgets": None,
        },
    )


def shown(cell: dict[str, Any]) -> str:
    return f"{cell['rmse']:.3f} / {cell['mnlp']:.3f} / {cell['seconds']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--table", action="store_true", help="write the table of all cells so far")
    parser.add_argument("--cell", nargs=2, help="set and method: one cell, printed as JSON")
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure(*arguments.cell)))
        return
    if arguments.table:
        table(cells())
        return
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
