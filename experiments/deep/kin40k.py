"""A deep process of random features beside SVGP with 512 inducing points, at equal processor time.

    python experiments/deep/kin40k.py            # both, a few minutes on a core
    python experiments/deep/kin40k.py --quick    # 50 steps each: not what is asked

kin40k, split 0, standardised targets. Times are of the processor, over all of a run: start,
training and predictions. Writes kin40k.json and RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import COMMIT, Checks, Rows, earlier, write

from gpx.options.composition import composed
from gpx.runs import RunFolder, run

HERE = Path(__file__).resolve().parent
COMMANDS = {
    "deep, two layers": ["approx=deep_rf", "approx.num_features=1000", "approx.width=8"],
    "SVGP-512": ["approx=svgp", "kernel=matern32"],
}
STEPS = {"deep, two layers": 3000, "SVGP-512": 1500}


def measured(name: str, steps: int) -> Rows:
    """One training."""
    options = [*COMMANDS[name], "data=kin40k", f"trainer.max_steps={steps}"]
    quiet = ["trainer.tensorboard=false", "trainer.figures=false", "trainer.baselines=false"]
    before = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        config = composed([*options, *quiet, "trainer.eval_every=0", "trainer.device=cpu"])
        metrics = run(config, RunFolder(Path(temporary) / "run"))
    return [
        {
            "method": name,
            "command": " ".join(options),
            "RMSE": metrics["test.rmse"],
            "MNLP": metrics["test.mnlp"],
            "steps": steps,
            "processor seconds": time.process_time() - before,
            "commit": COMMIT,
        }
    ]


def judged(rows: Rows) -> Checks:
    """Whether the deep process is at least as good in no more time."""
    found = {row["method"]: row for row in rows}
    both = set(found) == set(COMMANDS)
    deep, svgp = (found.get(name, {}) for name in ("deep, two layers", "SVGP-512"))
    asked = {"processor seconds": "time", "RMSE": "RMSE", "MNLP": "MNLP"}
    return {
        f"{words} of the deep process at most that of SVGP": (
            deep[measure] <= svgp[measure] if both else None
        )
        for measure, words in asked.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="50 steps each")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    name = "kin40k_quick" if quick else "kin40k"
    rows: Rows = earlier(HERE / f"{name}.json")
    for method in COMMANDS:
        if any(row["method"] == method for row in rows):
            continue
        rows += measured(method, 50 if quick else STEPS[method])
        write(
            HERE,
            name,
            "kin40k: a deep process of random features and SVGP at equal processor time",
            ["Split 0, standardised targets, one thread; RMSE and MNLP of the test rows."],
            rows,
            judged(rows),
        )


if __name__ == "__main__":
    main()
