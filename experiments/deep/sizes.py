"""Calibration by the number of training images, on noisy digits and on MNIST.

    python experiments/deep/sizes.py                        # 40 minutes on a core
    python experiments/deep/sizes.py --only "noisy digits"  # a quarter of that

An eighth, a quarter, half and all of the training images, classes balanced; three seeds of noisy
digits and one of MNIST; a sixth of the images is held out for recalibration. Networks, steps and
judgement of ``noisy_digits.py``, whose rows are those of all noisy digits. Runs that have a row are
not repeated. Writes sizes.json, sizes.png, entropies.png and RESULTS.md beside this file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from matplotlib.figure import Figure
from noisy_digits import BINS, ENTROPIES, LEVELS, measured
from record import Checks, Rows, argument_parser, earlier, write
from row_files import locked, merged

from gpx.runs import RunFolder
from gpx.runs.figures.predictions import TRUTH

HERE = Path(__file__).resolve().parent
METHODS = ("CNN", "CNN+MCD", "CNN+GP(RF)", "GPDNN")
SHOWN = ("CNN", "CNN+CAL", *METHODS[1:])
DIGITS, MNIST = "noisy digits", "MNIST"
SIZES = {DIGITS: (150, 300, 600, 1198), MNIST: (1000, 2000, 4000, 8000)}
"""Images to train on and to recalibrate with."""
OPTIONS = {DIGITS: (), MNIST: ("data=mnist10k", "data.noise=0", "data.test_fraction=0.2")}
SEEDS = {DIGITS: 3, MNIST: 1}
MEASURES = ("ERR", "MNLL", "ECE", "MCE", "Brier", "entropy", "confidence", "AUROC, letters")
BETWEEN = (4, 20)
"""First and last of the ``LEVELS`` that letters are judged at: a tenth and half of log 10."""
LETTERS = (
    "The other figure is the distribution of the entropies of test digits and of letters A to J,",
    "which networks of digits have never seen (published: figure 3.5, of 60,000 digits and other",
    "letters); checks compare them between a tenth and half of log 10.",
)
FEWEST = 10
"""Images that a point of the figure stands for at least."""
Key = tuple[str, int, int]
"""Data, images, seed."""


def trained_on(key: Key, method: str) -> Rows:
    """Rows of one training, or those of all noisy digits."""
    data, size, seed = key
    if key[:2] == (DIGITS, SIZES[DIGITS][-1]):
        rows = earlier(HERE / "noisy_digits.json")["each run"]
        wanted = (method, "CNN+CAL") if method == "CNN" else (method,)
        found = [row for row in rows if row["method"] in wanted and row["seed"] == seed]
    else:
        subset = () if size == SIZES[data][-1] else (f"data.train_size={size}",)
        features = "approx.num_features=256"  # of noisy digits as many are the default
        wide = (features,) if data == MNIST and method != "GPDNN" else ()
        with tempfile.TemporaryDirectory() as temporary:
            folder = RunFolder(Path(temporary) / "run")
            rows = measured(method, seed, False, folder, *OPTIONS[data], *subset, *wide)
        found = [row for row in rows if row["method"] in SHOWN]
    return [
        {"data": data, "N": size, "method": row["method"], "seed": seed}
        | {measure: row[measure] for measure in MEASURES}
        | {"seconds": row["seconds"], BINS: row.get(BINS), ENTROPIES: row.get(ENTROPIES)}
        | {"commit": row["commit"]}
        for row in found
    ]


def judged(rows: Rows) -> Checks:
    """What section 4.4 asks for, at every size and every seed that is there."""
    found: dict[Key, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["data"], row["N"], row["seed"]), {})[row["method"]] = row
    checks: Checks = {}
    for data, sizes in SIZES.items():
        for size in sizes:
            each = [by_method for key, by_method in found.items() if key[:2] == (data, size)]
            if not each:
                checks[f"{data}, {size:,} images"] = None
                continue

            def holds(*methods: str, of: Callable[..., bool], each: Any = each) -> bool | None:
                whole = [one for one in each if set(methods) <= set(one)]
                return all(of(*(one[m] for m in methods)) for one in whole) if whole else None

            words = f"{data}, {size:,} images: "
            for method in ("CNN+MCD", "CNN+GP(RF)"):
                for measure in ("MNLL", "Brier", "ECE"):
                    checks[f"{words}{measure} of {method} below that of CNN"] = holds(
                        *(method, "CNN"), of=lambda own, plain, k=measure: own[k] < plain[k]
                    )
                checks[f"{words}{method} is not over-confident"] = holds(
                    method, of=lambda own: own["confidence"] <= 1.0 - own["ERR"]
                )
            checks[f"{words}CNN is over-confident"] = holds(
                "CNN", of=lambda own: own["confidence"] > 1.0 - own["ERR"]
            )
            checks[f"{words}CNN+CAL has the ERR of CNN"] = holds(
                *("CNN+CAL", "CNN"), of=lambda own, plain: own["ERR"] == plain["ERR"]
            )
    return checks


def judged_letters(rows: Rows) -> Checks:
    """Whether letters are less certain than digits, and masks leave fewer certain letters."""
    shares = {row["method"]: row[ENTROPIES] for row in rows}
    words = f"letters beside {rows[0]['N']:,} digits of MNIST" if rows else "letters beside MNIST"
    least, most = BETWEEN
    asked = slice(least, most + 1)
    checks: Checks = {}
    for method in SHOWN:
        own = shares.get(method)
        checks[f"{words}: fewer letters than digits below every entropy, {method}"] = own and all(
            letters < digits
            for letters, digits in zip(own["letters"][asked], own["digits"][asked], strict=True)
        )
    for method in ("CNN+MCD", "CNN+GP(RF)", "GPDNN"):
        both = shares.keys() >= {method, "CNN+CAL"}
        checks[f"{words}, as published: fewer below every entropy by {method} than by CNN+CAL"] = (
            all(
                ours < theirs
                for ours, theirs in zip(
                    *(shares[name]["letters"][asked] for name in (method, "CNN+CAL")), strict=True
                )
            )
            if both
            else None
        )
    return checks


def draw(rows: Rows) -> None:
    """Reliability curves of seed 0: a panel for each data set and size."""
    there = {row["data"] for row in rows}
    drawn = {data: sizes for data, sizes in SIZES.items() if data in there}
    figure = Figure(figsize=(11.0, 3.0 * len(drawn)), layout="constrained")
    axes = figure.subplots(len(drawn), 4, sharex=True, sharey=True, squeeze=False)
    for line, (data, sizes) in zip(axes, drawn.items(), strict=True):
        for axis, size in zip(line, sizes, strict=True):
            if not any((row["data"], row["N"]) == (data, size) for row in rows):
                axis.set_visible(False)  # not run
                continue
            for place, method in enumerate(SHOWN):
                wanted = (data, size, method, 0)
                for row in rows:
                    if (row["data"], row["N"], row["method"], row["seed"]) != wanted:
                        continue
                    if row[BINS] is None:
                        continue
                    counts, accuracy, confidence = torch.tensor(row[BINS], dtype=torch.float64)
                    enough = counts >= FEWEST
                    axis.plot(
                        *(confidence[enough], accuracy[enough], "o-"),
                        color=f"C{place}",
                        markersize=3,
                        label=method,
                    )
            axis.plot([0.0, 1.0], [0.0, 1.0], color=TRUTH, linewidth=1.0)
            axis.set_title(f"{data}, {size:,} images", fontsize="small")
    for axis in axes[-1]:
        axis.set_xlabel("mean probability of the predicted class", fontsize="small")
    for axis in axes[:, 0]:
        axis.set_ylabel("share correct", fontsize="small")
    axes[0, 0].legend(fontsize="x-small", loc="upper left")
    figure.savefig(HERE / "sizes.png", dpi=90)


def draw_entropies(rows: Rows) -> None:
    """How many images have at most an entropy: digits of MNIST and letters, each method."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axis, kind in zip(figure.subplots(1, 2, sharey=True), ("digits", "letters"), strict=True):
        for place, method in enumerate(SHOWN):
            for row in rows:
                if row["method"] == method:
                    axis.plot(LEVELS, row[ENTROPIES][kind], color=f"C{place}", label=method)
        axis.set_xlabel("entropy in nats", fontsize="small")
        axis.set_title(f"{kind}, trained on {rows[0]['N']:,} digits", fontsize="small")
        axis.set_ylim(0.0, 1.02)
    figure.axes[0].set_ylabel("share of images with at most that", fontsize="small")
    figure.axes[0].legend(fontsize="x-small", loc="lower right")
    figure.savefig(HERE / "entropies.png", dpi=90)


def of_letters(rows: Rows) -> Rows:
    """Rows of the most images of MNIST of which most methods hold the entropies of letters."""
    there = [row for row in rows if row["data"] == MNIST and row.get(ENTROPIES) is not None]
    sizes = {row["N"] for row in there}
    return max(
        ([row for row in there if row["N"] == size] for size in sorted(sizes, reverse=True)),
        key=len,
        default=[],
    )


def store(rows: Rows) -> None:
    """Write table and figures, where there is a row."""
    if not rows:
        return
    draw(rows)
    letters = of_letters(rows)
    if letters:
        draw_entropies(letters)
    write(
        HERE,
        "sizes",
        "By the number of training images: noisy digits and MNIST",
        [
            "N is the number of images, of which a sixth is held out for recalibration. The number",
            "of steps is the same at every N. ECE with the mean confidence of 20 bins, Brier score",
            "summed over classes, entropy in nats. A check passes if it holds at every seed. The",
            f"figure shows seed 0, bins of at least {FEWEST} test images.",
            *(["", *LETTERS] if letters else []),
        ],
        rows,
        judged(rows) | judged_letters(letters),
        hidden=[BINS, ENTROPIES],
        pictures=["sizes.png", *(["entropies.png"] if letters else [])],
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", choices=SIZES, help="data to train on")
    parser.add_argument("--size", type=int, nargs="+", help="numbers of images; default: all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with locked(HERE):
        rows: Rows = earlier(HERE / "sizes.json")
        store(rows)  # other notes and checks beside the rows of before
    keys: list[Key] = [
        (data, size, seed)
        for seed in range(max(SEEDS.values()))
        for data, sizes in SIZES.items()
        if seed < SEEDS[data] and given.only in (None, data)
        for size in sizes
        if given.size is None or size in given.size
    ]
    asked = [(key, method) for key in keys for method in METHODS if method != "GPDNN"]
    for key, method in (*asked, *((key, "GPDNN") for key in keys)):
        if any((r["data"], r["N"], r["seed"], r["method"]) == (*key, method) for r in rows):
            continue
        new = trained_on(key, method)
        with locked(HERE):
            kept = earlier(HERE / "sizes.json")
            rows = merged(kept, new, itemgetter("data", "N", "method", "seed"))
            store(rows)


if __name__ == "__main__":
    main()
