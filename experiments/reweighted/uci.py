"""Type-I and type-II inference of re-weighted bases on the UCI regression sets.

    python experiments/reweighted/uci.py --quick                     # two sets, one fold
    python experiments/reweighted/uci.py --data servo yacht --splits 0 1 2
    python experiments/reweighted/uci.py --start whole_set           # as published, see below
    python experiments/reweighted/uci.py --unsettled --data concrete # with the published chain
    python experiments/reweighted/uci.py --table                     # only write the table again

Protocol (Evans thesis, section 5.4.2, table 5.1): published 10-fold splits, squared exponential
with one lengthscale per input fitted as an exact GP to min(n, 1000) rows and kept (--start chooses
the rows; kernels of ``../whole_set.py`` reproduce the published errors),
1000 GRIEF functions on 10 nodes an input, log-normal hyper-priors of mode 1 and variance 100 on the
prior variance of every weight and of variance 0.04 on the noise, MALA. Published chains have 10,000
steps after 1000 of burn-in and keep every 50th; ours have --iterations steps. Folds that
have a row are not repeated, except with --unsettled those whose chain accepted too few or too many
of its proposals, which a burn-in that is too short for its step size does.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import warnings
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from cells import Cells
from gpx_runs import trained
from record import Rows, argument_parser, tally, write
from torch import Tensor
from whole_set import scaler_of, whole_set_kernel

from gpx.data import load as load_data
from gpx.errors import GPXError
from gpx.methods.reweighted.mala import ACCEPTANCE_RANGE
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.runs import RunFolder
from gpx.runs import load as load_run

HERE = Path(__file__).resolve().parent
FOLDS = HERE / "uci_folds.jsonl"
PUBLISHED = {
    # file: rows, inputs, RMSE and its standard deviation of GP-GRIEF-I, the same of GP-GRIEF-II,
    # exact GP (n < 2000) or Fastfood of "A la Carte"
    "challenger": (23, 4, 0.519, 0.261, 0.554, 0.277, 0.63),
    "fertility": (100, 9, 0.166, 0.051, 0.172, 0.055, 0.21),
    "concreteslump": (103, 7, 3.470, 1.712, 3.972, 1.891, 4.72),
    "autos": (159, 25, 0.111, 0.036, 0.145, 0.057, 0.18),
    "servo": (167, 4, 0.268, 0.075, 0.280, 0.085, 0.28),
    "breastcancer": (194, 33, 30.568, 3.340, 27.843, 3.910, 35.0),
    "machine": (209, 7, 0.402, 0.045, 0.408, 0.046, 0.43),
    "yacht": (308, 6, 0.120, 0.070, 0.170, 0.083, 0.16),
    "autompg": (392, 7, 2.563, 0.369, 2.607, 0.356, 2.63),
    "housing": (506, 13, 2.887, 0.489, 3.212, 0.864, 2.91),
    "forest": (517, 12, 1.384, 0.139, 1.386, 0.140, 1.39),
    "stock": (536, 11, 0.005, 0.0005, 0.005, 0.0005, 0.005),
    "energy": (768, 8, 0.461, 0.064, 0.490, 0.057, 0.46),
    "concrete": (1030, 8, 5.156, 0.766, 5.232, 0.723, 4.95),
    "solar": (1066, 10, 0.809, 0.193, 0.786, 0.198, 0.83),
    "wine": (1599, 11, 0.477, 0.047, 0.483, 0.052, 0.47),
    "skillcraft": (3338, 19, 0.248, 0.016, 0.248, 0.016, 0.25),
    "pumadyn32nm": (8192, 32, 0.212, 0.004, 0.20, 0.005, 0.20),
    "elevators": (16599, 18, 0.097, 0.001, 0.091, 0.002, 0.090),
    "kin40k": (40000, 8, 0.206, 0.004, 0.206, 0.004, 0.28),
    "keggundirected": (63608, 27, 0.134, 0.005, 0.118, 0.003, 0.12),
}
"""Standard deviations printed as 0.000 stand for half a unit of the last digit."""

LARGEST = 40_000
"""Rows of the largest set that the checks count."""

FAR = "keggundirected"
"""A set with test rows far from all training rows."""

SMALL = ["challenger", "fertility", "concreteslump", "servo", "autos", "machine", "yacht"]
SMALL += ["autompg"]
QUICK = ["challenger", "servo"]

START = {
    "exact": ["approx.basis.noise_first=false"],
    "fitted": [],
    "search": ["init=constants", "approx.basis.search_sweeps=3"],
    "shared": ["kernel.ard_num_dims=null"],
    "parsimonious": ["init=parsimonious"],
    "starts": ["init=starts"],
    "covered": ["approx.basis.grid.transductive=true", "approx.basis.grid.margin=0"],
    "whole_set": [],
}
"""Options by start of the kernel, which the notes of the table explain."""

ONE = ("shared", "parsimonious")
"""Starts with one lengthscale for all inputs, always or where the evidence prefers it."""

MANY = 15
"""Inputs beyond which lengthscales start at the square root of their number, not at one."""


def fold(name: str, split: int, inference: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train and test one fold."""
    inputs = PUBLISHED[name][1]
    # in many dimensions a lengthscale of one leaves the kernel matrix diagonal, without a gradient
    long = inputs > MANY or options.start in ("search", "shared")
    lengthscale = round(math.sqrt(inputs), 2) if long else 1.0
    overrides = [
        f"data={name}",
        f"data.split={split}",
        "approx=reweighted",
        f"inference={inference}",
        f"approx.num_basis={options.functions}",
        f"approx.structure={options.structure}",
        f"kernel.lengthscale={lengthscale}",
        *START[options.start],
    ]
    if options.start == "whole_set":
        overrides += whole_set_kernel(name).options(scaler_of(name, split), squared=False)
    if inference == "type1_mala":
        overrides += [
            f"optimizer.burn_in={options.burn_in}",
            f"optimizer.iterations={options.iterations}",
            f"optimizer.thin={options.thin}",
        ]
    done = trained(overrides, lambda folder: far_from_training(folder, name, split))
    metrics = done.metrics
    scale = metrics["test.rmse_original"] / metrics["test.rmse"]
    return {
        "data": name,
        "split": split,
        "inference": inference,
        "functions": options.functions,
        "structure": options.structure,
        "start": options.start,
        "burn_in": options.burn_in,
        "iterations": options.iterations,
        "thin": options.thin,
        "m": metrics["train.num_basis"],
        "path": metrics["train.evidence_path"],
        "rmse": metrics["test.rmse_original"],
        "mnlp": metrics["test.mnlp"],
        "evidence": metrics["train.evidence"],
        **done.found,
        "trivial": metrics["baseline.mean.rmse"] * scale,
        "acceptance": metrics.get("train.acceptance"),
        "effective": metrics.get("train.effective_samples_median"),
        "effective_noise": metrics.get("train.effective_samples_noise"),
        "steps": metrics["train.steps"],
        "seconds": done.seconds,
        "num_threads": torch.get_num_threads(),
    }


@torch.no_grad()
def far_from_training(folder: RunFolder, name: str, split: int) -> dict[str, Any]:
    """Test rows outside the range of the training rows by more than its tenth, and the others.

    Returns:
        ``far``: their number; ``beyond``: how many of them lie outside the inducing grid as well;
        ``rmse_near``: RMSE of the other test rows.
    """
    data = load_data(
        build(composed([f"data={name}", f"data.split={split}"]), "data"), task="regression"
    )
    predictor = load_run(folder.path)
    x, least, largest = data.test_x, data.train_x.amin(0), data.train_x.amax(0)
    reach = 0.1 * (largest - least)
    far = outside_of(x, least - reach, largest + reach)
    basis = predictor.posterior.basis
    several = basis.sizes > 1  # an axis of one node is ignored
    inside = basis.nodes[several]
    beyond = outside_of(x[:, several], inside[:, 0], inside[:, -1])
    error = (predictor.distribution(x).mean - data.test_y) * data.scaler.target_scale
    near = error[~far]
    return {
        "far": int(far.sum()),
        "beyond": int((far & beyond).sum()),
        "rmse_near": float(near.square().mean().sqrt()) if len(near) else None,
    }


def outside_of(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which rows of x (n, d) are outside the box."""
    return ((x < low) | (x > high)).any(1)


def settled(row: dict[str, Any]) -> bool:
    """Whether the chain of a fold, if it had one, accepted about as many proposals as it should."""
    low, high = ACCEPTANCE_RANGE
    return row["acceptance"] is None or low <= row["acceptance"] <= high


KEY = ("data", "split", "inference", "functions", "structure", "start")


def table(cells: Rows, folder: Path | None) -> None:
    """Means over folds beside the published ones."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in cells:
        groups[tuple(row[k] for k in KEY if k != "split")].append(row)
    order = list(PUBLISHED)
    fitted = {key[0] for key in groups if key[1] == "type1_mala" and key[4] == "fitted"}
    rows, within, beyond, useless = [], {}, {}, []
    partial: dict[str, list[str]] = {"fitted": [], "whole_set": []}
    published: dict[str, bool] = {}
    for key in sorted(groups, key=lambda k: (order.index(k[0]), *map(str, k[1:]))):
        folds = groups[key]
        name, inference, _, structure, start = key
        n, d, one, one_spread, two, _, exact = PUBLISHED[name]
        found = [f["rmse"] for f in folds]
        mean = statistics.fmean(found)
        chain = inference == "type1_mala"
        wanted = "fitted" if name in fitted else "exact"
        judged = chain and structure == "diagonal" and start == wanted
        near = mean <= one + max(0.1 * one, one_spread)
        as_published = chain and structure == "diagonal" and start == "whole_set"
        if as_published and n <= LARGEST:
            published[name] = near
        passed = near if judged or as_published or (chain and start in ONE) else None
        trivial = statistics.fmean(f["trivial"] for f in folds)
        if (judged or as_published) and len(folds) < 10:
            partial[start].append(f"{name} ({len(folds)})")
        if judged:
            (within if n <= LARGEST else beyond)[name] = near
            if mean > trivial:
                verdict = " (within)" * near
                useless.append(f"{name}{verdict} {mean:.4g} against {trivial:.4g}")
        rows.append(
            {
                "data": name,
                "n": n,
                "d": d,
                "m": folds[0]["m"],
                "inference": "I" if chain else "II of the weights",
                "prior": structure,
                "start": start,
                "folds": len(folds),
                "RMSE": mean,
                "std": statistics.stdev(found) if len(found) > 1 else None,
                "MNLP": statistics.fmean(f["mnlp"] for f in folds),
                "published I": one,
                "std I": one_spread,
                "published II": two,
                "exact GP": exact,
                "trivial": trivial,
                "within": {True: "yes", False: "no", None: "-"}[passed],
                "chain": " or ".join(sorted({chain_of(f) for f in folds})) if chain else None,
                "acceptance": _mean(folds, "acceptance"),
                "effective samples": _mean(folds, "effective"),
                "seconds a fold": _mean(folds, "seconds"),
                "commit": tally(folds),
            }
        )
    accepted = [f["acceptance"] for f in cells if f["acceptance"] is not None]
    notes = [
        "Published: Evans thesis, table 5.1 (I: GP-GRIEF-I, chains of 1000 + 10,000 steps, every "
        "50th kept, which is what this script does unless told otherwise; II: GP-GRIEF-II, type-II "
        "of the base kernel with fewer functions; exact GP: A la Carte).",
        "Hyper-priors: log-normal, as published, of mode 1 and variance 100 on the factor of every "
        "weight's prior variance, and of the start's noise variance as mode and variance 0.04 on "
        "the noise variance, here that of standardised targets (the source does not name its "
        "unit).",
        "Column 'chain': burn-in steps + further steps / thinning; mostly shorter than the "
        "published chains. Folds whose short chain accepted too few or too many proposals were run "
        "again with the published chain, by this rule alone.",
        "'II of the weights' maximises the chain's density by L-BFGS (not published; the published "
        "II learns the kernel). Its RMSE equals that of the average over a chain, and its MNLP is "
        "mostly worse.",
        "Column 'start', the fixed kernel from which the basis is made. exact: kernel of an exact "
        "GP on training rows, as published. fitted: the same with lengthscales raised to the "
        "grid's spacing where that is larger, and outputscale and noise of largest evidence for "
        "the basis (default of approx=reweighted). search: no exact GP; lengthscales start at "
        "sqrt(d) and are searched for the basis (init=constants approx.basis.search_sweeps=3). "
        "shared: as fitted, from an exact GP with one lengthscale for all inputs "
        "(kernel.ard_num_dims=null). parsimonious: as shared where separate lengthscales gain less "
        "evidence than their penalty (init=parsimonious). starts: as fitted, from the exact GP of "
        "largest evidence over four starts (init=starts). The kernel is not trained further: where "
        "the exact GP over-fits, so does the model.",
        "whole_set: as fitted, but with one kernel per data set from min(n, 1000) of all its rows, "
        "test rows included. The source does not say to which rows the kernel is fitted. This "
        "reading reproduces its errors on autos, fertility, challenger and elevators, where "
        "kernels of training rows do not, and also tables 7.1 and 7.2 (experiments/direct). It "
        "makes errors too small, since test targets influence the kernel; approx=reweighted does "
        "not do this.",
        "Why autos is outside with kernels of training rows: the exact GP fits 25 lengthscales to "
        "143 rows and over-fits (mean RMSE 0.17 over ten folds from each of five starts; A la "
        "Carte: 0.18). One lengthscale for all inputs (shared) is within the bound; parsimonious "
        "selects it from the training rows, where 24 more lengthscales gain some 15 nats and cost "
        "60. Fertility has only 100 rows: means over seven and over ten folds differ by 5 %, and a "
        "chain of the published length changes them by less than 1 %.",
        "Column 'within': the mean RMSE exceeds the published I by at most max(10 %, one published "
        "standard deviation). The check counts the fitted start where it was run. MNLP is of "
        "standardised targets.",
        "Column 'trivial': RMSE of predicting the mean of the training targets. Where the "
        "published deviation is large, 'within' admits larger errors. On challenger, fertility, "
        "forest and solar the inputs hardly predict the target, and the published exact GP is no "
        "better than the mean either. The targets of elevators, forest and keggundirected are "
        "logarithms, and so are their errors.",
        "Why elevators is outside with kernels of training rows: folds 5, 7 and 8 have large "
        "errors from the exact GP on 1,000 rows. With lengthscales searched for the basis (search) "
        "two of them have RMSE 0.091 and 0.095 instead of 0.154 and 0.133.",
        f"Why {FAR} is outside: {why_outside(cells, FAR) or 'not measured'}",
        "covered: as fitted, with the grid over the range of training and test inputs and without "
        "a margin, as in the released code of the source (approx.basis.grid.transductive=true "
        "approx.basis.grid.margin=0). The errors at the far rows are large with this grid as well: "
        "the kernel extrapolates there.",
        f"starts beside fitted: {beside_fitted(cells, 'starts') or 'not measured'}",
        "Fewer than ten folds (the means over different folds differ): "
        + ("; ".join(f"{k}: {', '.join(v)}" for k, v in partial.items() if v) or "none")
        + ".",
        "Seconds are of the processor, one thread, the exact GP and predictions included.",
    ]
    wanted = sum(known[0] <= LARGEST for known in PUBLISHED.values())
    checks: dict[str, bool | None] = {
        "kernels of training rows: type-I within max(10 %, one published standard deviation) on "
        f"{sum(within.values())} of {len(within)} sets run, of {wanted} with up to {LARGEST:,} "
        f"rows (outside: {outside(within)})": all(within.values()) and len(within) == wanted,
        "kernels of all rows (whole_set, test targets leak): type-I within max(10 %, one published "
        f"standard deviation) on {sum(published.values())} of {len(published)} sets run, of "
        f"{wanted} with up to {LARGEST:,} rows (outside: {outside(published)})": all(
            published.values()
        )
        and (len(published) == wanted or None),
        **{
            f"{name}, more than {LARGEST:,} rows: type-I within the same bound": near
            for name, near in beyond.items()
        },
        "on every set the RMSE is at most that of the mean of the training targets (worse on: "
        f"{'; '.join(useless) or 'none'})": not useless,
        f"the acceptance rate of every chain is in {list(ACCEPTANCE_RANGE)} "
        f"({min(accepted):.2f} to {max(accepted):.2f})": all(map(settled, cells)),
    }
    write(folder, "uci", "UCI regression, type-I and type-II", notes, rows, checks)


def chain_of(row: dict[str, Any]) -> str:
    """Burn-in, further steps and thinning of a fold."""
    return f"{row['burn_in']} + {row['iterations']} / {row['thin']}"


def why_outside(cells: Rows, name: str) -> str:
    """What test rows far from all training rows, and poor folds, do to the error of a set."""
    said = []
    for start in ("fitted", "starts", "covered", "whole_set"):
        folds = [
            f
            for f in cells
            if (f["data"], f["start"], f["inference"]) == (name, start, "type1_mala")
            and f["structure"] == "diagonal"
            and f.get("rmse_near") is not None
        ]
        hit = sorted((f for f in folds if f["far"]), key=lambda f: f["split"])
        rows = "; ".join(
            f"fold {f['split']}, {f['far']} row{'s' * (f['far'] > 1)}, {f['beyond']} beyond the "
            f"grid: {f['rmse']:.3f} and {f['rmse_near']:.3f}"
            for f in hit
        )
        if hit:
            said.append(
                f"Start {start}, RMSE with and without the test rows outside the range of the "
                f"training rows by more than its tenth: {rows}; mean over {len(folds)} "
                f"fold{'s' * (len(folds) > 1)} {_mean(folds, 'rmse'):.3f} and "
                f"{_mean(folds, 'rmse_near'):.3f}."
            )
        published, spread = PUBLISHED[name][2:4]
        limit = published + max(0.1 * published, spread)
        poor = sorted((f for f in folds if f["rmse_near"] > limit), key=lambda f: f["split"])
        if poor and len(poor) < len(folds):
            others = statistics.fmean(f["mnlp"] for f in folds if f not in poor)
            listed = ", ".join(
                f"{f['split']} ({f['rmse_near']:.3f}, MNLP {f['mnlp']:.2f})" for f in poor
            )
            said.append(
                f"Outside without these rows, too: fold {listed}; mean MNLP of the other folds "
                f"{others:.2f}."
            )
    return " ".join(said)


def beside_fitted(cells: Rows, start: str) -> str:
    """RMSE of a start over that of ``fitted`` on the same folds, by set."""
    chains = [c for c in cells if c["inference"] == "type1_mala" and c["structure"] == "diagonal"]
    rmse = {(c["data"], c["split"], c["start"]): c["rmse"] for c in chains}
    ratios: dict[str, list[float]] = {}
    for (data, split, own), error in sorted(rmse.items()):
        if own == start and (data, split, "fitted") in rmse:
            ratios.setdefault(data, []).append(error / rmse[data, split, "fitted"])
    listed = [f"{data} {statistics.geometric_mean(r):.2f} ({len(r)})" for data, r in ratios.items()]
    return f"ratio of RMSE (folds): {', '.join(listed)}." if listed else ""


def outside(near: dict[str, bool]) -> str:
    """Names of the sets outside the bound."""
    return ", ".join(name for name, fine in near.items() if not fine) or "none"


def _mean(folds: list[dict[str, Any]], name: str) -> float | None:
    return None if folds[0][name] is None else statistics.fmean(f[name] for f in folds)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="two sets, short chains, nothing written"
    )
    parser.add_argument("--data", nargs="*", choices=[*PUBLISHED], default=SMALL)
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--inference", nargs="*", default=["type1_mala", "type2"])
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--structure", choices=("diagonal", "orthogonal"), default="diagonal")
    parser.add_argument("--start", choices=[*START], default="fitted", help="of the kernel")
    parser.add_argument("--burn-in", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--thin", type=int, default=50)
    parser.add_argument("--again", action="store_true", help="also folds that have a row")
    parser.add_argument(
        "--unsettled", action="store_true", help="only folds whose chain left its acceptance range"
    )
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    names, splits = options.data, options.splits
    if options.quick:
        names, splits = QUICK, [0]
        options.burn_in, options.iterations, options.thin = 300, 600, 20
    cells = Cells(None if options.quick else FOLDS, *KEY)
    for split, name, inference in product(splits, names, options.inference):
        key = (name, split, inference, options.functions, options.structure, options.start)
        if options.table or (key in cells and not options.again and not options.unsettled):
            continue
        if options.unsettled and all(settled(r) for r in cells.rows if cells.key_of(r) == key):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                cells.add(fold(name, split, inference, options))
        except GPXError as error:
            print(f"{name} split {split}: {error}")
    table(cells.rows, None if options.quick else HERE)


if __name__ == "__main__":
    main()
