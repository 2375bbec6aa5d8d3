"""What kernel=auto gains by looking for days, weeks and years in dates beside other inputs.

    python experiments/auto/dates.py            # minutes; rows that exist are kept
    python experiments/auto/dates.py --table    # write the table again

Two tables of made-up sales by shop and day (a weekly pattern, in one of them of another height in
each shop; weather, promotions, noise) and one of hourly temperatures at the three airports of New
York (random hours of the first 90 days of 2013, $GPX_DATA), each as it is and with days as numbers,
in which no calendar is looked for. A tenth of the rows are tested on, of the temperatures three
such folds.
"""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from record import COMMIT, Checks, Rows, argument_parser, earlier, write

from gpx.data import ExtraTable
from gpx.runs import RunFolder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAME = "dates"
SALES = {"two shops, 700 days": (2, 700, False), "ten shops, 800 days": (10, 800, True)}
"""Shops, days, and whether the weekly pattern differs between shops."""
AIRPORTS, HOURS, DAYS = "airports of New York, 1,800 hours", 1800, 90
SPLITS = {**dict.fromkeys(SALES, 1), AIRPORTS: 3}
"""Folds that are tested on."""
QUIET = (
    "trainer.figures=false",
    "trainer.tensorboard=false",
    "trainer.eval_every=0",
    "trainer.num_threads=1",
    "trainer.quiet=true",
)


def sales(shops: int, days: int, own: bool) -> Iterator[dict[str, Any]]:
    """Rows of a table of sales."""
    draws = np.random.default_rng(0)
    level, weather = draws.normal(100.0, 20.0, shops), draws.normal(0.0, 1.0, shops)
    week = draws.uniform(5.0, 20.0, shops) if own else np.full(shops, 15.0)
    for day in range(days):
        for shop in range(shops):
            warm = (
                15.0 + 10.0 * math.sin(2.0 * math.pi * (day - 100) / 365.0) + 2.0 * draws.normal()
            )
            promoted = draws.random() < 0.2
            expected = level[shop] + 0.05 * day + weather[shop] * warm + 25.0 * promoted
            expected += week[shop] * math.sin(2.0 * math.pi * day / 7.0)
            yield {
                "days": day,
                "shop": f"shop {shop}",
                "temperature": round(warm, 1),
                "promotion": "yes" if promoted else "no",
                "target": round(expected + 5.0 * draws.normal(), 1),
            }


def temperatures() -> Iterator[dict[str, Any]]:
    """Rows of hours at the airports."""
    table = ExtraTable("nyc_weather").table()
    early = np.flatnonzero(table.x[:, 1] < 24 * DAYS)
    for row in np.random.default_rng(0).permutation(early)[:HOURS]:
        station, hour = table.x[row]
        name = ("EWR", "JFK", "LGA")[int(station)]
        yield {"days": hour / 24.0, "station": name, "target": float(table.y[row])}


def measured(name: str, split: int, dates: bool, folder: Path) -> dict[str, Any]:
    """A run on the table, with dates or with days as numbers."""
    rows = [*(temperatures() if name == AIRPORTS else sales(*SALES[name]))]
    first = datetime.datetime(2013, 1, 1)
    if dates:
        rows = [
            r | {"days": (first + datetime.timedelta(days=r["days"])).isoformat()} for r in rows
        ]
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    options = ["data=csv", f"data.path={path}", "data.target=target"]
    options += [f"data.split={split}", *QUIET]
    made = RunFolder(folder / "run")
    began = _seconds_of_children()
    command = [sys.executable, str(ROOT / "train.py"), *options, f"hydra.run.dir={made.path}"]
    subprocess.run(command, check=True, cwd=folder)
    found = json.loads((made.path / "metrics.json").read_text())
    config = made.read_config()
    return {
        "data": name,
        "split": split,
        "days are": "dates" if dates else "numbers",
        "n": len(rows) - len(rows) // 10,
        "RMSE": found["test.rmse"],
        "MNLP": found["test.mnlp"],
        "RMSE, boosting": found["baseline.boosting.rmse"],
        "method": str(config.facts.choice).partition(",")[0],
        "kernel": str(config.facts.kernel_choice).partition(", chosen")[0],
        "processor seconds": _seconds_of_children() - began,
        "commit": COMMIT,
    }


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def judged(rows: Rows) -> Checks:
    """Whether dates have the lower errors."""
    checks: Checks = {}
    for name, splits in SPLITS.items():
        for measure in ("RMSE", "MNLP"):
            own, plain = (
                [r[measure] for r in rows if (r["data"], r["days are"]) == (name, kind)]
                for kind in ("dates", "numbers")
            )
            what = f"{name}: {measure} lower with dates than with numbers of days"
            if len(own) < splits or len(plain) < splits:
                checks[what] = None
                continue
            one, other = sum(own) / splits, sum(plain) / splits
            checks[f"{what} ({one:.3f}, {other:.3f})"] = one < other
    return checks


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--table", action="store_true", help="train nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: Rows = earlier(HERE / f"{NAME}.json")
    known = {(row["data"], row["split"], row["days are"]) for row in rows}
    cells = [(name, split) for name, splits in SPLITS.items() for split in range(splits)]
    for (name, split), dates in itertools.product([] if given.table else cells, (True, False)):
        if (name, split, "dates" if dates else "numbers") in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(name, split, dates, Path(folder)))
        print(json.dumps(rows[-1]), flush=True)
        store(rows)
    store(rows)


def store(rows: Rows) -> None:
    notes = [
        "All defaults (`approx=auto kernel=auto`), errors in standard deviations of the target,",
        "one thread. Sales are made up: noise of 5, a weekly wave of 15 (ten shops: 5 to 20).",
    ]
    names = list(SPLITS)
    rows = sorted(rows, key=lambda row: (names.index(row["data"]), row["split"], row["days are"]))
    write(HERE, NAME, "Dates beside other inputs", notes, rows, judged(rows))


if __name__ == "__main__":
    main()
