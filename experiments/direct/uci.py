"""Discrete weights on the UCI regression sets (tables 7.1 and 7.2).

    python experiments/direct/uci.py --data servo yacht --splits 0 1 2
    python experiments/direct/uci.py --method mixture --splits 0      # table 7.2
    python experiments/direct/uci.py --method reparam --splits 0      # the comparator
    python experiments/direct/uci.py --method plain --splits 0        # L-BFGS without restarts
    python experiments/direct/uci.py --method annealed --splits 0     # the default of approx=direct
    python experiments/direct/uci.py --start whole_set --method plain # as published, see below
    python experiments/direct/uci.py --start parsimonious             # another start of the kernel
    python experiments/direct/uci.py --quick                     # two sets, one fold
    python experiments/direct/uci.py --table                     # only write the tables again

Protocol (Evans thesis, section 7.6): published 10-fold splits, squared exponential with one
lengthscale per input fitted as an exact GP to min(n, 1000) rows and kept, 2000 random Fourier
features, 15 values to three prior deviations, noise variance of that fit, L-BFGS for 1000
evaluations. Beside it, in the same row: the exact posterior of Gaussian weights on the same
functions, SGPR, a linear and a nearest-neighbour model. Table 7.2 has a mixture of five with a
bounded entropy, REPARAM is in ``reparam.py``. Folds that have a row are not repeated.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import COMMIT, tally, write
from reparam import reparam_means
from whole_set import FTOL, scaler_of, whole_set_kernel

from gpx.bases.sufficient_statistics import FittedWeights
from gpx.data import load as load_data
from gpx.errors import GPXError
from gpx.models import Direct
from gpx.options.build import build, build_model
from gpx.options.composition import composed
from gpx.runs import RunFolder, load, run
from gpx.training.checkpoint import load_checkpoint

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

PUBLISHED_MIXTURE = {
    # set: RMSE, its deviation and sparsity in percent of five components by the entropy bound
    "challenger": (0.528, 0.243, 16),
    "fertility": (0.16, 0.04, 16),
    "automobile": (0.137, 0.053, 47),
    "servo": (0.282, 0.067, 32),
    "cancer": (23.344, 3.414, 18),
    "hardware": (0.492, 0.117, 46),
    "yacht": (0.23, 0.077, 96),
    "autompg": (2.624, 0.339, 29),
    "housing": (2.782, 0.324, 37),
    "forest": (1.361, 0.159, 16),
    "stock": (0.011, 0.002, 98),
    "pendulum": (1.36, 0.227, 68),
    "energy": (3.116, 0.218, 99),
    "concrete": (5.571, 0.665, 81),
    "solar": (0.799, 0.192, 22),
    "airfoil": (2.175, 0.32, 46),
    "wine": (0.486, 0.047, 50),
    "gas": (0.204, 0.053, 84),
    "skillcraft": (0.253, 0.017, 97),
    "sml": (0.675, 0.044, 57),
    "parkinsons": (0.642, 0.06, 13),
    "poletele": (13.728, 0.447, 16),
    "elevators": (0.124, 0.003, 99),
}

MANY = 15
"""Inputs beyond which lengthscales start at the square root of their number, not at one."""

FUNCTIONS = 2000

METHODS = ("mean_field", "mixture", "reparam", "plain", "annealed")

STARTS = {
    "subset": "training rows",
    "whole_set": "as published",
    "whole_set_root": "whole set, root",
    "parsimonious": "one lengthscale",
    "noisy": "noise of one",
}
"""Of the kernel, and its name in the table."""

PLAIN = ["trainer.eval_every=0", "trainer.figures=false", "trainer.tensorboard=false"]


Means = Callable[[Direct, torch.Tensor, torch.Tensor], torch.Tensor]
"""Model, inputs and targets -> means of the weights."""

AT_PRIOR = "approx.anneal=0"
"""The published start of q."""

MIXTURE_STEPS = 200
"""Evaluations of the bound of a mixture."""


def common_options(name: str, split: int, start: str) -> list[str]:
    """Of every method on a fold."""
    inputs = PUBLISHED[name][1]
    # in many dimensions a lengthscale of one leaves the kernel matrix diagonal, without a gradient
    lengthscale = round(math.sqrt(inputs), 2) if inputs > MANY else 1.0
    chosen = [f"data={name}", f"data.split={split}", *PLAIN]
    if start.startswith("whole_set"):
        found = whole_set_kernel(name).options(scaler_of(name, split), start == "whole_set")
        return [*chosen, *found, f"optimizer.ftol={FTOL}"]
    chosen.append(f"kernel.lengthscale={lengthscale}")
    if start == "noisy":  # the exact GP from the noise variance that explains everything
        return [*chosen, "init=subset", "likelihood.noise_variance=1"]
    return [*chosen, f"init={start}"]


def fold(name: str, split: int, functions: int, method: str, start: str) -> dict[str, Any]:
    """Train and test one fold."""
    common = common_options(name, split, start)
    row: dict[str, Any] = {
        "data": name,
        "split": split,
        "functions": functions,
        "method": method,
        "start": start,
    }
    kinds = {
        "mean_field": mean_field,
        "mixture": mixture,
        "reparam": reparam,
        "plain": partial(searched, search=[AT_PRIOR, "approx.restarts=0"]),
        "annealed": partial(searched, search=[]),
    }
    made = kinds[method]
    with tempfile.TemporaryDirectory() as place:
        row |= made(common, name, functions, Path(place))
    return row | {"num_threads": torch.get_num_threads(), "commit": COMMIT}


def mean_field(common: list[str], name: str, functions: int, place: Path) -> dict[str, Any]:
    """Independent weights by L-BFGS, and in the same row what they are compared with."""
    config = composed([*common, "approx=direct", AT_PRIOR, f"approx.num_basis={functions}"])
    folder = RunFolder(place / "run")
    began = time.process_time()
    metrics = run(config, folder)
    seconds = time.process_time() - began
    gaussian = gaussian_rmse(folder)
    inducing = min(200, PUBLISHED[name][0] // 2)
    sparse = [f"approx.num_inducing={inducing}", "trainer.max_steps=60"]
    other = composed([*common, "approx=sgpr", *sparse, "trainer.baselines=false"])
    try:
        sgpr = run(other, RunFolder(place / "sgpr"))["test.rmse_original"]
    except GPXError as error:  # the baseline's: no reason to have no row
        print(f"{name}: SGPR: {error}")
        sgpr = None
    return {
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
    }


def mixture(common: list[str], name: str, functions: int, place: Path) -> dict[str, Any]:
    """Five components by L-BFGS on the bound of their entropy."""
    options = [AT_PRIOR, f"approx.num_basis={functions}", f"trainer.max_steps={MIXTURE_STEPS}"]
    began = time.process_time()
    metrics = run(composed([*common, "approx=direct_mixture", *options]), RunFolder(place / "run"))
    return {
        "rmse": metrics["test.rmse_original"],
        "mnlp": metrics["test.mnlp"],
        "sparsity": 100.0 * metrics["predict.sparsity"],
        "bound": metrics["train.evidence"],
        "evaluations": metrics["train.steps"],
        "optimisation": metrics["train.seconds"],
        "seconds": time.process_time() - began,
    }


def searched(
    common: list[str], name: str, functions: int, place: Path, search: list[str]
) -> dict[str, Any]:
    """Independent weights by another search; one L-BFGS from the prior is the published one."""
    options = [f"approx.num_basis={functions}", *search, "trainer.baselines=false"]
    began = time.process_time()
    metrics = run(composed([*common, "approx=direct", *options]), RunFolder(place / "run"))
    return {
        "rmse": metrics["test.rmse_original"],
        "sparsity": 100.0 * metrics["predict.sparsity"],
        "bound": metrics["train.evidence"],
        "sweep_gain": metrics["train.sweep_gain"],
        "evaluations": metrics["train.steps"],
        "optimisation": metrics["train.seconds"],
        "seconds": time.process_time() - began,
    }


def reparam(common: list[str], name: str, functions: int, place: Path) -> dict[str, Any]:
    """Gaussian weights by sampled gradients, on the functions that discrete ones have."""
    start = [f"approx.num_basis={functions}", "trainer.max_steps=1", "approx.restarts=0"]
    folder = RunFolder(place / "run")
    run(composed([*common, "approx=direct", *start, "trainer.baselines=false"]), folder)
    began = time.process_time()

    def means(model: Direct, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        features = (model.basis(x) * model.scale).detach()
        noise = float(model.likelihood.noise_variance)
        return reparam_means(features, y - model.mean(x).detach(), noise)

    rmse = weights_rmse(folder, means)
    return {"rmse": rmse, "seconds": time.process_time() - began}


def gaussian_rmse(folder: RunFolder) -> float:
    """Test RMSE of Gaussian weights on the same functions, whose posterior is exact."""

    def means(model: Direct, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        unit, noise = torch.ones_like(model.scale), model.likelihood.noise_variance.double()
        return FittedWeights(model.statistics, unit, noise).mean.detach()

    return weights_rmse(folder, means)


def weights_rmse(folder: RunFolder, means: Means) -> float:
    """Test RMSE on the functions of a run with other means of the weights, in units of scale."""
    config = folder.read_config()
    model = build_model(config).double()
    assert isinstance(model, Direct)
    model.load_state_dict(load_checkpoint(folder.checkpoint, torch.device("cpu"))["model"])
    data = load_data(build(config, "data"), task="regression")
    weights = model.scale * means(model, data.train_x.double(), data.train_y.double())
    with torch.no_grad():
        x = data.test_x.double()
        found = model.mean(x) + model.basis(x) @ weights
        assert torch.equal(load(folder.path).scaler.target_scale, data.scaler.target_scale)
        return float((found - data.test_y).square().mean().sqrt() * data.scaler.target_scale)


KEY = ("data", "split", "functions", "method", "start")


def read() -> list[dict[str, Any]]:
    """Folds that are done."""
    if not FOLDS.exists():
        return []
    plain = {"method": "mean_field", "start": "subset"}  # of rows older than these words
    return [plain | json.loads(line) for line in FOLDS.read_text().splitlines()]


def means_of(method: str) -> dict[str, float]:
    """Mean RMSE of a method by set."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in read():
        if row["method"] == method:
            found[row["data"]].append(row["rmse"])
    return {name: statistics.fmean(values) for name, values in found.items()}


def mean_of(folds: list[dict[str, Any]], key: str) -> float | None:
    """Over the folds that have it."""
    values = [f[key] for f in folds if f.get(key) is not None]
    return statistics.fmean(values) if values else None


def inside(name: str, found: float, published: float, spread: float) -> bool:
    """Whether an error is at most max(15 %, one published deviation) above the published."""
    return found <= published + max(0.15 * published, spread)


def table() -> None:
    """Means over folds beside the published ones."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in read():
        if row["functions"] == FUNCTIONS:
            groups[row["data"], row["method"], row["start"]].append(row)
    compared = means_of("reparam")
    first, second = [], []
    judged: dict[str, dict[str, bool]] = defaultdict(dict)
    partial, beaten = [], []
    for name in PUBLISHED:
        for start in STARTS:
            folds = groups.get((name, "mean_field", start), [])
            if not folds:
                continue
            n, d, reparam, published, spread, zeros = PUBLISHED[name]
            rmse, sparsity = mean_of(folds, "rmse"), mean_of(folds, "sparsity")
            assert rmse is not None
            assert sparsity is not None
            near = inside(name, rmse, published, spread)
            once = groups.get((name, "plain", start), [])
            alone = mean_of(once, "sparsity") if once else None
            baselines = [
                mean_of(folds, key) or math.inf for key in ("linear", "neighbours", "trivial")
            ]
            if start == "subset":
                judged["near"][name] = near
                judged["zeros"][name] = abs(sparsity - zeros) <= 10.0
                found = sparsity if alone is None else alone
                judged["zeros alone"][name] = abs(found - zeros) <= 10.0
                if len(folds) < 10:
                    partial.append(f"{name} ({len(folds)})")
                if rmse > min(baselines):
                    beaten.append(name)
            first.append(
                {
                    "data": name,
                    "n": n,
                    "d": d,
                    "start": STARTS[start],
                    "folds": len(folds),
                    "RMSE": rmse,
                    "std": statistics.stdev(f["rmse"] for f in folds) if len(folds) > 1 else None,
                    "published": published,
                    "published std": spread,
                    "within": "yes" if near else "no",
                    "Gaussian weights": mean_of(folds, "gaussian"),
                    "SGPR": mean_of(folds, "sgpr"),
                    "linear": baselines[0],
                    "5-nn": baselines[1],
                    "trivial": baselines[2],
                    "REPARAM": compared.get(name) if start == "subset" else None,
                    "published REPARAM": reparam,
                    "zeros, %": sparsity,
                    "published zeros, %": zeros,
                    "zeros of one search, %": alone,
                    "RMSE of one search": mean_of(once, "rmse") if once else None,
                    "MNLP": mean_of(folds, "mnlp"),
                    "a sweep adds, nats": mean_of(folds, "sweep_gain"),
                    "evaluations": mean_of(folds, "evaluations"),
                    "optimisation, s": mean_of(folds, "optimisation"),
                    "seconds a fold": mean_of(folds, "seconds"),
                    "commit": tally(folds),
                }
            )
        folds = groups.get((name, "mixture", "subset"), [])
        if folds:
            published, spread, zeros = PUBLISHED_MIXTURE[name]
            rmse, sparsity = mean_of(folds, "rmse"), mean_of(folds, "sparsity")
            assert rmse is not None
            assert sparsity is not None
            judged["mixture"][name] = inside(name, rmse, published, spread)
            judged["mixture zeros"][name] = abs(sparsity - zeros) <= 10.0
            splits = {f["split"] for f in folds}
            same = [
                f for f in groups.get((name, "mean_field", "subset"), []) if f["split"] in splits
            ]
            second.append(
                {
                    "data": name,
                    "folds": len(folds),
                    "RMSE": rmse,
                    "mean field on these folds": mean_of(same, "rmse"),
                    "published": published,
                    "published std": spread,
                    "within": "yes" if judged["mixture"][name] else "no",
                    "zeros, %": sparsity,
                    "published zeros, %": zeros,
                    "MNLP": mean_of(folds, "mnlp"),
                    "mean field's": mean_of(same, "mnlp"),
                    "evaluations": mean_of(folds, "evaluations"),
                    "optimisation, s": mean_of(folds, "optimisation"),
                    "seconds a fold": mean_of(folds, "seconds"),
                    "commit": tally(folds),
                }
            )
    notes = [
        "Published: Evans thesis, tables 7.1 (mean field by L-BFGS; REPARAM) and 7.2 (mixture of "
        "five by the entropy bound).",
        "Gaussian weights: the exact posterior on the same functions under the Gaussian prior, "
        "which discrete weights relax. SGPR: up to 200 inducing points, 60 evaluations. Linear, "
        "5-nn and trivial (the mean of the training targets): baselines. REPARAM: a Gaussian q "
        "over the same weights by sampled gradients, on the folds it was run on.",
        "Start: of the kernel, which then stays. exact GP: as published. one lengthscale: "
        "init=parsimonious, one lengthscale for all inputs unless more gain more evidence than "
        "they cost; shown, and not counted.",
        "Within: mean RMSE at most max(15 %, one published standard deviation) above the published."
        " Zeros: expected share in a draw of the weights. MNLP of standardised targets.",
        "A sweep adds: what one sweep of coordinate ascent would still add to the bound. Our "
        "search begins anew after such sweeps, the published one does not: on coarse grids (yacht, "
        "energy) it ends at a better bound, with fewer zeros and a smaller error.",
        "The published protocol has ten folds, whose means differ from those of fewer. Fewer here: "
        f"{', '.join(partial) or 'none'}.",
        "Discrete weights and Gaussian ones on the same functions have the same error wherever the "
        "grid is finer than the posterior: where both are far from the published error, the start "
        "of the kernel is, not the weights.",
        "Outside. fertility: 9 lengthscales over-fit 90 rows; with one it is inside. cancer: no "
        "start tried (one or 33 lengthscales, with and without a constant mean, inputs scaled or "
        "not) has an exact GP below 26.5 over the ten folds, and the thesis's other tables have "
        "27.8 to 35 on them: the published 22.95 stays unexplained. wine: rows repeat, and the "
        "evidence of the exact GP is largest without noise (-0.36 a point). Started at a noise "
        "variance of one it keeps its noise on the first of two folds, at another optimum (-0.64), "
        "with RMSE 0.449 and 32 % of zeros, and loses it on the second (shown as noise of one, not "
        "counted; which optima the source took is not said).",
        "Mean field and mixtures here begin at the prior, as published; the default of "
        "approx=direct begins where annealing of the precision leads (last table).",
        "Zeros: the share expected under q, which is what draws have on average; the mode of q "
        "would be zero for 97 % of hardware's weights. One search: L-BFGS from the prior without "
        "our restarts, as published, first fold; with it energy, airfoil and elevators come within "
        "10 points. A weight that the data leave alone is zero with a probability set by R = n "
        "outputscale / (functions noise): 17 % at R = 0, 29 % at 1.8, 51 % at 8. On hardware eight "
        "starts of the exact GP (lengthscales 0.3 to 30, outputscales 1 to 100, noise 0.01 to 1, "
        "one lengthscale for all) end at R from 1.4 to 2.2 and 25 to 29 % of zeros, on automobile "
        "at 2.1 to 3.5 and 28 to 34 %; the published 51 % of both take four and three times as "
        "much, with no more evidence to be found there. Searches, starts, counting and the scale "
        "of the prior (servo, autompg, housing, solar, sml agree) leave the published kernels, of "
        "which the source does not print the hyperparameters.",
        "Optimisation: wall-clock seconds of the L-BFGS evaluations. Seconds a fold: of the "
        "processor, one thread, the exact GP of the start and predictions included, SGPR not. "
        f"Mixtures: {MIXTURE_STEPS} evaluations at most.",
    ]
    checks: dict[str, bool | None] = {
        counted("RMSE within max(15 %, one published standard deviation)", judged["near"]): all(
            judged["near"].values()
        )
        and len(judged["near"]) == len(PUBLISHED),
        counted("zeros within 10 points, three quarters wanted,", judged["zeros"]): (
            sum(judged["zeros"].values()) >= 0.75 * len(judged["zeros"])
        ),
        counted(
            "zeros within 10 points by one search where that was run, three quarters wanted,",
            judged["zeros alone"],
        ): sum(judged["zeros alone"].values()) >= 0.75 * len(judged["zeros alone"]),
        counted("table 7.2: RMSE within the same", judged["mixture"]): (
            all(judged["mixture"].values()) if judged["mixture"] else None
        ),
        counted(
            "table 7.2: zeros within 10 points, three quarters wanted,", judged["mixture zeros"]
        ): (
            sum(judged["mixture zeros"].values()) >= 0.75 * len(judged["mixture zeros"])
            if judged["mixture zeros"]
            else None
        ),
        f"no set is worse than a baseline ({', '.join(beaten) or 'none'})": not beaten,
    }
    tables = {"Mean field (table 7.1)": first}
    if second:
        tables["Mixtures of five by the entropy bound (table 7.2)"] = second
    third = searches(groups)
    if third:
        tables["Three searches for one bound, first fold"] = third
        worse = [
            row["data"] for row in third if row["annealed: bound"] < row["restarts: bound"] - 1.0
        ]
        what = "the annealed start ends within a nat of the restarts' bound, or above it"
        checks[f"{what} (outside: {', '.join(worse) or 'none'})"] = not worse
    write(HERE, "uci", "UCI regression", notes, tables, checks)


def searches(groups: dict[tuple[str, str, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Bound, error and zeros by one search, by restarts and from an annealed start."""
    rows = []
    names = {"plain": "one search", "mean_field": "restarts", "annealed": "annealed"}
    for name in PUBLISHED:
        found = {
            words: [f for f in groups.get((name, method, "subset"), []) if f["split"] == 0]
            for method, words in names.items()
        }
        if not all(found.values()):
            continue
        row: dict[str, Any] = {"data": name}
        for title, key in (("bound", "bound"), ("RMSE", "rmse"), ("zeros, %", "sparsity")):
            row |= {f"{words}: {title}": folds[0][key] for words, folds in found.items()}
        row |= {f"{words}: evaluations": folds[0]["evaluations"] for words, folds in found.items()}
        rows.append(row | {"commit": tally([folds[0] for folds in found.values()])})
    return rows


def counted(what: str, found: dict[str, bool]) -> str:
    """A check with how many sets pass it, and which do not."""
    outside = ", ".join(name for name, fine in found.items() if not fine) or "none"
    return (
        f"{what} on {sum(found.values())} of {len(found)} sets run, of {len(PUBLISHED)} with up to "
        f"20,000 rows (outside: {outside})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two sets, one fold")
    parser.add_argument("--data", nargs="*", choices=[*PUBLISHED], default=list(PUBLISHED))
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--functions", type=int, default=FUNCTIONS)
    parser.add_argument("--method", choices=METHODS, default=METHODS[0])
    parser.add_argument("--start", choices=[*STARTS], default="subset")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    names, splits = options.data, options.splits
    if options.quick:
        names, splits = ["challenger", "servo"], [0]
    done = {tuple(row[k] for k in KEY) for row in read()}
    for split in [] if options.table else splits:
        for name in names:
            chosen = (name, split, options.functions, options.method, options.start)
            if chosen in done:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("default")
                    row = fold(*chosen)
            except GPXError as error:
                print(f"{name} split {split}: {error}")
                continue
            with FOLDS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            shown = ("data", "split", "rmse", "gaussian", "sgpr", "linear", "sparsity", "seconds")
            print({k: row.get(k) for k in shown}, flush=True)
    table()


if __name__ == "__main__":
    main()
