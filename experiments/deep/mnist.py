"""Real digits: calibration of networks and of Gaussian processes on them, and letters.

    python experiments/deep/mnist.py                 # one seed: 20 minutes on a core
    python experiments/deep/mnist.py --runs FOLDER   # keep run folders; what is there stays
    python experiments/deep/mnist.py --images all    # as published: an hour a method on a core

By default the 10,000 test images of MNIST, 8,000 to train on and 2,000 to test on. Two convolutions
of 3 x 3 (32 and 64 channels), 256 units or features, batches of 100; networks have 3,000 steps of
Adam, Gaussian processes on their features 1,000 steps of the network and 2,000 of both. With all
images (the files of MNIST are needed) 60,000 are to train on, and the convolutions are the
published ones of 5 x 5. Writes mnist.json or mnist_all.json, and RESULTS.md beside this file.
"""

from __future__ import annotations

import math
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from gpx_runs import train_or_resume
from noisy_digits import folder_for
from record import COMMIT, Checks, Rows, argument_parser, earlier, write
from row_files import locked, merged

from gpx.data import Glyphs
from gpx.data import load as load_data
from gpx.diagnostics.calibration import auroc
from gpx.metrics import entropy, evaluate, trivial_law
from gpx.options.build import build
from gpx.runs import RunFolder, load

HERE = Path(__file__).resolve().parent
METHODS: dict[str, list[str]] = {
    "CNN": ["approx=cnn", "approx.num_features=256"],
    "GPDNN": ["approx=gpdnn", "trainer.max_steps=2000"],
    "GPDNN+MCD": ["approx=gpdnn", "approx.keep=0.5", "trainer.max_steps=2000"],
    "CNN+MCD": ["approx=cnn_mcd", "approx.num_features=256"],
    "CNN+GP(RF)": ["approx=cnn_rf", "approx.num_features=256"],
    "GPDNN, 3,000 pretraining steps": [
        *("approx=gpdnn", "approx.pretrain_steps=3000", "trainer.max_steps=2000"),
    ],
    "GPDNN+MCD, keep 0.9": ["approx=gpdnn", "approx.keep=0.9", "trainer.max_steps=2000"],
    "CNN+GP(RF), frequencies not masked": [
        *("approx=cnn_rf", "approx.num_features=256", "approx.frequencies=point"),
    ],
    "CNN+GP(SORF)": ["approx=cnn_sorf", "approx.num_features=256"],
    "CNN+GP(SORF), kernel learned": [
        *("approx=cnn_sorf", "approx.num_features=256", "approx.learn_kernel=true"),
    ],
}
ALL_METHODS: dict[str, list[str]] = {
    "CNN+GP(SORF)": ["approx=cnn_sorf"],
    "CNN+GP(RF)": ["approx=cnn_rf", "approx.num_features=1024"],
    "GPDNN+MCD": [
        *("approx=gpdnn", "approx.keep=0.5", "objective.num_samples=1", "trainer.max_steps=5000"),
    ],
    "GPDNN+MCD, 40 passes": [
        *("approx=gpdnn", "approx.keep=0.5", "objective.num_samples=1", "trainer.max_steps=23000"),
    ],
    "CNN+GP(RF), frequencies not masked": [
        *("approx=cnn_rf", "approx.num_features=1024", "approx.frequencies=point"),
    ],
    "CNN+MCD": ["approx=cnn_mcd", "approx.num_features=1024"],
    "CNN": ["approx=cnn", "approx.num_features=1024", "calibrate=temperature"],
    "CNN+GP(SORF), 40 passes": ["approx=cnn_sorf", "trainer.max_steps=24000"],
    "CNN+GP(SORF), 80 passes": ["approx=cnn_sorf", "trainer.max_steps=48000"],
    "CNN+GP(RF), 40 passes": [
        *("approx=cnn_rf", "approx.num_features=1024", "trainer.max_steps=24000"),
    ],
}
"""Of all images: 6,000 steps, ten passes over the training images, if nothing else is said."""
PUBLISHED = {
    "CNN+GP(RF)": (0.005, 0.014, 0.004, 0.0071),
    "GPDNN+MCD": (0.005, 0.019, 0.005, 0.008),
    "CNN+GP(SORF)": (0.006, 0.018, 0.002, 0.009),
    "CNN+GP(SORF), kernel learned": (0.005, 0.018, 0.003, 0.008),
}
"""``MEASURES`` of all 60,000 training images, on all test images (tables 3.3 and 3.4)."""
PUBLISHED |= {
    f"{method}, {passes} passes": PUBLISHED[method]
    for method, passes in (
        *(("CNN+GP(RF)", 40), ("GPDNN+MCD", 40)),
        *(("CNN+GP(SORF)", 40), ("CNN+GP(SORF)", 80)),
    )
}
MEASURES = ("ERR", "MNLL", "ECE", "Brier")
ACCEPTED = {"ERR": "within 0.02", "MNLL": "within a tenth", "ECE": "within 0.02"}
OTHERS = ("GPDNN", "GPDNN+MCD")
"""Than which the source finds CNN+GP(RF) better, or as good."""
SHARES = (0.1, 0.3, 0.5)
"""Of the largest entropy log 10, at which shares of images below are compared."""


class Study(NamedTuple):
    """Methods on one choice of images, and the table of their results."""

    data: list[str]
    methods: dict[str, list[str]]
    table: str
    title: str
    notes: list[str]
    required: str
    """First words of the checks of published figures."""

    def options(self, method: str) -> list[str]:
        """Of one run."""
        return [
            *(*self.data, *self.methods[method], "trainer.eval_every=0", "trainer.device=cpu"),
            *("trainer.tensorboard=false", "trainer.figures=false", "trainer.baselines=false"),
            "trainer.quiet=true",
        ]


MEANING = [
    "ECE with the mean confidence of 20 bins, Brier score summed over classes, entropy in nats.",
]
STUDIES = {
    "test": Study(
        [
            *("data=mnist10k", "data.test_fraction=0.2", "calibrate=temperature"),
            "trainer.max_steps=3000",
        ],
        METHODS,
        "mnist",
        "MNIST: Gaussian processes on features, masks of filters, and letters",
        [
            "One seed, 8,000 images to train on and 2,000 to test on. Published figures are of",
            "60,000 images, networks of 5 x 5 filters and six hours of training.",
            *MEANING,
            "",
            "Processor seconds of whole runs do not compare methods: rows were measured at other",
            "times on shared cores. Side by side, a step of CNN took 46 ms, one of CNN+MCD 49.",
        ],
        "not required of so few images",
    ),
    "all": Study(
        ["data=mnist", "data.subset=all", "approx.backbone=lenet_mnist", "trainer.max_steps=6000"],
        ALL_METHODS,
        "mnist_all",
        "MNIST, all images",
        [
            "One seed, 60,000 images to train on and 10,000 to test on, convolutions as published.",
            "6,000 steps of 100 images, ten passes over the data (published: six hours of a GPU),",
            "of GPDNN+MCD 1,000 of the network and 5,000 of both, with one draw a step. Runs of 40",
            "and 80 passes of CNN+GP are those of ten, resumed. CNN+GP(RF) has 1,024 random",
            "features for the published 4,096.",
            *MEANING,
        ],
        "section 4.2",
    ),
}


def measured(study: Study, name: str, folder: RunFolder) -> Rows:
    """One training; a row as it is, and one recalibrated of the plain network."""
    seconds = train_or_resume(study.options(name), folder)
    predictor = load(folder.path)
    data = load_data(build(folder.read_config(), "data"), task="multiclass")
    x = data.test_x.float()
    letters = torch.from_numpy(Glyphs(num_images=600, side=28).table().x).to(x)
    rows: Rows = []
    calibration = predictor.calibration
    for words, used in ((name, None), *([("CNN+CAL", calibration)] if name == "CNN" else [])):
        predictor.calibration = used
        law: Any = predictor.distribution(x)
        other: Any = predictor.distribution(letters)
        scores = evaluate(
            "multiclass", law, data.test_y, data.scaler, trivial=trivial_law(data.train_y)
        )
        own, foreign = entropy(law.probs.double()), entropy(other.probs.double())
        row = {
            "method": words,
            "ERR": 1.0 - scores["accuracy"],
            "MNLL": scores["mnlp"],
            "ECE": scores["ece"],
            "Brier": scores["brier"],
            "confidence less accuracy": float(law.probs.max(1).values.mean()) - scores["accuracy"],
            "median entropy": float(own.median()),
            "median entropy, letters": float(foreign.median()),
            "AUROC, letters": float(auroc(own, foreign)),
        }
        for share in SHARES:
            below = share * math.log(10.0)
            row[f"letters below {share:g} log 10"] = float((foreign <= below).double().mean())
            row[f"digits below {share:g} log 10"] = float((own <= below).double().mean())
        rows.append({**row, "seconds": seconds, "commit": COMMIT})
    return rows


def is_accepted(row: dict[str, Any], measure: str) -> bool:
    """Whether a measure is as near to the published one as section 4.2 asks of all images."""
    there = row[f"published {measure}"]
    return bool(abs(row[measure] - there) <= (0.1 * there if measure == "MNLL" else 0.02))


def judged(study: Study, rows: Rows) -> Checks:
    """What sections 4.2 and 4.4 ask of these images."""
    found = {row["method"]: row for row in rows}

    def holds(*methods: str, of: Any) -> bool | None:
        return bool(of(*(found[m] for m in methods))) if set(methods) <= set(found) else None

    checks: Checks = {
        "masks of filters lower the ECE or the MNLL of GPDNN": holds(
            *("GPDNN+MCD", "GPDNN"),
            of=lambda own, plain: own["ECE"] < plain["ECE"] or own["MNLL"] < plain["MNLL"],
        )
    }
    for other in OTHERS:
        for measure in MEASURES:
            checks[f"as published: {measure} of CNN+GP(RF) at most that of {other}"] = holds(
                *("CNN+GP(RF)", other), of=lambda own, its, k=measure: own[k] <= its[k]
            )
    for method in [m for m in PUBLISHED if m in study.methods]:
        for measure, within in ACCEPTED.items():
            checks[f"{study.required}: {measure} of {method} {within} as published"] = holds(
                method, of=lambda row, k=measure: is_accepted(row, k)
            )
    learned = "CNN+GP(SORF), kernel learned"
    checks[f"ERR of {learned} within 0.03 of that of CNN+GP(SORF)"] = holds(
        *(learned, "CNN+GP(SORF)"), of=lambda own, its: abs(own["ERR"] - its["ERR"]) < 0.03
    )
    checks[
        "GPDNN of a network pretrained as long as CNN has a smaller ERR than with 1,000 steps"
    ] = holds(
        *("GPDNN, 3,000 pretraining steps", "GPDNN"), of=lambda own, its: own["ERR"] < its["ERR"]
    )
    checks["fewer masks lower the ECE or the MNLL of GPDNN"] = holds(
        *("GPDNN+MCD, keep 0.9", "GPDNN"),
        of=lambda own, plain: own["ECE"] < plain["ECE"] or own["MNLL"] < plain["MNLL"],
    )
    for method in ("CNN+MCD", "CNN+GP(RF)"):
        checks[f"letters have an AUROC above 0.7, {method}"] = holds(
            method, of=lambda row: row["AUROC, letters"] > 0.7
        )
        checks[f"letters: larger median entropy of {method} than of CNN"] = holds(
            *(method, "CNN"),
            of=lambda own, plain: own["median entropy, letters"] > plain["median entropy, letters"],
        )
    for method in (*METHODS, *(m for m in ALL_METHODS if m not in METHODS), "CNN+CAL"):
        checks[f"fewer letters than digits below every entropy, {method}"] = holds(
            method,
            of=lambda row: all(
                row[f"letters below {share:g} log 10"] < row[f"digits below {share:g} log 10"]
                for share in SHARES
            ),
        )
    return checks


def published(row: dict[str, Any]) -> dict[str, Any]:
    """The row, with what the source has beside each measure."""
    there = PUBLISHED.get(row["method"], (None,) * len(MEASURES))
    beside = {f"published {m}": value for m, value in zip(MEASURES, there, strict=True)}
    first = {key: row[key] for key in ("method", *MEASURES)}
    return first | beside | {key: value for key, value in row.items() if key not in first}


def store(study: Study, rows: Rows) -> None:
    rows = [published(row) for row in rows]
    checks = judged(study, rows)
    if study.methods is not METHODS:  # checks of methods that are not part of it
        checks = {words: found for words, found in checks.items() if found is not None}
    write(HERE, study.table, study.title, study.notes, rows, checks)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--images", choices=STUDIES, default="test")
    parser.add_argument("--runs", type=Path, help="folder for run folders that are kept")
    parser.add_argument("--only", nargs="*", help="methods to train; none: table")
    given = parser.parse_args()
    study = STUDIES[given.images]
    names = list(study.methods) if given.only is None else given.only
    if unknown := set(names) - set(study.methods):
        parser.error(f"--only {', '.join(unknown)}: expected some of {', '.join(study.methods)}")
    torch.set_num_threads(1)
    file = HERE / f"{study.table}.json"
    with locked(HERE):
        rows: Rows = earlier(file)
        if rows:
            store(study, rows)  # other notes and checks beside the rows of before
    for name in names:
        if any(row["method"] == name for row in rows):
            continue
        with folder_for(given.runs, f"{study.table}-{name}") as folder:
            new = measured(study, name, folder)
        with locked(HERE):
            rows = merged(earlier(file), new, itemgetter("method"))
            store(study, rows)


if __name__ == "__main__":
    main()
