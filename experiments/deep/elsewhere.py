"""How certain networks that were trained on digits are of images that are no digits.

    python experiments/deep/elsewhere.py                 # clean digits, one seed: a minute
    python experiments/deep/elsewhere.py --runs FOLDER   # and runs of noisy_digits.py there

Trains on clean digits of 8 x 8 pixels, 1,000 steps, as noisy_digits.py does on noisy ones. Images
from elsewhere are letters A to J and the test digits themselves, mirrored, upside down, turned by
half a circle and reflected across the diagonal. Writes elsewhere.json and RESULTS.md beside this
file.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from gpx_runs import train_or_resume
from noisy_digits import NOISE, folder_for, options
from record import COMMIT, Checks, Rows, argument_parser, earlier, write
from torch import Tensor

from gpx.data import Glyphs
from gpx.data import load as load_data
from gpx.diagnostics.calibration import auroc
from gpx.metrics import entropy
from gpx.options.build import build
from gpx.runs import RunFolder, load

HERE = Path(__file__).resolve().parent
METHODS = ("CNN", "CNN+MCD", "CNN+GP(RF)", "GPDNN")
STEPS = 1000
"""On clean digits, a third of those on noisy ones."""
KINDS = ("letters", "mirrored", "upside down", "turned", "transposed")
SHARES = (0.1, 0.3, 0.5)
"""Of the largest entropy log 10, at which shares of images below are shown."""


def images(kind: str, x: Tensor, noise: float, seed: int) -> Tensor:
    """Of test digits x (n, 64), or letters under the same noise."""
    if kind == "letters":
        letters = Glyphs(num_images=600, noise=noise, split_seed=seed).table().x
        return torch.from_numpy(letters).to(x)
    square = x.view(-1, 8, 8)
    made = {
        "mirrored": lambda: square.flip(2),
        "upside down": lambda: square.flip(1),
        "turned": lambda: square.flip((1, 2)),
        "transposed": lambda: square.mT,
    }
    return made[kind]().reshape(-1, 64)


def rows_of(name: str, seed: int, noise: float, folder: RunFolder, *, calibrated: bool) -> Rows:
    """One row for each kind of images, of the network as it was trained or recalibrated."""
    predictor = load(folder.path)
    data = load_data(build(folder.read_config(), "data"), task="multiclass")
    if not calibrated:
        predictor.calibration = None
    x = data.test_x.float()
    found: Any = predictor.distribution(x)
    own = entropy(found.probs.double())
    rows: Rows = []
    for kind in KINDS:
        law: Any = predictor.distribution(images(kind, x, noise, seed))
        other = entropy(law.probs.double())
        counts = torch.bincount(law.probs.argmax(1), minlength=10)
        row = {
            "noise": noise,
            "images": kind,
            "method": "CNN+CAL" if calibrated else name,
            "seed": seed,
            "ERR": float((found.probs.argmax(1) != data.test_y.long()).double().mean()),
            "AUROC": float(auroc(own, other)),
            "median entropy": float(other.median()),
            "median entropy of digits": float(own.median()),
            "most frequent class": int(counts.argmax()),
            "share of that class": float(counts.max() / counts.sum()),
        }
        for share in SHARES:
            below = share * math.log(10.0)
            row[f"below {share:g} log 10"] = float((other <= below).double().mean())
            row[f"digits below {share:g} log 10"] = float((own <= below).double().mean())
        rows.append({**row, "commit": COMMIT})
    return rows


def judged(rows: Rows) -> Checks:
    """What is asked of clean digits and letters; and of every other kind under noise."""

    def chosen(**wanted: Any) -> Rows:
        return [row for row in rows if all(row[key] == value for key, value in wanted.items())]

    checks: Checks = {}
    for method in ("CNN+MCD", "CNN+GP(RF)"):
        clean = chosen(noise=0.0, images="letters", method=method)
        checks[f"clean digits: letters have an AUROC above 0.7, {method}"] = (
            all(row["AUROC"] > 0.7 for row in clean) if clean else None
        )
    for method in ("CNN", "CNN+CAL", *METHODS[1:]):
        clean = chosen(noise=0.0, images="letters", method=method)
        checks[f"clean digits: fewer letters than digits below every entropy, {method}"] = (
            all(
                row[f"below {share:g} log 10"] < row[f"digits below {share:g} log 10"]
                for row in clean
                for share in SHARES
            )
            if clean
            else None
        )
    for kind in KINDS:
        pairs = [
            (row, plain)
            for row in chosen(noise=NOISE, images=kind, method="CNN+MCD")
            for plain in chosen(noise=NOISE, images=kind, method="CNN", seed=row["seed"])
        ]
        asked = "" if kind == "letters" else "not required: "
        checks[f"{asked}noisy digits, {kind}: AUROC of CNN+MCD above that of CNN"] = (
            all(row["AUROC"] > plain["AUROC"] for row, plain in pairs) if pairs else None
        )
        checks[f"{asked}noisy digits, {kind}: larger median entropy than of digits, CNN+MCD"] = (
            all(row["median entropy"] > row["median entropy of digits"] for row, _ in pairs)
            if pairs
            else None
        )
    return checks


def store(rows: Rows) -> None:
    write(
        HERE,
        "elsewhere",
        "Images that are no digits: whether the entropy shows it",
        [
            "AUROC: how well the entropy separates these images from test digits. Entropies are in",
            "nats; 'below 0.1 log 10' is the share of images with an entropy below that "
            "value. Other",
            "images are letters, and the 599 test digits mirrored, upside down, turned by half a",
            "circle, or transposed (reflected across the diagonal).",
            "",
            "Most transposed digits are classified as 4 with high confidence: their strokes, which",
            "reach the upper and the lower edge, then reach the sides, and a horizontal "
            "bar becomes",
            "a vertical one. To a classifier of ten digits they look like a 4, so that they do not",
            "measure calibration; the other kinds do. A network of rectified linear units does not",
            "represent how far they are from all digits; a Gaussian process with a "
            "stationary kernel",
            "of its features does (GPDNN on clean digits).",
            "",
            "Requirements concern letters; the other kinds are shown beside them.",
        ],
        rows,
        judged(rows),
        hidden=[f"{who}below {share:g} log 10" for share in SHARES[1:] for who in ("", "digits ")],
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=Path, help="folder with runs of noisy_digits.py")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: Rows = earlier(HERE / "elsewhere.json")

    def add(name: str, seed: int, noise: float, folder: RunFolder) -> None:
        rows.extend(rows_of(name, seed, noise, folder, calibrated=False))
        if name == "CNN":
            rows.extend(rows_of(name, seed, noise, folder, calibrated=True))
        store(rows)

    def is_there(name: str, seed: int, noise: float) -> bool:
        wanted = (name, seed, noise)
        return any((row["method"], row["seed"], row["noise"]) == wanted for row in rows)

    for name in METHODS:
        for seed in range(3) if given.runs else ():
            kept = RunFolder(given.runs / f"noisy_digits-{name}-{seed}")
            if kept.metrics.exists() and not is_there(name, seed, NOISE):
                add(name, seed, NOISE, kept)
    for name in METHODS:
        if is_there(name, 0, 0.0):
            continue
        with folder_for(given.runs, f"clean_digits-{name}-0") as folder:
            steps = f"trainer.max_steps={STEPS}"
            train_or_resume([*options(name, 0, False), "data.noise=0", steps], folder)
            add(name, 0, 0.0, folder)


if __name__ == "__main__":
    main()
