"""approx=auto on few rows: averages over hyperparameters, and the most probable ones.

    python experiments/auto/few_rows.py            # a quarter of an hour; cells that exist are kept
    python experiments/auto/few_rows.py --table    # write the table again

40, 100 and 200 random rows of six UCI sets are trained on, and up to 500 others tested: with all
defaults, which average over the hyperparameters of the kernel that is chosen, and with
approx=exact, which takes the most probable ones, of the same kernels.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from averages import METHODS, measured, paired
from cells import Cells
from record import Checks, write

from gpx.data import UCI

HERE = Path(__file__).resolve().parent
CELLS = HERE / "few_rows_cells.jsonl"
SETS = ("airfoil", "autompg", "concrete", "energy", "housing", "stock")
SIZES = (40, 100, 200)
DRAWS = (0, 1)
TESTED = 500


def cell(name: str, size: int, draw: int, method: str) -> dict[str, Any]:
    """Train on rows that ``draw`` determines, and test on others."""
    table = UCI(name).table()
    order = np.random.default_rng(draw).permutation(len(table.y))
    seen, new = order[:size], order[size : size + TESTED]
    found = measured((table.x[seen], table.y[seen]), (table.x[new], table.y[new]), method)
    return {"set": name, "rows": size, "draw": draw} | found


def table(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Checks]:
    """Means over the draws, and the checks."""
    rows, checks = [], Checks()
    for size in SIZES:
        gains = []
        for name in SETS:
            found, _ = paired(cells, {"rows": size, "set": name}, len(DRAWS))
            rows += found
            gains += [found[1]["mnlp"] - found[0]["mnlp"]] if found else []
        what = f"{size} rows: the MNLP of averages is lower, or at most 0.02 higher, on every set"
        if len(gains) < len(SETS):
            checks[what] = None
        else:
            checks[f"{what} (gains {min(gains):.3f} to {max(gains):.3f})"] = min(gains) > -0.02
    return rows, checks


def main() -> None:
    """Run the cells that are missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells = Cells(CELLS, "set", "rows", "draw", "hyperparameters")
    for key in itertools.product(SETS, SIZES, DRAWS, METHODS):
        if not arguments.table and key not in cells:
            cells.add(cell(*key))
    rows, checks = table(cells.rows)
    write(
        HERE,
        "few_rows",
        "Few rows: averages over hyperparameters, and the most probable ones",
        [
            f"Means of two draws of the rows; up to {TESTED} others are tested. Errors in",
            "standard deviations of the target's training rows; coverage of 95 % intervals;",
            "processor seconds of one thread, kernel search included.",
        ],
        rows,
        checks,
    )


if __name__ == "__main__":
    main()
