"""Discrete weights on the UCI regression sets, mean field (table 7.1).

    python experiments/direct/uci.py --data servo yacht --splits 0 1 2
    python experiments/direct/uci.py --quick                     # two sets, one fold
    python experiments/direct/uci.py --table                     # only write the table again

Protocol (Evans thesis, section 7.6): published 10-fold splits, squared exponential with one
lengthscale per input fitted as an exact GP to min(n, 1000) rows and kept, 2000 random Fourier
features, 15 values to three prior deviations, noise variance of that fit, L-BFGS for 1000
evaluations. Beside it, in the same row: the exact posterior of Gaussian weights on the same
functions, SGPR, a linear and a nearest-neighbour model. Folds that have a row are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import COMMIT, tally, write

from gpx.bases.sufficient_statistics import FittedWeights
from gpx.data import load as load_data
from gpx.errors import GPXError
from gpx.models import Direct
from gpx.training import RunFolder, load, run
from gpx.training.build import build, build_model
from gpx.training.checkpoint import load_checkpoint
from gpx.training.composition import composed

HERE = Path(__file__).resolve().parent
FOLDS = HERE / "uci_folds.jsonl"
PUBLISHED = {
    # set: rows, inputs, REPARAM's RMSE, DIRECT's RMSE and its deviation, sparsity in percent
    "challenger": (23, 4, 0.515, 0.523, 0.248, 17),
    "fertility": (100, 9, 0.161, 0.159, 0.041, 17),
    "automobile": (159, 25, 0.425, 0.129, 0.063, 51),
    "servo": (167, 4, 0.524, 0.271, 0.08, 35),
    "cancer": (194, 33, 27.488, 22.954, 3.09, 19),
    "hardware": (209, 7, 1.796, 0.401, 0.048, 51),
    "yacht": (308, 6, 0.815, 0.234, 0.07, 96),
    "autompg": (392, 7, 4.05, 2.564, 0.363, 31),
    "housing": (506, 13, 3.014, 2.752, 0.405, 40),
    "forest": (517, 12, 1.378, 1.363, 0.15, 17),
    "stock": (536, 11, 0.751, 0.011, 0.003, 98),
    "pendulum": (630, 9, 1.465, 1.329, 0.282, 68),
    "energy": (768, 8, 78.852, 3.272, 0.332, 99),
    "concrete": (1030, 8, 10.347, 5.316, 0.716, 82),
    "solar": (1066, 10, 0.902, 0.787, 0.192, 23),
    "airfoil": (1503, 5, 2.071, 2.175, 0.349, 48),
    "wine": (1599, 11, 0.939, 0.472, 0.044, 54),
    "gas": (2565, 128, 0.27, 0.211, 0.058, 84),
    "skillcraft": (3338, 19, 0.273, 0.253, 0.016, 97),
    "sml": (4137, 26, 0.327, 0.677, 0.044, 57),
    "parkinsons": (5875, 20, 0.158, 0.651, 0.034, 13),
    "poletele": (15000, 26, 12.487, 13.65, 0.348, 16),
    "elevators": (16599, 18, 0.247, 0.124, 0.003, 99),
}
"""Sets with up to 20,000 rows, which the reproduction is judged on."""

MANY = 15
"""Inputs beyond which lengthscales start at the square root of their number, not at one."""

PLAIN = ["trainer.eval_every=0", "trainer.figures=false", "trainer.tensorboard=false"]


def fold(name: str, split: int, functions: int) -> dict[str, Any]:
    """Train and test one fold."""
    inputs = PUBLISHED[name][1]
    # in many dimensions a lengthscale of one leaves the kernel matrix diagonal, without a gradient
    lengthscale = round(math.sqrt(inputs), 2) if inputs > MANY else 1.0
    common = [f"data={name}", f"data.split={split}", f"kernel.lengthscale={lengthscale}", *PLAIN]
    config = composed([*common, "approx=direct", f"approx.num_basis={functions}"])
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        began = time.process_time()
        metrics = run(config, folder)
        seconds = time.process_time() - began
        gaussian = gaussian_rmse(folder)
        inducing = min(200, PUBLISHED[name][0] // 2)
        sparse = [f"approx.num_inducing={inducing}", "trainer.max_steps=60"]
        other = composed([*common, "approx=sgpr", *sparse, "trainer.baselines=false"])
        sgpr = run(other, RunFolder(Path(place) / "sgpr"))["test.rmse_original"]
    return {
        "data": name,
        "split": split,
        "functions": functions,
        "rmse": metrics["test.rmse_original"],
        "mnlp": metrics["test.mnlp"],
        "sparsity": 100.0 * metrics["predict.sparsity"],
        "bound": metrics["train.evidence"],
        "sweep_gain": metrics["train.sweep_gain"],
        "evaluations": metrics["train.steps"],
        "optimisation": metrics["train.seconds"],
        "seconds": seconds,
        "gaussian": gaussian,
        "sgpr": sgpr,
        "linear": metrics["baseline.linear.rmse_original"],
        "neighbours": metrics["baseline.5-nn.rmse_original"],
        "trivial": metrics["baseline.mean.rmse_original"],
        "num_threads": torch.get_num_threads(),
        "commit": COMMIT,
    }


@torch.no_grad()
def gaussian_rmse(folder: RunFolder) -> float:
    """Test RMSE of Gaussian weights on the same functions, whose posterior is exact."""
    config = folder.read_config()
    model = build_model(config).double()
    assert isinstance(model, Direct)
    model.load_state_dict(load_checkpoint(folder.checkpoint, torch.device("cpu"))["model"])
    data = load_data(build(config, "data"), task="regression")
    unit = torch.ones_like(model.scale)
    noise = model.likelihood.noise_variance.double()
    weights = model.scale * FittedWeights(model.statistics, unit, noise).mean
    x = data.test_x.double()
    found = model.mean(x) + model.basis(x) @ weights
    assert torch.equal(load(folder.path).scaler.target_scale, data.scaler.target_scale)
    return float((found - data.test_y).square().mean().sqrt() * data.scaler.target_scale)


KEY = ("data", "split", "functions")


def read() -> list[dict[str, Any]]:
    """Folds that are done."""
    if not FOLDS.exists():
        return []
    return [json.loads(line) for line in FOLDS.read_text().splitlines()]


def table() -> None:
    """Means over folds beside the published ones."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in read():
        groups[row["data"], row["functions"]].append(row)
    order = list(PUBLISHED)
    rows, near, sparse, partial, beaten = [], {}, {}, [], []
    for name, functions in sorted(groups, key=lambda key: (order.index(key[0]), key[1])):
        folds = groups[name, functions]
        n, d, reparam, published, spread, zeros = PUBLISHED[name]

        def mean(key: str, folds: list[dict[str, Any]] = folds) -> float:
            return statistics.fmean(f[key] for f in folds)

        near[name] = mean("rmse") <= published + max(0.15 * published, spread)
        sparse[name] = abs(mean("sparsity") - zeros) <= 10.0
        if len(folds) < 10:
            partial.append(f"{name} ({len(folds)})")
        if mean("rmse") > min(mean("linear"), mean("neighbours"), mean("trivial")):
            beaten.append(name)
        rows.append(
            {
                "data": name,
                "n": n,
                "d": d,
                "folds": len(folds),
                "RMSE": mean("rmse"),
                "std": statistics.stdev(f["rmse"] for f in folds) if len(folds) > 1 else None,
                "published": published,
                "published std": spread,
                "within": "yes" if near[name] else "no",
                "Gaussian weights": mean("gaussian"),
                "SGPR": mean("sgpr"),
                "linear": mean("linear"),
                "5-nn": mean("neighbours"),
                "trivial": mean("trivial"),
                "published REPARAM": reparam,
                "zeros, %": mean("sparsity"),
                "published zeros, %": zeros,
                "MNLP": mean("mnlp"),
                "a sweep adds, nats": mean("sweep_gain"),
                "evaluations": mean("evaluations"),
                "optimisation, s": mean("optimisation"),
                "seconds a fold": mean("seconds"),
                "commit": tally(folds),
            }
        )
    notes = [
        "Published: Evans thesis, table 7.1 (mean field by L-BFGS; REPARAM: a Gaussian q over the "
        "same weights by sampled gradients, which was not run here).",
        "Gaussian weights: the exact posterior on the same functions under the Gaussian prior, "
        "which discrete weights relax. SGPR: up to 200 inducing points, 60 evaluations. Linear, "
        "5-nn and trivial (the mean of the training targets): baselines.",
        "Within: mean RMSE at most max(15 %, one published standard deviation) above the published."
        " Zeros: expected share in a draw of the weights. MNLP of standardised targets.",
        "A sweep adds: what one sweep of coordinate ascent would still add to the bound.",
        "The published protocol has ten folds, whose means differ from those of fewer. Fewer here: "
        f"{', '.join(partial) or 'none'}.",
        "Optimisation: wall-clock seconds of the L-BFGS evaluations. Seconds a fold: of the "
        "processor, one thread, the exact GP of the start and predictions included, SGPR not.",
    ]
    matched = sum(sparse.values())
    checks: dict[str, bool | None] = {
        f"RMSE within max(15 %, one published standard deviation) on {sum(near.values())} of "
        f"{len(near)} sets run, of {len(PUBLISHED)} with up to 20,000 rows (outside: "
        f"{', '.join(k for k, v in near.items() if not v) or 'none'})": all(near.values())
        and len(near) == len(PUBLISHED),
        f"zeros within 10 points on {matched} of {len(sparse)} sets run, three quarters wanted "
        f"(outside: {', '.join(k for k, v in sparse.items() if not v) or 'none'})": (
            matched >= 0.75 * len(sparse)
        ),
        f"no set is worse than a baseline ({', '.join(beaten) or 'none'})": not beaten,
    }
    write(HERE, "uci", "UCI regression, mean field", notes, rows, checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two sets, one fold")
    parser.add_argument("--data", nargs="*", choices=[*PUBLISHED], default=list(PUBLISHED))
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--functions", type=int, default=2000)
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    names, splits = options.data, options.splits
    if options.quick:
        names, splits = ["challenger", "servo"], [0]
    done = {tuple(row[k] for k in KEY) for row in read()}
    for split in [] if options.table else splits:
        for name in names:
            if (name, split, options.functions) in done:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("default")
                    row = fold(name, split, options.functions)
            except GPXError as error:
                print(f"{name} split {split}: {error}")
                continue
            with FOLDS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            shown = ("data", "split", "rmse", "gaussian", "sgpr", "linear", "sparsity", "seconds")
            print({k: row[k] for k in shown}, flush=True)
    table()


if __name__ == "__main__":
    main()
