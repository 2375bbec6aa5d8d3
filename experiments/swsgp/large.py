"""Real sets: SWSGP, the nearest-neighbour process and Vecchia beside SVGP and SGPR.

    python experiments/swsgp/large.py                # what has no row yet, then the table
    python experiments/swsgp/large.py --only NAME    # of these, runs whose name holds NAME
    python experiments/swsgp/large.py --again NAME   # measure such runs once more
    python experiments/swsgp/large.py --report       # the table from the rows there are

Split 0 of every set, trained as the configs of approx= do, in a process of one thread. Rows of
SVGP and SGPR come from experiments/main_road. Writes large.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import COMMIT, earlier, write
from row_files import locked, merged

from gpx.options.composition import composed
from gpx.runs import RunFolder, run

HERE = Path(__file__).resolve().parent
MAIN_ROAD = HERE.parent / "main_road" / "rows.json"
COMMON = [
    "kernel=matern32",
    "trainer.tensorboard=false",
    "trainer.figures=false",
    "trainer.eval_every=0",
]
SHORT = "trainer.max_steps=200"
ADAM = ["approx=svgp", "optimizer=svgp"]
LARGER = [*ADAM, "approx.num_inducing=2048", "optimizer.settled=null"]
PLANS = {
    "kin40k: swsgp, M = 16,384, H = 64, 200 steps": ["approx=swsgp", SHORT],
    "kin40k: vecchia": ["approx=vecchia"],
    "pol: vecchia": ["approx=vecchia"],
    "pol: swsgp, M = 13,500, H = 64, 200 steps": ["approx=swsgp", SHORT],
    "protein: vecchia": ["approx=vecchia"],
    "protein: swsgp, M = 16,384, H = 64, 200 steps": ["approx=swsgp", SHORT],
    "pol: vnngp, 400 steps": ["approx=vnngp", "trainer.max_steps=400"],
    "kin40k: vnngp, 400 steps": ["approx=vnngp", "trainer.max_steps=400"],
    "pol: svgp-512": ADAM,
    "kin40k: swsgp, M = 16,384, H = 64, 1,000 steps": ["approx=swsgp"],
    "protein: vnngp, 400 steps": ["approx=vnngp", "trainer.max_steps=400"],
    "protein: svgp-512": ADAM,
    "kin40k: swsgp, M = 16,384, H = 128, 200 steps": [
        "approx=swsgp",
        "approx.num_neighbours=128",
        SHORT,
    ],
    "kin40k: svgp-2048, 60 steps": [*LARGER, "trainer.max_steps=60"],
    "protein: svgp-2048, 60 steps": [*LARGER, "trainer.max_steps=60"],
}
LIMIT = 600.0
"""Processor seconds that a run may take."""
TRAINING = "seconds of training, by the clock"
"""Column of the rows of main_road, whose processor seconds were not recorded."""


def measured(name: str, options: list[str]) -> dict[str, Any]:
    """One run as a row."""
    data = name.split(":")[0]
    config = composed([f"data={data}", *COMMON, *options])
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        began = time.process_time()
        metrics = run(config, folder)
        return {
            "run": name,
            "n": int(folder.read_config().facts.num_train),
            **figures(metrics),
            "processor seconds": time.process_time() - began,
            "commit": COMMIT,
        }


def figures(metrics: dict[str, Any]) -> dict[str, Any]:
    """What a row shows of metrics.json."""
    return {
        "rmse": metrics["test.rmse"],
        "mnlp": metrics["test.mnlp"],
        "coverage": metrics["test.coverage_95"],
        "steps": metrics["train.steps"],
        "peak MiB": metrics["memory.peak_mib"],
    }


def main_road() -> list[dict[str, Any]]:
    """SVGP and SGPR with 512 inducing points on kin40k, measured there on the same split."""
    rows = json.loads(MAIN_ROAD.read_text())
    return [
        {
            "run": f"kin40k: {kind}-512 (main_road)",
            "n": 36000,
            **figures(rows[kind]["metrics"]),
            "processor seconds": None,
            TRAINING: rows[kind]["metrics"]["train.seconds"],
            "commit": rows[kind]["git_commit"],
        }
        for kind in ("svgp", "sgpr")
    ]


def report(rows: list[dict[str, Any]]) -> None:
    """large.json and RESULTS.md."""
    own = {row["run"]: row for row in rows}
    kin = {name: row for name, row in own.items() if name.startswith("kin40k")}
    local = [row for name, row in kin.items() if "swsgp" in name]
    exact = [row for name, row in kin.items() if "vecchia" in name or "vnngp" in name]

    def good(found: list[dict[str, Any]], rmse: float, mnlp: float) -> bool | None:
        if not found:
            return None
        fits = [
            row["rmse"] <= rmse and row["mnlp"] <= mnlp and row["processor seconds"] <= LIMIT
            for row in found
        ]
        return any(fits)

    known = main_road()
    error, loss = (known[0][key] for key in ("rmse", "mnlp"))  # of SVGP
    checks: dict[str, bool | None] = {
        f"kin40k: swsgp has at most RMSE {error:.3f} and MNLP {loss:.3f} within {LIMIT:.0f} s": (
            good(local, error, loss)
        ),
        "kin40k: vecchia or vnngp has at most RMSE 0.10 and MNLP -0.8 within 600 s": good(
            exact, 0.10, -0.8
        ),
    }
    missing = [name for name in PLANS if name not in own]
    checks |= {f"measured: {name}": None for name in missing}
    notes = [
        "Standardised targets, Matern 3/2 with a lengthscale per input, split 0; processor seconds",
        "of the whole run on one thread, data, start and test metrics included. Those of main_road",
        "were not recorded: its seconds are of training, by the clock. Asked of SWSGP on kin40k:",
        "at most the error and loss of SVGP with 512 inducing points. SWSGP's",
        "inducing points are rows at random that are not learned. SVGP with 2,048 inducing points",
        "is given the steps that fit the time of the local models, about. Rows of SWSGP were",
        "measured on a machine under load: their seconds are upper limits.",
    ]
    ordered = [own[name] | {TRAINING: None} for name in PLANS if name in own]
    write(HERE, "large", "Real sets", notes, [*known, *ordered], checks)


def own_rows() -> list[dict[str, Any]]:
    """Rows of the file that were measured here, not in main_road."""
    return [row for row in earlier(HERE / "large.json") if row["run"] in PLANS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--again")
    parser.add_argument("--report", action="store_true", help="the table from the rows there are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.report:
        report(own_rows())
        return
    again = {name for name in PLANS if options.again is not None and options.again in name}
    for name, chosen in PLANS.items():
        known = {row["run"] for row in earlier(HERE / "large.json")} - again
        if name not in known and options.only in name:
            new = measured(name, chosen)
            with locked(HERE):
                report(merged(own_rows(), [new], itemgetter("run")))


if __name__ == "__main__":
    main()
