"""GRIEF on the UCI regression sets, beside the published table.

    python experiments/grief/uci.py --quick                      # three small sets, two folds
    python experiments/grief/uci.py --data servo yacht --splits 0 1 2
    python experiments/grief/uci.py --kernel whole_set --data fertility  # not published, see below
    python experiments/grief/uci.py --table                      # only write the table again

Protocol (Evans thesis, section 4.4.3, table 4.1): published 10-fold splits, squared exponential
with one lengthscale per input, hyperparameters start at an exact GP on min(n, 1000) rows (the best
of up to four starts), 10 nodes an input, p = min(1000, 10^floor(log10 n)) with n all rows, type-II,
RMSE in the target's own unit. --kernel whole_set starts training at a kernel of random rows of the
whole set, test rows included (``../whole_set.py``), which the published errors of table 5.1 agree
with; its errors are optimistic. Folds that have a row are not repeated. Rows go to uci.json, the
table to RESULTS.md.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from hydra import compose, initialize_config_dir
from record import COMMIT, Checks, argument_parser, tally, write
from row_files import add_line, read_lines
from whole_set import scaler_of, whole_set_kernel

from gpx.errors import GPXError
from gpx.runs import RunFolder, run

HERE = Path(__file__).resolve().parent

ROOT = HERE.parents[1]
FOLDS = HERE / "uci_folds.jsonl"
PUBLISHED = {
    # file: rows, inputs, RMSE, its standard deviation, exact GP or Fastfood of "A la Carte"
    "challenger": (23, 4, 0.554, 0.277, 0.63),
    "fertility": (100, 9, 0.172, 0.055, 0.21),
    "concreteslump": (103, 7, 3.972, 1.891, 4.72),
    "autos": (159, 25, 0.145, 0.057, 0.18),
    "servo": (167, 4, 0.280, 0.085, 0.28),
    "breastcancer": (194, 33, 27.843, 3.910, 35.0),
    "machine": (209, 7, 0.408, 0.046, 0.43),
    "yacht": (308, 6, 0.170, 0.083, 0.16),
    "autompg": (392, 7, 2.607, 0.356, 2.63),
    "housing": (506, 13, 3.212, 0.864, 2.91),
    "forest": (517, 12, 1.386, 0.140, 1.39),
    "stock": (536, 11, 0.005, 0.0005, 0.005),
    "energy": (768, 8, 0.490, 0.057, 0.46),
    "concrete": (1030, 8, 5.232, 0.723, 4.95),
    "solar": (1066, 10, 0.786, 0.198, 0.83),
    "wine": (1599, 11, 0.483, 0.052, 0.47),
    "skillcraft": (3338, 19, 0.248, 0.016, 0.25),
    "pumadyn32nm": (8192, 32, 0.20, 0.005, 0.20),
    "elevators": (16599, 18, 0.091, 0.002, 0.090),
    "kin40k": (40000, 8, 0.206, 0.004, 0.28),
    "keggundirected": (63608, 27, 0.118, 0.003, 0.12),
}
"""Standard deviations printed as 0.00 or 0.000 stand for half a unit of the last digit."""

BEYOND = {"gas": (2565, 128)}
"""Sets without a published row."""


KERNELS = ("training", "whole_set")
"""Rows to which the kernel at which training starts is fitted."""


def fold(
    name: str, split: int, evaluations: int, start: int, grid: str, kernel: str = "training"
) -> dict[str, Any]:
    """Train and test one fold."""
    rows = (PUBLISHED.get(name) or BEYOND[name])[0]
    p = min(1000, 10 ** math.floor(math.log10(rows)))
    overrides = [
        f"data={name}",
        f"data.split={split}",
        "approx=grief",
        f"approx.num_eigenfunctions={p}",
        f"trainer.max_steps={evaluations}",
        f"init.max_evaluations={start}",
        f"approx.grid.kind={grid}",
        "trainer.eval_every=0",
        "trainer.figures=false",
        "trainer.tensorboard=false",
        "trainer.baselines=true",
    ]
    if kernel == "whole_set":
        overrides.remove(f"init.max_evaluations={start}")
        overrides += whole_set_kernel(name).options(scaler_of(name, split), squared=False)
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("train", overrides=overrides)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        metrics = run(config, RunFolder(Path(folder) / "run"))
    scale = metrics["test.rmse_original"] / metrics["test.rmse"]
    return {
        "data": name,
        "split": split,
        "p": metrics["train.num_eigenfunctions"],
        "log10_inducing": metrics["train.log10_inducing"],
        "rmse": metrics["test.rmse_original"],
        "mnlp": metrics["test.mnlp"],
        "trivial": metrics["baseline.mean.rmse"] * scale,
        "evaluations": metrics["train.steps"],
        "seconds": metrics["train.seconds"],
        "total_seconds": time.perf_counter() - started,
        "peak_mib": metrics["memory.peak_mib"],
        "max_evaluations": evaluations,
        "start_evaluations": start,
        "grid": grid,
        "kernel": kernel,
        "starts": config.init.get("num_starts"),
        "nodes": config.approx.grid.points_per_dim,
        "trial_evaluations": config.approx.trial_evaluations,
        "search_sweeps": config.approx.search_sweeps,
        "num_threads": torch.get_num_threads(),
        "commit": COMMIT,
    }


def key_of(row: dict[str, Any]) -> tuple[str, int, str, str]:
    """Data, split, kind of grid and rows of the kernel, which identify a fold."""
    return row["data"], row["split"], *kind_of(row)


def kind_of(row: dict[str, Any]) -> tuple[str, str]:
    """Kind of grid, and rows to which the kernel at the start was fitted."""
    return row.get("grid", "equispaced"), row.get("kernel", "training")


def read() -> list[dict[str, Any]]:
    """Folds that are done."""
    return read_lines(FOLDS)


def table() -> None:
    """Means over folds beside the published ones."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in read():
        groups[(row["data"], *kind_of(row))].append(row)
    rows, within, published, worse, whole, useless = [], 0, 0, [], 0, []
    outside: list[str] = []
    order = [*PUBLISHED, *BEYOND]
    for name, grid, kernel in sorted(groups, key=lambda key: (order.index(key[0]), *key[1:])):
        folds = groups[name, grid, kernel]
        counted = (grid, kernel) == ("equispaced", "training")  # the published protocol
        found = [f["rmse"] for f in folds]
        mean, trivial = statistics.fmean(found), statistics.fmean(f["trivial"] for f in folds)
        rmse, spread = (None, None)
        passed = None
        if name in PUBLISHED:
            _, _, rmse, spread, _ = PUBLISHED[name]
            passed = mean <= rmse + spread
            within += passed and counted
            whole += passed and counted and len(folds) == 10
            published += counted
            if counted and not passed:
                outside += far_folds(name, folds, rmse + spread)
        if counted and mean > 1.15 * trivial:
            worse.append(name)
        if counted and mean > trivial:
            judged = " (within)" * bool(passed)
            useless.append(f"{name}{judged} {mean:.4g} against {trivial:.4g}")
        rows.append(
            {
                "data": name,
                "n": (PUBLISHED.get(name) or BEYOND[name])[0],
                "d": (PUBLISHED.get(name) or BEYOND[name])[1],
                "nodes": grid,
                "kernel of": {"training": "training rows", "whole_set": "all rows"}[kernel],
                "log10 m": statistics.median(f["log10_inducing"] for f in folds),
                "p": folds[0]["p"],
                "folds": len(folds),
                "RMSE": mean,
                "std": statistics.stdev(found) if len(found) > 1 else None,
                "published": rmse,
                "published std": spread,
                "within": {True: "yes", False: "no", None: "-"}[passed],
                "exact GP / Fastfood": PUBLISHED[name][4] if name in PUBLISHED else None,
                "trivial": trivial,
                "sweeps": " or ".join(
                    str(v) for v in sorted({f.get("search_sweeps", 0) for f in folds})
                ),
                "evaluations": statistics.median(f["evaluations"] for f in folds),
                "at most": limits(folds),
                "seconds a fold": statistics.median(f["seconds"] for f in folds),
                "peak MiB": max(f["peak_mib"] for f in folds),
                "commit": tally(folds),
            }
        )
    partial = [f"{row['data']} ({row['folds']})" for row in rows if row["folds"] < 10]
    notes = [
        "Published: Evans thesis, table 4.1 (GP-GRIEF-II, and A la Carte: exact GP or Fastfood).",
        "Column 'within': mean RMSE at most the published one plus one published standard "
        "deviation; where",
        "that deviation is large it admits errors above that of predicting the mean (trivial). On",
        "challenger, fertility, forest and solar the published exact GP is no better than the",
        "mean either: the inputs hardly predict the target. Ten equispaced nodes do not",
        "resolve the heavy tails of gas.",
        "Targets of elevators, forest and keggundirected are logarithms: so are their errors.",
        "Inputs with fewer than 10 distinct values have fewer nodes, hence log10 m below d.",
        "Not as published: hyperparameters start at the best of up to four exact Gaussian "
        "processes on min(n, 1000) training rows (published: at one), and lengthscales that the "
        "grid cannot resolve are raised, or searched for, before training.",
        "Column 'sweeps': maximum for the search of lengthscales before training "
        "(approx.search_sweeps). Rows with 5 use the present defaults; other rows were run with "
        "earlier defaults, or both.",
        "Column 'at most': limits of evaluations of the folds, and how many folds ended at theirs.",
        "Column 'kernel of': rows to which the exact GP at the start was fitted. With all rows the "
        "test targets influence the start; such rows do not count.",
        "Wall-clock seconds on a shared machine.",
        "Quantile nodes are not published; they suit inputs with heavy tails.",
        f"Fewer than ten folds: {', '.join(partial) or 'none'}.",
        *outside,
    ]
    checks: Checks = {
        f"within one published standard deviation on {within} of {published} sets run, {whole} of "
        "them on all ten folds (required: 15 of 21)": within >= 15,
        "on every set the RMSE is at most 15 % above that of the mean of the training targets "
        f"(worse: {', '.join(worse) or 'none'})": not worse,
        "on every set the RMSE is at most that of the mean of the training targets (worse on: "
        f"{'; '.join(useless) or 'none'})": not useless,
        **yacht(groups["yacht", "equispaced", "training"]),
        f"peak memory of every row below 1 GiB, up to 10^{max(r['log10 m'] for r in rows):.0f} "
        "inducing points": max(r["peak MiB"] for r in rows) < 1024,
    }
    write(HERE, "uci", "UCI regression", notes, rows, checks)


def far_folds(name: str, folds: list[dict[str, Any]], most: float) -> list[str]:
    """Which folds have a larger error than ``most``, how they ended, and the mean of the others."""
    far = [fold for fold in folds if fold["rmse"] > most]
    others = [fold["rmse"] for fold in folds if fold["rmse"] <= most]
    if not far or not others:
        return []
    said = ", ".join(
        f"{fold['split']} ({fold['rmse']:.4g} after {fold['evaluations']} evaluations"
        + ", its limit" * (fold["evaluations"] >= fold["max_evaluations"])
        + ")"
        for fold in far
    )
    return [
        f"Outside on {name}: folds {said}; the other {len(others)} have a mean of "
        f"{statistics.fmean(others):.4g}."
    ]


def limits(folds: list[dict[str, Any]]) -> str:
    """The limits of evaluations of the folds, and how many folds ended at theirs."""
    found = sorted({f["max_evaluations"] for f in folds})
    ended = sum(f["evaluations"] >= f["max_evaluations"] for f in folds)
    return f"{', '.join(map(str, found))} ({ended})"


def yacht(folds: list[dict[str, Any]]) -> Checks:
    """Check of yacht, where a poor start of the hyperparameters ends as a trivial fit."""
    if len(folds) < 10:
        return {"yacht: every fold below half the trivial RMSE, mean at most 0.25": None}
    below = all(f["rmse"] < 0.5 * f["trivial"] for f in folds)
    mean = statistics.fmean(f["rmse"] for f in folds)
    return {
        f"yacht: RMSE of every fold below half the trivial one, mean ({mean:.3f}) at most "
        "0.25": below and mean <= 0.25
    }


def main() -> None:
    parser = argument_parser(__doc__, quick="servo, yacht, machine; two folds")
    parser.add_argument("--data", nargs="*", choices=[*PUBLISHED, *BEYOND], default=[*PUBLISHED])
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--start", type=int, default=100, help="evaluations of the exact GP")
    parser.add_argument(
        "--grid", choices=("equispaced", "quantile", "kmeans"), default="equispaced"
    )
    parser.add_argument("--kernel", choices=KERNELS, default="training", help="rows of the start")
    parser.add_argument("--again", action="store_true", help="also folds that have a row")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    names, splits = options.data, options.splits
    if options.quick:
        names, splits = ["servo", "machine", "yacht"], [0, 1]
    done = set(map(key_of, read()))
    for name in [] if options.table else names:
        for split in splits:
            if (name, split, options.grid, options.kernel) in done and not options.again:
                continue
            try:
                row = fold(
                    name, split, options.evaluations, options.start, options.grid, options.kernel
                )
            except GPXError as error:
                print(f"{name} split {split}: {error}")
                continue
            add_line(FOLDS, row, key_of)
            print({k: row[k] for k in ("data", "split", "rmse", "trivial", "seconds")}, flush=True)
    table()


if __name__ == "__main__":
    main()
