"""E12 and E13 of the thesis: SWSGP-M-H beside SVGP-M-H, SVGP-H and SVGP-M.

    python experiments/swsgp/orders.py           # about three minutes of one core
    python experiments/swsgp/orders.py --quick   # a few steps, nothing written

Writes orders.json, sizes.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from problems import Fold, arm, folds, teacher
from record import write
from training import mean_of, noise, scores, seen_through, svgp, swsgp, train

HERE = Path(__file__).resolve().parent
SETS = {"POWERPLANT stand-in": teacher, "KIN8NM stand-in": arm}
FEW = (4, 16)
"""H of the orderings."""
STEPS, RATE = 300, 0.01
PUBLISHED = (
    "Published (figures 4.4 and 4.6, without numbers): SWSGP-M-H beats SVGP-M-H and SVGP-H, is",
    "about as good as SVGP-M and gets better with M; few neighbours do no harm when M is large.",
)
SETTING = (
    f"{STEPS:,} Adam steps at {RATE} on a cosine (published: 100,000 at 0.001), batches of 64,",
    "Matern 5/2 with a lengthscale per input, full S, learned Z, every model started as it starts",
    "by default. 4,000 training and 2,000 test rows of the stand-ins of the specification.",
)


def measured(fold: Fold, steps: int) -> dict[str, dict[str, float]]:
    """Scores of all models of one fold."""
    found = {}
    for m in (64, *FEW):
        made = svgp(fold, m, noise())
        train(made, fold, steps, RATE)
        posterior = made.condition(fold.x, fold.y)
        found[f"SVGP-{m}"] = scores(posterior, made.likelihood, fold)
        if m == 64:
            for h in FEW:
                seen = seen_through(posterior, h)
                found[f"SVGP-64-{h}"] = scores(seen, made.likelihood, fold)
    for h in FEW:
        local = swsgp(fold, 64, h, noise())
        train(local, fold, steps, RATE)
        found[f"SWSGP-64-{h}"] = scores(local.condition(fold.x, fold.y), local.likelihood, fold)
    return found


def orders(quick: bool) -> None:
    """E12: three folds of two sets."""
    tables: dict[str, list[dict[str, Any]]] = {}
    checks: dict[str, bool | None] = {}
    for name, source in SETS.items():
        runs = [
            measured(fold, 10 if quick else STEPS)
            for fold in folds(source())[: 1 if quick else None]
        ]
        by = {model: mean_of([run[model] for run in runs]) for model in runs[0]}
        tables[name] = [{"model": model, **found} for model, found in by.items()]
        print(tables[name], flush=True)
        for h in FEW:
            own = by[f"SWSGP-64-{h}"]["rmse"]
            checks[f"{name}: SWSGP-64-{h} beats SVGP-64-{h}"] = own < by[f"SVGP-64-{h}"]["rmse"]
            checks[f"{name}: SWSGP-64-{h} beats SVGP-{h}"] = own < by[f"SVGP-{h}"]["rmse"]
            checks[f"{name}: SWSGP-64-{h} is within 5 % of SVGP-64's RMSE"] = (
                own <= 1.05 * by["SVGP-64"]["rmse"]
            )
    if not quick:
        notes = [*SETTING, "Means and standard deviations of three folds.", *PUBLISHED]
        write(HERE, "orders", "More neighbours: orderings (E12)", notes, tables, checks)


def sizes(quick: bool) -> None:
    """E13: more inducing points, few neighbours."""
    fold, steps = folds(arm())[0], 10 if quick else STEPS
    rows = []
    for m in (8, 16, 32, 64):
        made = svgp(fold, m, noise())
        train(made, fold, steps, RATE)
        rows.append(
            {
                "model": f"SVGP-{m}",
                **scores(made.condition(fold.x, fold.y), made.likelihood, fold),
            }
        )
        for h in (4, 8):
            local = swsgp(fold, m, h, noise())
            train(local, fold, steps, RATE)
            result = scores(local.condition(fold.x, fold.y), local.likelihood, fold)
            rows.append({"model": f"SWSGP-{m}-{h}", **result})
        print(rows[-3:], flush=True)
    if quick:
        return
    by = {row["model"]: float(row["rmse"]) for row in rows}
    checks: dict[str, bool | None] = {}
    for h in (4, 8):
        line = [by[f"SWSGP-{m}-{h}"] for m in (8, 16, 32, 64)]
        checks[f"H = {h}: RMSE falls with M"] = line == sorted(line, reverse=True)
        checks[f"H = {h}, M = 64: within 5 % of SVGP-64's RMSE"] = line[-1] <= 1.05 * by["SVGP-64"]
    notes = [*SETTING, "KIN8NM stand-in, fold 0.", *PUBLISHED]
    write(HERE, "sizes", "More inducing points (E13)", notes, rows, checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    orders(options.quick)
    sizes(options.quick)


if __name__ == "__main__":
    main()
