"""Few rows: priors of hyperparameters, and averages over them, beside the largest evidence.

    python experiments/priors/few_rows.py                       # every set, ten splits
    python experiments/priors/few_rows.py --data fertility --splits 0 1
    python experiments/priors/few_rows.py --table               # write the table again

Protocol: Matern 5/2 kernel with one lengthscale per input, constant mean; standardised targets, a
tenth of the rows held out. The first three are an exact GP at the largest evidence or posterior
density; ``averaged`` is the mixture over samples of the hyperparameters (approx=fully_bayesian),
with the priors of prior=lognormal, or those it has by default, whose lengthscales are longer the
more inputs there are. Differences are paired over the splits, with their standard
error. Cells that have a row are not repeated.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from cells import Cells
from gpx_runs import trained
from record import Checks, tally, write

HERE = Path(__file__).resolve().parent
CELLS = HERE / "few_rows_cells.jsonl"
DATA = ["challenger", "fertility", "concreteslump", "automobile", "servo", "cancer", "hardware"]
DATA += ["yacht", "autompg", "housing", "forest"]
PRIORS = {
    "none": ["approx=exact"],
    "dimension_scaled": ["approx=exact", "prior=dimension_scaled"],
    "lognormal": ["approx=exact", "prior=lognormal"],
    "averaged": ["approx=fully_bayesian", "prior=lognormal"],
    "averaged, default priors": ["approx=fully_bayesian"],
}
"""Options of each treatment of the hyperparameters."""


def cell(name: str, split: int, prior: str) -> dict[str, Any]:
    """Train and test on one split."""
    options = [f"data={name}", f"data.split={split}", "kernel=matern52"]
    options += ["trainer.baselines=false", "trainer.quiet=true"]
    done = trained(options + PRIORS[prior])
    metrics = done.metrics
    chains = {
        key: metrics[f"train.{key}"]
        for key in ("rhat_hyperparameters", "effective_samples_hyperparameters", "evaluations")
        if f"train.{key}" in metrics
    }
    return {
        "data": name,
        "split": split,
        "prior": prior,
        "rmse": metrics["test.rmse"],
        "mnlp": metrics["test.mnlp"],
        "coverage": metrics["test.coverage_95"],
        "evidence": metrics["train.evidence"],
        "steps": metrics["train.steps"],
        "seconds": done.seconds,
        **chains,
        "num_threads": torch.get_num_threads(),
    }


def table(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Checks]:
    """A row for every set and treatment, over the splits that all of them have, and the checks."""
    rows, better = [], {prior: [] for prior in PRIORS if prior != "none"}
    for name in DATA:
        found = {
            prior: {c["split"]: c for c in cells if (c["data"], c["prior"]) == (name, prior)}
            for prior in PRIORS
        }
        measured = {prior: each for prior, each in found.items() if each}
        if "none" not in measured:
            continue
        for prior in better.keys() - measured.keys():
            better[prior].append(None)
        splits = sorted(set.intersection(*(set(each) for each in measured.values())))
        plain = measured["none"]
        for prior, each in measured.items():
            runs = [each[split] for split in splits]
            gains = [plain[split]["mnlp"] - each[split]["mnlp"] for split in splits]
            mean = statistics.fmean(gains)
            enough = len(gains) > 1
            error = statistics.stdev(gains) / math.sqrt(len(gains)) if enough else None
            row = {"data": name, "splits": len(splits), "prior": prior}
            for key in ("rmse", "mnlp", "coverage", "steps", "seconds"):
                row[key] = statistics.fmean(r[key] for r in runs)
            rows.append(
                row
                | {
                    "gain in mnlp": None if prior == "none" else mean,
                    "standard error": None if prior == "none" else error,
                    "commit": tally(runs),
                }
            )
            if prior in better:
                better[prior].append(None if error is None else mean > -2.0 * error)
    checks: Checks = {
        f"{prior}: on no set the MNLP is worse than without a prior by more than two standard "
        "errors": holds(found)
        for prior, found in better.items()
    }
    return rows, checks


def holds(found: list[bool | None]) -> bool | None:
    """Whether all hold; None if no set tells, or if none fails and one does not tell."""
    if False in found:
        return False
    return None if None in found or not found else True


def main() -> None:
    """Run the cells that are missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells = Cells(CELLS, "data", "split", "prior")
    for key in product(arguments.data, arguments.splits, PRIORS):
        if not arguments.table and key not in cells:
            cells.add(cell(*key))
    rows, checks = table(cells.rows)
    write(
        HERE,
        "few_rows",
        "Few rows: priors of hyperparameters, and averages over these",
        [
            "Matern 5/2, one lengthscale per input; means over splits of standardised "
            "targets. `gain in mnlp` is against no prior, paired over splits, with its standard "
            "error. Seconds are processor seconds of a whole run on one shared core."
        ],
        rows,
        checks,
    )


if __name__ == "__main__":
    main()
