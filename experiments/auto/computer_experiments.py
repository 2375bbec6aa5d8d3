"""approx=auto on functions that are known without noise, as computations are.

    python experiments/auto/computer_experiments.py           # five minutes; keeps cells that exist
    python experiments/auto/computer_experiments.py --table    # write the table again

Test functions of the literature of computer experiments at scrambled Sobol points, and 1,000
uniformly drawn points tested: with all defaults, which average over the hyperparameters of the
kernel that is chosen, and with approx=exact, which takes the most probable ones, of the same
kernels.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from averages import METHODS, measured, paired
from cells import Cells
from numpy.typing import NDArray
from record import Checks, write
from scipy.stats import qmc

HERE = Path(__file__).resolve().parent
CELLS = HERE / "computer_experiments_cells.jsonl"
SEEDS = (0, 1, 2)
TESTED = 1000
Array = NDArray[np.float64]


class Function(NamedTuple):
    """A function of the unit cube, and the numbers of rows that it is learned from."""

    inputs: int
    rows: tuple[int, ...]
    of: Callable[[Array], Array]


def sine(x: Array) -> Array:
    """Less than a period."""
    return np.asarray(np.sin(6.0 * x[:, 0]))


def forrester(x: Array) -> Array:
    """Forrester, Sobester and Keane 2008: one minimum beside a flat part."""
    u = x[:, 0]
    return np.asarray((6.0 * u - 2.0) ** 2 * np.sin(12.0 * u - 4.0))


def branin(x: Array) -> Array:
    """Branin and Hoo 1972: three minima."""
    u, v = 15.0 * x[:, 0] - 5.0, 15.0 * x[:, 1]
    valley = v - 5.1 / (4.0 * np.pi**2) * u**2 + 5.0 / np.pi * u - 6.0
    return np.asarray(valley**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(u) + 10.0)


def ishigami(x: Array) -> Array:
    """Ishigami and Homma 1990: strong interaction, no main effect of the third input."""
    u, v, w = (np.pi * (2.0 * x - 1.0)).T
    return np.asarray(np.sin(u) + 7.0 * np.sin(v) ** 2 + 0.1 * w**4 * np.sin(u))


def friedman(x: Array) -> Array:
    """Friedman 1991."""
    waves = 10.0 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20.0 * (x[:, 2] - 0.5) ** 2
    return np.asarray(waves + 10.0 * x[:, 3] + 5.0 * x[:, 4])


BOREHOLE = [(0.05, 0.15), (100, 50000), (63070, 115600), (990, 1110), (63.1, 116), (700, 820)]
BOREHOLE += [(1120, 1680), (9855, 12045)]


def borehole(x: Array) -> Array:
    """Flow of water through a borehole (Morris, Mitchell and Ylvisaker 1993)."""
    lowest, largest = np.array(BOREHOLE).T
    radius, reach, upper, head, lower, foot, length, conductivity = (
        lowest + (largest - lowest) * x
    ).T
    logs = np.log(reach / radius)
    resistance = 1.0 + 2.0 * length * upper / (logs * radius**2 * conductivity) + upper / lower
    return np.asarray(2.0 * np.pi * upper * (head - foot) / (logs * resistance))


FUNCTIONS = {
    "sine": Function(1, (12,), sine),
    "forrester": Function(1, (12, 20), forrester),
    "branin": Function(2, (25, 80), branin),
    "ishigami": Function(3, (60, 150), ishigami),
    "friedman": Function(5, (60, 150), friedman),
    "borehole": Function(8, (40, 150), borehole),
}
CASES = [(name, rows) for name, function in FUNCTIONS.items() for rows in function.rows]


def cell(name: str, rows: int, seed: int, method: str) -> dict[str, Any]:
    """Learn a function from ``rows`` points that ``seed`` scrambles."""
    function = FUNCTIONS[name]
    x = qmc.Sobol(function.inputs, rng=seed).random(2 ** int(np.ceil(np.log2(rows))))[:rows]
    new = np.random.default_rng(seed).uniform(size=(TESTED, function.inputs))
    found = measured((x, function.of(x)), (new, function.of(new)), method)
    return {"function": name, "rows": rows, "seed": seed} | found


def table(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Checks]:
    """Means over the seeds, and the checks."""
    rows, gains, ratios, covered, converged = [], [], [], [], []
    for name, count in CASES:
        found, groups = paired(cells, {"function": name, "rows": count}, len(SEEDS))
        if not found:
            continue
        rows += found
        gains.append(found[1]["mnlp"] - found[0]["mnlp"])
        ratios.append(found[0]["rmse"] / found[1]["rmse"])
        covered.append(found[0]["coverage"])
        converged += [c["rhat"] < 1.05 for c in groups[0]]
    checks: Checks = {
        "chains converge (R-hat below 1.05)": all(converged) if converged else None,
    }
    if len(gains) == len(CASES):
        what = "the MNLP of averages is lower, or at most 0.1 higher, of every function"
        checks[f"{what} (gains {min(gains):.2f} to {max(gains):.2f})"] = min(gains) > -0.1
        what = "their 95 % intervals cover at least 90 % of every function"
        checks[f"{what} ({min(covered):.2f} to {max(covered):.2f})"] = min(covered) >= 0.9
        what = "the RMSE of averages is lower, or at most a fifth higher, of every function"
        checks[f"{what} (ratios {min(ratios):.2f} to {max(ratios):.2f})"] = max(ratios) < 1.2
    return rows, checks


def main() -> None:
    """Run the cells that are missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells = Cells(CELLS, "function", "rows", "seed", "hyperparameters")
    for (name, rows), seed, method in itertools.product(CASES, SEEDS, METHODS):
        if not arguments.table and (name, rows, seed, method) not in cells:
            cells.add(cell(name, rows, seed, method))
    found, checks = table(cells.rows)
    write(
        HERE,
        "computer_experiments",
        "Functions without noise: averages over hyperparameters, and the most probable ones",
        [
            f"Means of {len(SEEDS)} scrambled designs; {TESTED:,} other points are tested. Errors",
            "in standard deviations of the function at the design; coverage of 95 % intervals;",
            "processor seconds of one thread, kernel search included.",
        ],
        found,
        checks,
    )


if __name__ == "__main__":
    main()
