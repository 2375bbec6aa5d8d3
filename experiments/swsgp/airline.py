"""E15 of the thesis: delays of flights as classes, with a hundred thousand inducing points.

    python experiments/swsgp/airline.py           # what has no row: minutes of one core
    python experiments/swsgp/airline.py --quick   # a few steps on few rows, nothing written

The flights of 2011 from Houston (hflights), whether they arrive late, in the place of the AIRLINE
data, which are not at hand. Writes airline.json and RESULTS.md after every run.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import COMMIT, Checks, earlier, write
from torch import Tensor

import gpx
from gpx.data import ExtraTable, load

HERE = Path(__file__).resolve().parent
CLASSES = ["likelihood=bernoulli", "kernel=matern32"]
PLANS = {
    "SWSGP-100k-100": [
        *("approx=swsgp", "approx.num_inducing=100000", "approx.num_neighbours=100"),
        *("trainer.batch_size=64", "trainer.max_steps=5000", "optimizer.settled=null", *CLASSES),
    ],
    "SWSGP-512-32": [
        *("approx=swsgp", "approx.num_inducing=512", "approx.num_neighbours=32"),
        *("approx.covariance=full", "approx.learn_inducing=true", "trainer.batch_size=64"),
        *("trainer.max_steps=20000", "optimizer.settled=null", *CLASSES),
    ],
    "SVGP-200": [
        *("approx=svgp", "optimizer=svgp", "approx.num_inducing=200", "trainer.max_steps=2000"),
        *CLASSES,
    ],
    "deep GP, random features": [
        *("approx=deep_rf", "approx.num_features=500", "likelihood=bernoulli"),
        "trainer.max_steps=4000",
    ],
    "SVDKL": ["approx=svdkl", "likelihood=bernoulli"],
}
PUBLISHED = {
    "SWSGP-100k-100": "0.21, 0.48",
    "SVGP-200": "0.34, 0.61",
    "deep GP, random features": "0.21, 0.46",
    "SVDKL": "0.22, 0.46",
}
"""Error and MNLL on AIRLINE (table 4.2), five million rows."""
MOST_MIB = 8192


def flights() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and late (1) or not (0) of the training and the test rows of split 0."""
    data = load(ExtraTable("hflights"), task="regression")
    scaler = data.scaler
    late = [(scaler.original_mean(y) > 0.0).long() for y in (data.train_y, data.test_y)]
    x, test_x = (scaler.original_inputs(x) for x in (data.train_x, data.test_x))
    return x, late[0], test_x, late[1]


def measured(name: str, quick: bool, first: bool) -> dict[str, Any]:
    """One run as a row; memory is known of the first that a process makes."""
    x, y, test_x, test_y = flights()
    few = slice(2000 if quick else None)
    options = [*PLANS[name], "trainer.baselines=false"]
    if quick:
        options += ["trainer.max_steps=5"]
    start = time.process_time()
    fitted = gpx.fit(x[few], y[few], *options, test=(test_x[few], test_y[few]), keep=False)
    return {
        "model": name,
        "n": len(x[few]),
        "error": 1.0 - fitted.metrics["test.accuracy"],
        "mnll": fitted.metrics["test.mnlp"],
        "error of the commoner class": error_of_commoner(y[few], test_y[few]),
        "published on AIRLINE: error, mnll": PUBLISHED.get(name, "-"),
        "steps": fitted.metrics["train.steps"],
        "processor seconds": time.process_time() - start,
        "peak MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 if first else None),
        "command": " ".join(PLANS[name]),
        "commit": COMMIT,
    }


def error_of_commoner(y: Tensor, test_y: Tensor) -> float:
    """Test error of always predicting the commoner class of the training rows."""
    common = int(y.double().mean() >= 0.5)
    return float((test_y != common).double().mean())


def report(rows: list[dict[str, Any]]) -> None:
    """airline.json and RESULTS.md."""
    by = {row["model"]: row for row in rows}
    own, svgp = by.get("SWSGP-100k-100"), by.get("SVGP-200")
    checks: Checks = {
        "100,000 inducing points, 100 at a time, take at most 8 GiB": (
            None if own is None else own["peak MiB"] <= MOST_MIB
        ),
        "SWSGP has a smaller error than SVGP-200": (
            None if own is None or svgp is None else own["error"] < svgp["error"]
        ),
        "SWSGP has a smaller loss than SVGP-200": (
            None if own is None or svgp is None else own["mnll"] < svgp["mnll"]
        ),
    }
    for name in PLANS:
        row = by.get(name)
        what = f"{name}: the error is at least 3 points below that of the commoner class"
        checks[what] = row and row["error"] <= row["error of the commoner class"] - 0.03
    notes = [
        "Flights of 2011 from Houston, seven inputs; a flight is late where it arrives after its",
        "time. Published figures are of another set, of five million rows and eight inputs.",
        "SVGP and SWSGP: Matern 3/2 (published: Matern 3/2 plus a linear kernel, 10^6 steps).",
        "Inducing points of SWSGP-100k-100 are rows at random that are not learned, and 5,000",
        "steps of 64 rows meet each in some 300 inputs; those of SWSGP-512-32 start at centres of",
        "k-means and are learned, with a full S. SVDKL: a dense network of 64 and 64 units, 16",
        "features on grids of 64 points. Seconds are of a machine",
        "that other jobs shared. Peak memory: of a process that made nothing before.",
    ]
    write(HERE, "airline", "A hundred thousand inducing points (E15)", notes, rows, checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=[*PLANS], default=[*PLANS])
    options = parser.parse_args()
    quick = options.quick
    torch.set_num_threads(1)
    rows = [] if quick else earlier(HERE / "airline.json")
    first = True
    for name in options.only:
        if all(row["model"] != name for row in rows):
            rows.append(measured(name, quick, first))
            first = False
            print(rows[-1], flush=True)
            if not quick:
                report(rows)
    if not quick:  # checks and notes of the saved rows again
        report(rows)


if __name__ == "__main__":
    main()
