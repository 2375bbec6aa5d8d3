"""Calibration beside the exact class probabilities, by size of the data and by depth.

    python experiments/deep/fields.py            # three minutes on a core
    python experiments/deep/fields.py --quick    # 100 steps each: not what is asked

Ten classes of random fields, 8 x 8 pixels in three colours, whose best classifier errs in a tenth
of all cases; 1,000 or 4,000 of them to train on, 1,000 to test on. Two convolutions of 3 x 3 (32
and 64 channels), 256 features, 1,500 steps of Adam on batches of 100. Writes fields.json and
RESULTS.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import COMMIT, Checks, Rows, earlier, write
from torch import Tensor
from torch.distributions import Categorical

from gpx.data import Fields
from gpx.data import load as load_data
from gpx.metrics import evaluate, trivial_law
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.runs import RunFolder, load, run

HERE = Path(__file__).resolve().parent
TOTAL, TESTED = 5000, 1000
EXACT = "exact probabilities"
METHODS: dict[str, list[str]] = {
    "CNN": ["approx=cnn"],
    "CNN+MCD": ["approx=cnn_mcd"],
    "CNN+GP(RF)": ["approx=cnn_rf"],
    "CNN+DGP(RF), 2 layers": ["approx=cnn_deep_rf", "approx.depth=2"],
    "CNN+DGP(RF), 3 layers": ["approx=cnn_deep_rf", "approx.depth=3"],
}
RUNS = [
    *((name, size) for size in (4000, 1000) for name in ("CNN", "CNN+MCD", "CNN+GP(RF)")),
    *((name, 4000) for name in METHODS if "DGP" in name),
]


def scored(name: str, size: int | None, law: Any, data: Any) -> dict[str, Any]:
    trivial = trivial_law(data.train_y)
    scores = evaluate("multiclass", law, data.test_y, data.scaler, trivial=trivial)
    confidence = float(law.probs.max(1).values.mean())
    return {
        "method": name,
        "N": size,
        "ERR": 1.0 - scores["accuracy"],
        "MNLL": scores["mnlp"],
        "ECE": scores["ece"],
        "MCE": scores["mce"],
        "Brier": scores["brier"],
        "entropy": scores["entropy"],
        "confidence less accuracy": confidence - scores["accuracy"],
        "distance from exact": float((law.probs.double() - exact(data.test_x)).abs().sum(1).mean()),
        "commit": COMMIT,
    }


def exact(x: Tensor) -> Tensor:
    """Of test images x (n, 192), (n, 10)."""
    source = Fields(num_images=TOTAL, side=8)
    return torch.from_numpy(source.probabilities(x.double().numpy()))


def measured(name: str, size: int, steps: int) -> dict[str, Any]:
    """One training."""
    options = [
        *(*METHODS[name], "data=fields", f"data.num_images={TOTAL}", "data.side=8"),
        *(f"data.test_fraction={TESTED / TOTAL}", f"trainer.max_steps={steps}"),
        *([] if size == TOTAL - TESTED else [f"data.train_size={size}"]),
        *("trainer.eval_every=0", "trainer.device=cpu", "trainer.tensorboard=false"),
        *("trainer.figures=false", "trainer.baselines=false", "trainer.quiet=true"),
    ]
    before = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run")
        run(composed(options), folder)
        seconds = time.process_time() - before
        predictor = load(folder.path)
        data = load_data(build(folder.read_config(), "data"), task="multiclass")
    row = scored(name, size, predictor.distribution(data.test_x.float()), data)
    return {**row, "steps": steps, "seconds": seconds}


def control() -> dict[str, Any]:
    """The best classifier, on 20,000 images: of 1,000 the ECE is 0.02 by chance alone."""
    data = load_data(Fields(num_images=40_000, side=8, test_fraction=0.5), task="multiclass")
    row = scored(EXACT, None, Categorical(probs=exact(data.test_x)), data)
    return {**row, "steps": None, "seconds": None}


def judged(rows: Rows) -> Checks:
    """What section 4.4 asks for."""
    found = {(row["method"], row["N"]): row for row in rows}

    def holds(*keys: tuple[str, int | None], of: Any) -> bool | None:
        return bool(of(*(found[key] for key in keys))) if set(keys) <= set(found) else None

    checks: Checks = {
        "ECE of the exact probabilities below 0.02": holds(
            (EXACT, None), of=lambda row: row["ECE"] < 0.02
        )
    }
    gap = "confidence less accuracy"
    for method in ("CNN+MCD", "CNN+GP(RF)"):
        checks[f"{method} is less under-confident with 4,000 rows than with 1,000"] = holds(
            *((method, 4000), (method, 1000)), of=lambda many, few: many[gap] > few[gap]
        )
        for measure in ("MNLL", "Brier", "ECE"):
            checks[f"{measure} of {method} below that of CNN, 4,000 rows"] = holds(
                *((method, 4000), ("CNN", 4000)),
                of=lambda own, plain, k=measure: own[k] < plain[k],
            )
    depths = ("CNN+GP(RF)", "CNN+DGP(RF), 2 layers", "CNN+DGP(RF), 3 layers")
    checks["ERR of one, two and three layers within 0.05"] = holds(
        *((method, 4000) for method in depths),
        of=lambda *each: max(r["ERR"] for r in each) - min(r["ERR"] for r in each) < 0.05,
    )
    for what in ("16,000 rows", "depths 4 and 5", "100 classes, ALEXNET", "images of 32 x 32"):
        checks[what] = None
    return checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="100 steps each")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    name = "fields_quick" if quick else "fields"
    rows: Rows = earlier(HERE / f"{name}.json")
    for method, size in ((EXACT, None), *RUNS):
        if any((row["method"], row["N"]) == (method, size) for row in rows):
            continue
        rows.append(control() if size is None else measured(method, size, 100 if quick else 1500))
        write(
            HERE,
            name,
            "Random fields: calibration beside the exact class probabilities",
            [
                "One seed. ECE with the mean confidence of 20 bins, Brier score summed over",
                "classes, entropy in nats; distance from exact: mean sum of the absolute",
                "differences of class probabilities, 0 to 2. The exact probabilities are judged on",
                "20,000 images, networks on 1,000.",
            ],
            rows,
            judged(rows),
        )


if __name__ == "__main__":
    main()
