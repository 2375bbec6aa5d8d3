"""Many inputs, few of which matter: priors of lengthscales, and averages over these.

    python experiments/priors/many_inputs.py            # every function, five draws of rows
    python experiments/priors/many_inputs.py --table    # write the table again

Protocol: 30 uniform inputs, Matern 5/2 with one lengthscale per input. ``four_inputs`` is
sin(6 x_1) + 4 (x_2 - 1/2)^2 + x_3 cos(5 x_4) with noise of 0.1 at 60 rows, ``hartmann6`` the
function of optimisation over the first six, without noise, at 80 rows. Errors are of the noise-free
function at 1,000 further points, in its standard deviations; the density is that of the prediction
with its noise. Cells that have a row are not repeated.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from cells import Cells
from record import Checks, tally, write

import gpx

HERE = Path(__file__).resolve().parent
CELLS = HERE / "many_inputs_cells.jsonl"
NUM_INPUTS, NUM_TEST = 30, 1000
SEEDS = range(5)
TREATMENTS = {
    "largest evidence": ["approx=exact"],
    "dimension_scaled": ["approx=exact", "prior=dimension_scaled"],
    "averaged, lognormal": ["approx=fully_bayesian", "prior=lognormal"],
    "averaged, default priors": ["approx=fully_bayesian"],
    "averaged, saas": ["approx=fully_bayesian", "prior=saas"],
}
"""Options of each treatment of the hyperparameters."""


def four_inputs(x: np.ndarray) -> np.ndarray:
    """A sum of two functions of one input and one of two."""
    return np.sin(6.0 * x[:, 0]) + 4.0 * (x[:, 1] - 0.5) ** 2 + x[:, 2] * np.cos(5.0 * x[:, 3])


def hartmann6(x: np.ndarray) -> np.ndarray:
    """Four wells in six inputs (Dixon and Szego 1978)."""
    steepness = np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    )
    centres = 1e-4 * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    depths = np.array([1.0, 1.2, 3.0, 3.2])
    apart = x[:, None, :6] - centres
    return -(depths * np.exp(-(steepness * apart**2).sum(2))).sum(1)


FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int, float]] = {
    "four_inputs": (four_inputs, 60, 0.1),
    "hartmann6": (hartmann6, 80, 0.0),
}
"""Function, number of rows, standard deviation of the noise."""


def cell(name: str, seed: int, treatment: str) -> dict[str, Any]:
    """Train on one draw of rows and test."""
    function, rows, noise = FUNCTIONS[name]
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(rows, NUM_INPUTS))
    y = function(x) + noise * rng.normal(size=rows)
    x_test = rng.uniform(size=(NUM_TEST, NUM_INPUTS))
    y_test = function(x_test)
    started = time.process_time()
    fitted = gpx.fit(
        x,
        y,
        *TREATMENTS[treatment],
        "kernel=matern52",
        "data.test_fraction=0",
        "trainer.figures=false",
        "trainer.baselines=false",
        quiet=True,
        keep=False,
    )
    seconds = time.process_time() - started
    mean, deviation, lower, upper = (np.asarray(each) for each in fitted.predict(x_test))
    scaled, scale = (y_test - mean) / deviation, y_test.std()
    chains = {
        key: fitted.metrics[f"train.{key}"]
        for key in ("rhat_hyperparameters", "effective_samples_hyperparameters")
        if f"train.{key}" in fitted.metrics
    }
    return {
        "function": name,
        "seed": seed,
        "treatment": treatment,
        "rmse": float(np.sqrt(np.mean((y_test - mean) ** 2)) / scale),
        "mnlp": float(np.mean(0.5 * scaled**2 + np.log(deviation / scale * (2 * np.pi) ** 0.5))),
        "coverage": float(np.mean((lower <= y_test) & (y_test <= upper))),
        "seconds": seconds,
        **chains,
        "num_threads": torch.get_num_threads(),
    }


def table(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Checks]:
    """A row for every function and treatment, means over the draws, and the checks."""
    rows, checks = [], {}
    for name in FUNCTIONS:
        found = {}
        for treatment in TREATMENTS:
            runs = [c for c in cells if (c["function"], c["treatment"]) == (name, treatment)]
            if not runs:
                continue
            row: dict[str, Any] = {"function": name, "treatment": treatment, "draws": len(runs)}
            for key in ("rmse", "mnlp", "coverage", "seconds"):
                row[key] = fmean(run[key] for run in runs)
            if "rhat_hyperparameters" in runs[0]:
                row["largest R-hat"] = max(run["rhat_hyperparameters"] for run in runs)
            found[treatment] = row
            rows.append(row | {"commit": tally(runs)})
        losses = {treatment: row["mnlp"] for treatment, row in found.items()}
        for treatment in ("averaged, default priors", "averaged, saas"):
            both = losses.get(treatment), losses.get("largest evidence")
            checks[f"{name}: {treatment}: a lower MNLP than that of the largest evidence"] = (
                None if None in both else both[0] < both[1]
            )
        saas = losses.pop("averaged, saas", None)
        checks[f"{name}: the lowest MNLP is that of prior=saas"] = (
            None if saas is None or not losses else saas < min(losses.values())
        )
    return rows, checks


def main() -> None:
    """Run the cells that are missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", nargs="*", default=list(FUNCTIONS), choices=FUNCTIONS)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells = Cells(CELLS, "function", "seed", "treatment")
    for key in product(arguments.functions, arguments.seeds, TREATMENTS):
        if not arguments.table and key not in cells:
            cells.add(cell(*key))
    rows, checks = table(cells.rows)
    write(
        HERE,
        "many_inputs",
        "Many inputs, few of which matter",
        [
            "30 inputs; means over draws of the rows. Errors are of the function without noise, in "
            "its standard deviations, and so is the density of MNLP. Seconds are processor seconds "
            "of training on one shared core."
        ],
        rows,
        checks,
    )


if __name__ == "__main__":
    main()
