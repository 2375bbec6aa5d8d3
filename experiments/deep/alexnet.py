"""Signs of Hadamard matrices against Monte Carlo dropout on top of ALEXNET: errors and parameters.

    python experiments/deep/alexnet.py            # 32 x 32 pixels: 90 minutes on a core
    python experiments/deep/alexnet.py --side 16  # a quarter of that
    python experiments/deep/alexnet.py --full     # all channels, 20,000 steps: for a GPU

Random fields of 10 and 100 classes in three colours, 8,000 to train on and 2,000 to test on, whose
best classifier errs in a tenth and in three tenths of all cases. ALEXNET with a quarter of its
channels, 2,000 steps of Adam on batches of 100. Writes alexnet.json and RESULTS.md beside this
file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from gpx_runs import train_or_resume
from record import COMMIT, Checks, Rows, argument_parser, earlier, write

from gpx.data import load as load_data
from gpx.metrics import evaluate, trivial_law
from gpx.options.build import build
from gpx.runs import RunFolder, load

HERE = Path(__file__).resolve().parent
METHODS = {"CNN+MCD": "cnn_mcd", "CNN+GP(SORF)": "cnn_sorf"}
CLASSES = {10: 0.1, 100: 0.3}
"""Number of classes, and error of the best classifier."""
PUBLISHED = {
    ("CNN+GP(SORF)", 10): (0.172, 0.522, 0.063, 0.250),
    ("CNN+MCD", 10): (0.181, 0.591, 0.110, 0.276),
    ("CNN+GP(SORF)", 100): (0.459, 1.806, 0.127, 0.612),
    ("CNN+MCD", 100): (0.594, 2.434, 0.058, 0.732),
}
"""ERR, MNLL, ECE and Brier score of CIFAR10 and CIFAR100, all channels."""


def measured(name: str, classes: int, side: int, full: bool) -> dict[str, Any]:
    """One training."""
    options = [
        *(f"approx={METHODS[name]}", f"approx.backbone=alexnet{'' if full else '_quarter'}"),
        *("data=fields", "data.num_images=10000", f"data.num_classes={classes}"),
        *(f"data.side={side}", f"data.bayes_error={CLASSES[classes]}"),
        *(f"trainer.max_steps={20_000 if full else 2000}", "trainer.eval_every=0"),
        *("trainer.tensorboard=false", "trainer.figures=false", "trainer.baselines=false"),
        *([] if full else ["trainer.device=cpu"]),
        "trainer.quiet=true",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run")
        seconds = train_or_resume(options, folder)
        predictor = load(folder.path)
        data = load_data(build(folder.read_config(), "data"), task="multiclass")
        parameters = json.loads(folder.metrics.read_text())["model.num_parameters"]
    law: Any = predictor.distribution(data.test_x.float())
    scores = evaluate(
        "multiclass", law, data.test_y, data.scaler, trivial=trivial_law(data.train_y)
    )
    row: dict[str, Any] = {"method": name, "classes": classes, "side": side}
    keys = (("ERR", "accuracy"), ("MNLL", "mnlp"), ("ECE", "ece"), ("Brier", "brier"))
    for (words, key), there in zip(keys, PUBLISHED[name, classes], strict=True):
        row[words] = 1.0 - scores[key] if key == "accuracy" else scores[key]
        row[f"published {words}"] = there
    return {**row, "parameters": parameters, "seconds": seconds, "commit": COMMIT}


def has_learned(row: dict[str, Any]) -> bool:
    """Whether the error is nearer to that of the best classifier than to chance."""
    classes = row["classes"]
    return bool(row["ERR"] < ((1.0 - 1.0 / classes) + CLASSES[classes]) / 2.0)


def judged(rows: Rows) -> Checks:
    """What section 4.4 asks for, of networks that have learned something; the order published."""
    checks: Checks = {}
    for side in (32, *sorted({row["side"] for row in rows} - {32})):
        found = {(row["method"], row["classes"]): row for row in rows if row["side"] == side}
        for classes in CLASSES:
            pair = [found.get((name, classes)) for name in METHODS]
            dropout, signs = pair
            both = dropout is not None and signs is not None
            words = f"{classes} classes, {side} x {side} pixels"
            for name, row in zip(METHODS, pair, strict=True):
                checks[f"{words}: ERR of {name} nearer to the best possible than to chance"] = (
                    row and has_learned(row)
                )
            checks[
                f"{words}: so are both, and ERR of CNN+GP(SORF) at most 0.03 above that of CNN+MCD"
            ] = (
                has_learned(signs) and has_learned(dropout) and signs["ERR"] - dropout["ERR"] < 0.03
                if both
                else None
            )
            checks[f"{words}: CNN+GP(SORF) has fewer parameters than CNN+MCD"] = (
                signs["parameters"] < dropout["parameters"] if both else None
            )
            if both and not (has_learned(signs) and has_learned(dropout)):
                continue  # their order says nothing
            for place, measure in enumerate(("ERR", "MNLL", "ECE", "Brier")):
                there = [PUBLISHED[name, classes][place] for name in METHODS]
                first, last = METHODS if there[0] < there[1] else tuple(METHODS)[::-1]
                checks[f"{words}, as published: {measure} of {first} below that of {last}"] = (
                    found[first, classes][measure] < found[last, classes][measure] if both else None
                )
    return checks


def store(name: str, rows: Rows) -> None:
    write(
        HERE,
        name,
        "Random fields on ALEXNET: signs of Hadamard matrices against dropout",
        [
            "Random fields beside the published figures for CIFAR10 and CIFAR100, which were",
            "measured with all channels. One seed, 8,000 images to train on and 2,000 to test",
            "on; ECE with the mean confidence of 20 bins, Brier score summed over classes.",
            "A row of 16 x 16 pixels takes five and a half minutes of a core.",
            *notes_of_chance(rows),
        ],
        rows,
        judged(rows),
    )


def notes_of_chance(rows: Rows) -> list[str]:
    """Which rows tell nothing of the methods, because hardly anything was learned."""
    return [
        f"{row['method']}, {row['classes']} classes, {row['side']} x {row['side']} pixels: ERR "
        f"{row['ERR']:.3f}, of chance {1.0 - 1.0 / row['classes']:.2f}, of the best classifier "
        f"{CLASSES[row['classes']]:.1f}. Such a row compares nothing."
        for row in rows
        if not has_learned(row)
    ]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--side", type=int, default=32, help="of the images in pixels")
    parser.add_argument("--full", action="store_true", help="all channels, 20,000 steps")
    parser.add_argument("--table", action="store_true", help="write the table of the rows again")
    given = parser.parse_args()
    torch.set_num_threads(1)
    name = "alexnet_full" if given.full else "alexnet"
    rows: Rows = earlier(HERE / f"{name}.json")
    if given.table:
        store(name, rows)
        return
    for classes in CLASSES:
        for method in METHODS:
            key = (method, classes, given.side)
            if any((row["method"], row["classes"], row["side"]) == key for row in rows):
                continue
            rows.append(measured(*key, given.full))
            store(name, rows)


if __name__ == "__main__":
    main()
