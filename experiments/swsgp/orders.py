"""E12 and E13 of the thesis: SWSGP-M-H beside SVGP-M-H, SVGP-H and SVGP-M.

    python experiments/swsgp/orders.py           # missing rows: a quarter of an hour of one core
    python experiments/swsgp/orders.py --quick   # a few steps, nothing written

The power plant and kin8nm are looked for in $GPX_DATA and otherwise downloaded (``OriginalTable``
names their archives). Writes orders.json, sizes.json and RESULTS.md after every fold and every
number of points.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from problems import Fold, folds, original
from record import COMMIT, earlier, tally, write
from training import least_error, mean_of, noise, scores, seen_through, svgp, swsgp, train

HERE = Path(__file__).resolve().parent
SETS = {
    "POWERPLANT": partial(original, "powerplant"),
    "KIN8NM": partial(original, "kin8nm"),
}
ELSEWHERE = ("NAVAL", "EEG", "CREDIT", "SPAM", "MNIST", "AIRLINE")
"""Published sets that are not run."""
FEW = (4, 16)
"""H of the orderings."""
STEPS, RATE = 3000, 0.01
"""As in E16, whose errors are the published ones after as many."""
SIZES_SET = "KIN8NM"
"""Of E13."""
PUBLISHED = (
    "Published (figures 4.4 and 4.6, without numbers): SWSGP-M-H has smaller errors than",
    "SVGP-M-H and SVGP-H, is",
    "about as good as SVGP-M and better with larger M; few neighbours are enough when M is large.",
)
LEAST_SAID = (
    "'Least rmse of any q': RMSE of the variational mean m that fits the test rows best at the "
    "trained kernel",
    "and Z. Where that too is more than 5 % above SVGP-64's, the cause is that only H points are "
    "used.",
)


def setting(steps: int, data: str) -> tuple[str, ...]:
    """Sentences on training, and on the rows."""
    return (
        f"{steps:,} Adam steps at {RATE} on a cosine (published: 100,000 at 0.001), batches of 64,",
        "Matern 5/2 with a lengthscale per input, full S, learned Z, every model with its default",
        f"start. {data}",
        *LEAST_SAID,
    )


SUMS = ("rmse", "mnll")
LEAST = "least rmse of any q"
Runs = dict[str, list[dict[str, Any]]]
"""Model -> scores of each fold."""


def measured(fold: Fold, steps: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Scores of all models of one fold."""
    for m in (64, *FEW):
        made = svgp(fold, m, noise())
        train(made, fold, steps, RATE)
        posterior = made.condition(fold.x, fold.y)
        yield f"SVGP-{m}", scores(posterior, made.likelihood, fold)
        if m == 64:
            for h in FEW:
                seen = seen_through(posterior, h)
                yield f"SVGP-64-{h}", scores(seen, made.likelihood, fold)
    for h in FEW:
        local = swsgp(fold, 64, h, noise())
        train(local, fold, steps, RATE)
        found = scores(local.condition(fold.x, fold.y), local.likelihood, fold)
        yield f"SWSGP-64-{h}", {**found, LEAST: least_error(local, fold)}


def kept(steps: int) -> dict[str, Runs]:
    """Saved runs with as many steps."""
    tables = earlier(HERE / "orders.json") or {}
    return {
        name: {
            row["model"]: row["runs"] for row in tables.get(name, []) if row.get("steps") == steps
        }
        for name in SETS
    }


def orders(quick: bool) -> None:
    """E12: three folds of two sets."""
    steps = 10 if quick else STEPS
    runs = {name: {} for name in SETS} if quick else kept(steps)
    for number in range(1 if quick else 3):
        for name, source in SETS.items():
            if all(len(found) > number for found in runs[name].values()) and runs[name]:
                continue
            for model, found in measured(folds(source())[number], steps):
                runs[name].setdefault(model, []).append({**found, "commit": COMMIT})
                print(name, number, model, found, flush=True)
            if not quick:
                write_orders(runs)
    if not quick and any(runs.values()):  # checks and notes of the saved rows again
        write_orders(runs)


def write_orders(runs: dict[str, Runs]) -> None:
    """orders.json and RESULTS.md."""
    tables: dict[str, list[dict[str, Any]]] = {}
    checks: dict[str, bool | None] = {}
    for name, models in runs.items():
        tables[name] = []
        for model, found in models.items():
            means = mean_of([{key: run[key] for key in SUMS} for run in found])
            means |= mean_of([{LEAST: run[LEAST]} for run in found]) if LEAST in found[0] else {}
            row = {"model": model, "folds": len(found), LEAST: None, **means, "steps": STEPS}
            row.pop(f"{LEAST} s.d.", None)
            tables[name].append({**row, "runs": found, "commit": tally(found)})
        by = {row["model"]: row["rmse"] for row in tables[name]}
        counts = {row["folds"] for row in tables[name]}
        whole = len(counts) == 1
        # the check names the number of folds where it is not three
        part = f" ({min(counts)} of 3 folds)" if counts and counts != {3} else ""
        for h in FEW:
            own = f"SWSGP-64-{h}"
            for other in (f"SVGP-64-{h}", f"SVGP-{h}"):
                checks[f"{name}: {own} has a lower RMSE than {other}{part}"] = (
                    by[own] < by[other] if whole else None
                )
            checks[f"{name}: {own} is within 5 % of SVGP-64's RMSE{part}"] = (
                by[own] <= 1.05 * by["SVGP-64"] if whole else None
            )
    data = "The published sets; two thirds of the rows train a fold. Targets are standardised."
    notes = [*setting(STEPS, data), "Means and standard deviations over folds.", *PUBLISHED]
    checks[f"E12: {', '.join(ELSEWHERE)}"] = None
    some = {name: table for name, table in tables.items() if table}
    title = "More neighbours: orderings (E12)"
    write(HERE, "orders", title, notes, some, checks, hidden=["steps", "runs"])


def sizes(quick: bool) -> None:
    """E13: more inducing points, few neighbours."""
    fold, steps = folds(SETS[SIZES_SET]())[0], 10 if quick else STEPS
    kind = {"steps": steps, "data": SIZES_SET}
    saved = [] if quick else earlier(HERE / "sizes.json")
    rows = [r for r in saved if all(r.get(key) == value for key, value in kind.items())]
    known = {row["model"] for row in rows}
    for m in (64, 8, 16, 32):
        if f"SWSGP-{m}-8" in known:
            continue
        made = svgp(fold, m, noise())
        train(made, fold, steps, RATE)
        found = scores(made.condition(fold.x, fold.y), made.likelihood, fold)
        rows.append({"model": f"SVGP-{m}", **found, LEAST: None, **kind})
        for h in (4, 8):
            local = swsgp(fold, m, h, noise())
            train(local, fold, steps, RATE)
            found = scores(local.condition(fold.x, fold.y), local.likelihood, fold)
            least = {LEAST: least_error(local, fold)}
            rows.append({"model": f"SWSGP-{m}-{h}", **found, **least, **kind})
        print(rows[-3:], flush=True)
        if not quick:
            write_sizes(rows)


def over_folds() -> list[str]:
    """How far SWSGP-64-4 is above SVGP-64 as a mean over the folds of E12."""
    table = (earlier(HERE / "orders.json") or {}).get(SIZES_SET, [])
    by = {row["model"]: row for row in table}
    if not {"SVGP-64", "SWSGP-64-4"} <= set(by):
        return []
    above = by["SWSGP-64-4"]["rmse"] / by["SVGP-64"]["rmse"] - 1.0
    return [
        f"Over {by['SVGP-64']['folds']} folds SWSGP-64-4 has an RMSE {100.0 * above:.1f} % above "
        "SVGP-64's (E12)."
    ]


def write_sizes(rows: list[dict[str, Any]]) -> None:
    """sizes.json and RESULTS.md."""
    by = {row["model"]: float(row["rmse"]) for row in rows}
    checks: dict[str, bool | None] = {}
    for h in (4, 8):
        line = [by.get(f"SWSGP-{m}-{h}") for m in (8, 16, 32, 64)]
        falls = line == sorted(line, reverse=True) if None not in line else None
        checks[f"H = {h}: RMSE falls with M"] = falls
        checks[f"H = {h}, M = 64: within 5 % of SVGP-64's RMSE"] = (
            by[f"SWSGP-64-{h}"] <= 1.05 * by["SVGP-64"]
        )
    data = f"{SIZES_SET}, two thirds of whose rows train; fold 0. Targets are standardised."
    notes = [*setting(STEPS, data), *PUBLISHED, *over_folds()]
    rows = sorted(rows, key=lambda row: int(row["model"].split("-")[1]))
    write(
        HERE, "sizes", "More inducing points (E13)", notes, rows, checks, hidden=["steps", "data"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("sizes", "orders"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, table in (("sizes", sizes), ("orders", orders)):
        if options.only in (None, name):
            table(options.quick)


if __name__ == "__main__":
    main()
