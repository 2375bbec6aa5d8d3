"""Series of one input: the kernel that kernel=auto finds, and what it predicts.

    python experiments/auto/series.py            # what has no cell yet: minutes of one core
    python experiments/auto/series.py --table    # the table of the cells measured so far

A cell is one call of ``gpx.fit`` without an option that chooses anything, in a process of its own
on one thread, beside the baselines that every run has. Cells are kept in series_cells.jsonl, so
that a stopped script goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cells import Cells, measured_apart
from record import tally, write

from gpx.data import ExtraTable

HERE = Path(__file__).resolve().parent
CELLS = HERE / "series_cells.jsonl"
LONGEST = 1800
"""Seconds of wall time after which a cell is given up."""
SETS = ("airline_passengers", "mauna_loa_co2", "solar_irradiance", "snelson1d")
SEASONAL = ("airline_passengers", "mauna_loa_co2")
"""Sets with a season to be found."""
TESTED = ("a random tenth", "the last tenth", "the last tenth, log")
LOG = "data.target_transform=log"
"""The option of the cells of the third kind, which are measured where the second advises it."""
BASELINES = ("linear", "5-nn", "boosting")
QUIET = (
    *("trainer.figures=false", "trainer.tensorboard=false", "trainer.eval_every=0"),
    "trainer.num_threads=1",
)


def measure(name: str, tested: str) -> dict[str, Any]:
    """One cell, in this process."""
    import torch

    import gpx

    torch.set_num_threads(1)
    table = ExtraTable(name).table()
    order = np.argsort(table.x[:, 0])
    if tested == "a random tenth":
        order = np.random.default_rng(0).permutation(len(table.y))
    rest, test = np.split(order, [len(order) - len(order) // 10])
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        fitted = gpx.fit(
            *(table.x[rest], table.y[rest], *QUIET, *([LOG] if tested == TESTED[2] else [])),
            test=(table.x[test], table.y[test]),
            folder=Path(folder) / "run",
        )
        seconds = time.process_time() - started
    metrics = fitted.metrics
    return {
        **{"set": name, "tested": tested, "n": len(rest)},
        "kernel": metrics["model.kernel_choice"].split("'")[1],
        "advised": f"try {LOG}" in metrics["model.kernel_choice"],
        **{key: metrics[f"test.{key}"] for key in ("rmse", "mnlp", "coverage_95")},
        **{other: metrics[f"baseline.{other}.rmse"] for other in BASELINES},
        **{"seconds": seconds, "steps": metrics["train.steps"]},
    }


def table(found: list[dict[str, Any]]) -> None:
    """series.json and RESULTS.md from the cells."""
    cells = {(cell["set"], cell["tested"]): cell for cell in found}
    kept = [cells[key] for key in itertools.product(SETS, TESTED) if key in cells]
    rows = [
        {
            **{key: cell[key] for key in ("set", "tested", "n", "kernel")},
            **{key: f"{cell[key]:.3f}" for key in ("rmse", "mnlp", "coverage_95", *BASELINES)},
            "seconds": f"{cell['seconds']:.0f}",
            "commit": tally([cell]),
        }
        for cell in kept
    ]
    first = [all(cell["rmse"] < cell[other] for other in BASELINES) for cell in kept]
    seasons = ["periodic" in cell["kernel"] for cell in kept if cell["set"] in SEASONAL]
    write(
        HERE,
        "series",
        "Series of one input: kernel=auto",
        [
            "Standardised targets; linear, 5-nn and boosting: RMSE of the baselines. seconds:",
            "processor seconds of the whole call with its baselines. A random tenth is "
            "interpolated,",
            "the last tenth (14 and 68 months, 40 years of irradiance) is forecast; snelson1d is",
            "no series: its last tenth lies beyond the border of the rows. log: a further run with",
            f"{LOG}, where the run advised it, because its evidence is higher.",
            "The last 40 years of irradiance lie 1.8 standard deviations above the mean of the 362",
            "before, and vary by 1.08 around their own mean. The kernel with the season has the",
            "higher evidence, and forecasts the last tenths of the training rows better than one",
            "without (log density -1.04 against -1.20 a row), but these 40 years worse (RMSE 1.25",
            "without): nothing in the rows before tells that.",
        ],
        rows,
        {
            f"a season is found ({sum(seasons)} of {len(seasons)})": all(seasons),
            f"every baseline has a larger RMSE ({sum(first)} of {len(first)})": all(first),
        },
    )


def main() -> None:
    """Measure the cells that are missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--cell", nargs=2, help="set and what is tested: one cell, as JSON")
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure(*arguments.cell)))
        return
    cells = Cells(CELLS, "set", "tested")
    for name, tested in () if arguments.table else itertools.product(SETS, TESTED):
        before = next((c for c in cells.rows if (c["set"], c["tested"]) == (name, TESTED[1])), {})
        if (name, tested) in cells or (tested == TESTED[2] and not before.get("advised")):
            continue
        found = measured_apart(__file__, (name, tested), LONGEST)
        if found is not None:
            cells.add(found)
    table(cells.rows)


if __name__ == "__main__":
    main()
