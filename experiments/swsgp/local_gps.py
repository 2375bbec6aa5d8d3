"""E16 of the thesis: SWSGP beside local Gaussian processes.

    python experiments/swsgp/local_gps.py           # missing rows: ten minutes of one core
    python experiments/swsgp/local_gps.py --quick   # one fold, a few steps, nothing written

The power plant and kin8nm are looked for in $GPX_DATA and otherwise downloaded (``OriginalTable``
names their archives). Writes local_gps.json and RESULTS.md after every fold.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from orders import RATE, SETS
from problems import Fold, folds
from record import COMMIT, Checks, earlier, tally, write
from training import mean_of, noise, scores, swsgp, train

import gpx

HERE = Path(__file__).resolve().parent
FOLDS = 3
STEPS = 3000
"""Of SWSGP."""
SEEN = (4, 8)
"""H of SWSGP-64-H."""
OWN = ["kernel=matern52", "approx.num_experts=64", "approx.points_per_expert=100"]
LOCAL = {"inductive": "local_experts", "transductive": "transductive"}
"""Name of the thesis -> approx=; 64 experts of 100 rows learn hyperparameters of their own,
transductive ones use those of the nearest expert with the 100 rows nearest to a test point."""
PUBLISHED = {
    "POWERPLANT": {
        "SWSGP-64-4": (4.27, 2.41),
        "SWSGP-64-8": (4.24, 2.40),
        "inductive": (9.93, 38.38),
        "transductive": (6.17, 18.78),
    },
    "KIN8NM": {
        "SWSGP-64-4": (0.11, -1.27),
        "SWSGP-64-8": (0.10, -1.38),
        "inductive": (0.13, -0.40),
        "transductive": (0.09, -0.65),
    },
}
"""RMSE and MNLL, in units of the data (table 4.3)."""
SUMS = ("rmse", "mnll", "processor seconds")
Run = dict[str, Any]


def sparse(fold: Fold, h: int, steps: int) -> Run:
    """Scores of SWSGP-64-h, trained as for E12."""
    start = time.process_time()
    model = swsgp(fold, 64, h, noise())
    train(model, fold, steps, RATE)
    found = scores(model.condition(fold.x, fold.y), model.likelihood, fold)
    return {**in_units(found, fold), "processor seconds": time.process_time() - start}


def in_units(found: dict[str, float], fold: Fold) -> dict[str, float]:
    """RMSE and MNLL in units of the data."""
    return {"rmse": found["rmse"] * fold.unit, "mnll": found["mnll"] + math.log(fold.unit)}


def local(fold: Fold, approx: str, steps: int) -> Run:
    """Scores of local experts, trained as their config does."""
    start = time.process_time()
    options = [f"approx={approx}", *OWN, "trainer.baselines=false"]
    fitted = gpx.fit(
        fold.x,
        fold.y,
        *options,
        f"trainer.max_steps={steps}",
        test=(fold.test_x, fold.test_y),
        quiet=True,
        keep=False,
    )
    found = {"rmse": fitted.metrics["test.rmse"], "mnll": fitted.metrics["test.mnlp"]}
    return {**in_units(found, fold), "processor seconds": time.process_time() - start}


def measured(fold: Fold, quick: bool) -> dict[str, Run]:
    """All models of one fold."""
    found = {f"SWSGP-64-{h}": sparse(fold, h, 10 if quick else STEPS) for h in SEEN}
    for name, approx in LOCAL.items():
        found[name] = local(fold, approx, 3 if quick else 100)
    return found


def floors() -> list[str]:
    """Which of the published losses are below the least possible for their RMSE."""
    # the mean of -log N(y; m_n, v) is least at v = RMSE^2
    least = 0.5 * math.log(2.0 * math.pi * math.e)
    found = [
        f"{name}, {model}: {mnll:.2f} (least {math.log(rmse) + least:.2f})"
        for name, models in PUBLISHED.items()
        for model, (rmse, mnll) in models.items()
        if mnll < math.log(rmse) + least
    ]
    return [
        "With one variance for all test points, no Gaussian law has a loss below log RMSE + 1.42.",
        f"These published losses are below that of the RMSE beside them: {'; '.join(found)}.",
    ]


def beside_published(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Which of the models have another RMSE or loss than published."""
    better = [
        f"{name}, {row['model']}: RMSE {row['rmse']:.3g} ({known[0]}), MNLL {row['mnll']:.2f} "
        f"({known[1]:.2f})"
        for name, table in rows.items()
        for row in table
        if row["model"] in LOCAL
        and row["mnll"] < (known := PUBLISHED[name][row["model"]])[1]
        and row["rmse"] < known[0]
    ]
    if not better:
        return []
    return [
        f"Local GPs are better here than published (in brackets): {'; '.join(better)}. Each expert",
        "is trained to the largest evidence of its 100 rows by L-BFGS. Where a check of the MNLL",
        "fails, that is why, if the RMSE of SWSGP is as published.",
    ]


def report(tables: dict[str, dict[str, list[Run]]]) -> None:
    """local_gps.json and RESULTS.md."""
    rows: dict[str, list[dict[str, Any]]] = {}
    checks: Checks = {}
    for name, models in tables.items():
        rows[name] = [
            {
                "model": model,
                "folds": len(runs),
                "published rmse, mnll": "{}, {:.2f}".format(*PUBLISHED[name][model]),
                **mean_of([{key: run[key] for key in SUMS} for run in runs]),
                "runs": runs,
                "commit": tally(runs),
            }
            for model, runs in models.items()
        ]
        for row in rows[name]:
            row.pop("processor seconds s.d.")
        by = {row["model"]: row for row in rows[name]}
        part = "" if all(row["folds"] == FOLDS for row in rows[name]) else " (not all folds)"
        for h in SEEN:
            own, known = by[f"SWSGP-64-{h}"]["rmse"], PUBLISHED[name][f"SWSGP-64-{h}"][0]
            checks[
                f"{name}: the RMSE of SWSGP-64-{h} is at most the published {known}{part}, to its "
                "digits"
            ] = round(own, 2) <= known
            for other in LOCAL:
                own, theirs = by[f"SWSGP-64-{h}"], by[other]
                checks[f"{name}: the MNLL of SWSGP-64-{h} is below that of {other}{part}"] = (
                    own["mnll"] < theirs["mnll"]
                )
    checks["POWERPLANT: KISS-GP (table 4.2: 11.26, 5.78), whose grid would have four inputs"] = None
    notes = [
        f"SWSGP as for E12, {STEPS:,} steps. Inductive: 64 exact GPs, each on the 100 rows nearest",
        "to a centre, with hyperparameters of its own; the nearest one predicts. Transductive: an",
        "exact GP on the 100 rows nearest to each test point, with the hyperparameters of the "
        "nearest expert.",
        "Units of the data. Means and standard deviations over three folds, of which two thirds of",
        "the rows train each; processor seconds of training and prediction.",
        *floors(),
        *beside_published(rows),
    ]
    write(HERE, "local_gps", "Local Gaussian processes (E16)", notes, rows, checks, hidden=["runs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {} if options.quick else earlier(HERE / "local_gps.json") or {}
    tables = {
        name: {row["model"]: row["runs"] for row in known.get(name, [])} for name in PUBLISHED
    }
    for number in range(1 if options.quick else FOLDS):
        for name, models in tables.items():
            if models and all(len(runs) > number for runs in models.values()):
                continue
            for model, found in measured(folds(SETS[name]())[number], options.quick).items():
                models.setdefault(model, []).append({**found, "commit": COMMIT})
                print(name, number, model, found, flush=True)
            if not options.quick:
                report({name: models for name, models in tables.items() if models})
    if not options.quick:  # checks and notes of the saved rows again
        report({name: models for name, models in tables.items() if models})


if __name__ == "__main__":
    main()
