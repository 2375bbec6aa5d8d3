"""A deep process of random features beside SVGP and QSGP, in about the same processor time.

    python experiments/deep/regression.py                  # what has no row: half an hour on a core
    python experiments/deep/regression.py --data protein   # of some sets
    python experiments/deep/regression.py --quick          # 20 steps each, nothing written

Split 0, standardised targets. Times are of the processor, over all of a run: start, training and
predictions. Writes regression.json and RESULTS.md beside this file.
"""

from __future__ import annotations

import sys
from operator import itemgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpx_runs import trained
from record import COMMIT, Checks, Rows, argument_parser, earlier, write
from row_files import locked, merged

HERE = Path(__file__).resolve().parent
SETS = ("kin40k", "protein", "pol")
DEEP, SVGP, QSGP = "deep, two layers", "SVGP-512", "QSGP"
DEEP_OPTIONS = ["approx=deep_rf", "approx.num_features=1000", "approx.width=8"]
SVGP_OPTIONS = ["approx=svgp", "optimizer=svgp", "approx.num_inducing=512", "kernel=matern32"]
COMMANDS = {
    DEEP: [*DEEP_OPTIONS, "trainer.max_steps=8000"],
    SVGP: [*SVGP_OPTIONS, "trainer.max_steps=1500"],
    QSGP: ["approx=qsgp", "approx.num_basis=20000", "kernel=matern32"],
}
"""Steps and basis functions are those that take about as long as the 1,500 steps of SVGP."""


def measured(data: str, method: str, quick: bool) -> Rows:
    """One training."""
    options = [*COMMANDS[method], f"data={data}"]
    few = ["trainer.max_steps=20"] if quick else []
    done = trained([*options, *few, "trainer.baselines=false", "trainer.device=cpu"])
    return [
        {
            "data": data,
            "method": method,
            "RMSE": done.metrics["test.rmse"],
            "MNLP": done.metrics["test.mnlp"],
            "coverage": done.metrics["test.coverage_95"],
            "steps": done.metrics["train.steps"],
            "processor seconds": done.seconds,
            "command": " ".join(options),
            "commit": COMMIT,
        }
    ]


def judged(rows: Rows) -> Checks:
    """Whether the deep process is at least as good as SVGP in no more time."""
    found = {(row["data"], row["method"]): row for row in rows}
    asked = {"processor seconds": "time", "RMSE": "RMSE", "MNLP": "MNLP"}
    checks: Checks = {}
    for data in SETS:
        deep, svgp = found.get((data, DEEP)), found.get((data, SVGP))
        for measure, words in asked.items():
            checks[f"{data}: {words} of the deep process at most that of SVGP"] = (
                None if deep is None or svgp is None else deep[measure] <= svgp[measure]
            )
    return checks


def store(rows: Rows, folder: Path | None) -> None:
    """Write the table; None: only print it."""
    ordered = sorted(rows, key=lambda row: SETS.index(row["data"]))
    write(
        folder,
        "regression",
        "Regression: a deep process of random features beside SVGP and QSGP",
        [
            "Split 0, standardised targets, one thread; RMSE, MNLP and coverage of nominal",
            "95 % intervals of the test rows. Processor seconds of whole runs.",
        ],
        ordered,
        judged(ordered),
    )


def main() -> None:
    parser = argument_parser(__doc__, quick="20 steps each")
    parser.add_argument("--data", nargs="+", choices=SETS, default=SETS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: Rows = [] if options.quick else earlier(HERE / "regression.json")
    for data in options.data:
        for method in COMMANDS:
            if any((row["data"], row["method"]) == (data, method) for row in rows):
                continue
            new = measured(data, method, options.quick)
            with locked(HERE):
                kept = rows if options.quick else earlier(HERE / "regression.json")
                rows = merged(kept, new, itemgetter("data", "method"))
                store(rows, None if options.quick else HERE)


if __name__ == "__main__":
    main()
