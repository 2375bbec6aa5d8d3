"""Fifty inputs and more: the defaults, a prior of lengthscales, and a linear model.

    python experiments/auto/many_inputs.py            # minutes; cells that exist are kept
    python experiments/auto/many_inputs.py --table    # write the table again

Protocol: standard normal inputs; five functions, of which all but ``plane`` depend on three to six
of them; noise of a standard deviation of 0.2. ``auto`` has no options, ``prior`` is ``approx=exact
kernel=rbf prior=dimension_scaled``, and ``lasso`` is scikit-learn's LassoCV. Errors and densities
are of 1,000 further rows with noise, in the standard deviation of their targets.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from cells import Cells
from record import Checks, tally, write
from sklearn.linear_model import LassoCV

import gpx

HERE = Path(__file__).resolve().parent
CELLS = HERE / "many_inputs_cells.jsonl"
NOISE, NUM_TEST = 0.2, 1000
SIZES = {"150x50": (150, 50), "500x50": (500, 50), "300x100": (300, 100)}
"""Rows and inputs."""
FUNCTIONS = {
    "plane": lambda x: x.sum(1) / x.shape[1] ** 0.5,
    "three slopes": lambda x: x[:, 0] - 2.0 * x[:, 1] + 0.5 * x[:, 2],
    "four inputs": lambda x: np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + x[:, 3],
    "six waves": lambda x: np.sin(2.0 * x[:, :6]).sum(1),
    "products": lambda x: np.cos(x[:, 0] + x[:, 1]) * (1.0 + x[:, 2]) + 0.5 * np.abs(x[:, 3]),
}
METHODS = {
    "auto": [],
    "prior": ["approx=exact", "kernel=rbf", "prior=dimension_scaled"],
    "lasso": None,
}
"""Options of gpx; None: not gpx."""
QUIET = ("data.test_fraction=0", "trainer.figures=false", "trainer.baselines=false")


def cell(size: str, function: str, method: str) -> dict[str, Any]:
    """Train on one draw of rows and test."""
    (rows, inputs), options = SIZES[size], METHODS[method]
    rng = np.random.default_rng(rows + inputs)
    x, x_test = rng.normal(size=(rows, inputs)), rng.normal(size=(NUM_TEST, inputs))
    y = FUNCTIONS[function](x) + NOISE * rng.normal(size=rows)
    y_test = FUNCTIONS[function](x_test) + NOISE * rng.normal(size=NUM_TEST)
    started, scale = time.process_time(), y_test.std()
    found = {"size": size, "function": function, "method": method}
    if options is None:
        mean = LassoCV().fit(x, y).predict(x_test)
    else:
        fitted = gpx.fit(x, y, *options, *QUIET, quiet=True, keep=False)
        mean, deviation, lower, upper = fitted.predict(x_test)
        scaled = (y_test - mean) / deviation
        density = 0.5 * scaled**2 + np.log(deviation / scale * (2.0 * np.pi) ** 0.5)
        found["mnlp"] = float(density.mean())
        found["coverage"] = float(np.mean((lower <= y_test) & (y_test <= upper)))
    error = float(np.sqrt(np.mean((y_test - mean) ** 2)) / scale)
    return found | {"rmse": error, "seconds": time.process_time() - started}


def table(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Checks]:
    """A row for every size and function, and the checks."""
    found = {(c["size"], c["function"], c["method"]): c for c in cells}
    rows: list[dict[str, Any]] = []
    above_prior, above_lasso = [], []
    for size, function in product(SIZES, FUNCTIONS):
        own = {m: found[size, function, m] for m in METHODS if (size, function, m) in found}
        if len(own) < len(METHODS):
            continue
        row: dict[str, Any] = {"rows x inputs": size, "function": function}
        for method, one in own.items():
            row[f"{method}: RMSE"] = one["rmse"]
            if "mnlp" in one:
                row |= {f"{method}: MNLP": one["mnlp"], f"{method}: seconds": one["seconds"]}
        rows.append(row | {"commit": tally([own["auto"], own["prior"]])})
        above_prior.append(own["auto"]["rmse"] - own["prior"]["rmse"])
        above_lasso.append(own["auto"]["rmse"] - own["lasso"]["rmse"])
    checks: Checks = {}
    if len(rows) == len(SIZES) * len(FUNCTIONS):
        for what, above in (("kernel=rbf under the prior", above_prior), ("lasso", above_lasso)):
            name = f"the RMSE of the default is at most 0.05 above that of {what}"
            checks[f"{name} ({min(above):.2f} to {max(above):.2f})"] = max(above) <= 0.05
    return rows, checks


def main() -> None:
    """Run the cells that are missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells = Cells(CELLS, "size", "function", "method")
    for key in product(SIZES, FUNCTIONS, METHODS):
        if not arguments.table and key not in cells:
            cells.add(cell(*key))
    rows, checks = table(cells.rows)
    write(
        HERE,
        "many_inputs",
        "Fifty inputs and more",
        [
            "One draw of rows each; errors and densities are in standard deviations of the test "
            "targets, of which noise of 0.2 is part. Seconds are processor seconds of one thread."
        ],
        rows,
        checks,
    )


if __name__ == "__main__":
    main()
