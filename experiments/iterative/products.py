"""Products with the kernel matrix for an evidence of given accuracy, against GPyTorch.

    python experiments/iterative/products.py            # n = 600, 12 problems
    python experiments/iterative/products.py --quick    # n = 300, 2 problems, nothing is written

The barely biased estimate takes an error in nats; GPyTorch takes a residual tolerance and a number
of Lanczos steps, and whether these are enough depends on the problem. Both use ten probes. The
systematic error of an evaluation is its value minus the value of the same probes at convergence,
which removes the scatter of the probes. Products are counted by column.

Writes products.json (tables), products_rows.json (every setting), products.png and RESULTS.md
beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import gpytorch
import matplotlib
import torch
from peers import Products, Regression, by_iterations, matern, rbf
from record import write
from torch import Tensor

from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.kernels import RBF, Matern32
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian
from gpx.linalg import UnconvergedWarning, probe_vectors
from gpx.means import Zero
from gpx.methods.exact.barely_biased import barely_biased_log_marginal_likelihood
from gpx.models import ExactGP, IterativeOptions
from gpx.objectives import ExactMLL

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent

PROBES, RANK = 10, 100
BIASES = (10.0, 1.0, 0.1)
KINDS: dict[str, tuple[type[Kernel], int, float]] = {
    "Matern 3/2, 4 inputs": (Matern32, 4, 1.0),
    "squared exponential, 4 inputs": (RBF, 4, 1.0),
    "Matern 3/2, 8 inputs": (Matern32, 8, 2.0),
}
NOISES = (1e-1, 1e-2, 1e-3, 1e-4)
FIXED = [
    {"rank": rank, "tolerance": tolerance, "steps": steps}
    for rank in (15, RANK)
    for tolerance, steps in ((1.0, 10), (1.0, 20), (0.1, 50), (0.01, 100), (1e-3, 200))
]
CONVERGED = {"tolerance": 1e-6, "steps": 300}


def problem(kind: str, noise: float, n: int) -> tuple[ExactGP, Tensor, Tensor]:
    """Model at fixed hyperparameters, inputs (n, d) and targets (n,)."""
    kernel, inputs, lengthscale = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) / inputs**0.5
    y += noise**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    model = ExactGP(
        kernel=kernel(ard_num_dims=inputs, lengthscale=[lengthscale] * inputs, outputscale=1.0),
        mean=Zero(),
        likelihood=Gaussian(noise),
        iterative=IterativeOptions(rank=RANK),
    ).double()
    return model, x, y


def peer(x: Tensor, y: Tensor, kind: str, noise: float) -> Regression:
    """The same model in GPyTorch."""
    kernel, inputs, lengthscale = KINDS[kind]
    same = rbf(inputs, lengthscale) if kernel is RBF else matern(1.5, inputs, lengthscale)
    return Regression(x, y, same, noise, mean=gpytorch.means.ZeroMean())


@torch.no_grad()
def theirs(model: Regression, settings: dict[str, Any], seed: int) -> tuple[float, int]:
    """Evidence in nats and products."""
    torch.manual_seed(seed)
    with warnings.catch_warnings(), by_iterations(**settings, probes=PROBES):
        warnings.simplefilter("ignore")
        with Products() as products:
            value = model.train().evidence()
    return value.item(), products.columns


def ours(
    system: PreconditionedKernel, y: Tensor, seed: int, bias: float, estimate: str
) -> tuple[float, int, float]:
    """Evidence in nats, products, bound on its bias."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        found = barely_biased_log_marginal_likelihood(
            system,
            y,
            probe_vectors(len(y), PROBES, generator=generator),
            bias=bias,
            max_steps=1000,
            estimate=estimate,
        )
    return float(found.terms.total()), found.process.multiplied + 1, found.bias_bound


def measure(kind: str, noise: float, n: int, seeds: int) -> list[dict[str, Any]]:
    """One row per method and setting on one problem."""
    model, x, y = problem(kind, noise, n)
    with torch.no_grad():
        truth = ExactMLL().evidence(model, x, y).value.item()
        system = PreconditionedKernel(
            model.kernel,
            x,
            model.likelihood.noise_variance,
            model.iterative,
            exact_products=True,
        )
    rows = []

    def row(method: str, setting: str, runs: list[tuple], converged: list[float]) -> None:
        off = [run[0] - value for run, value in zip(runs, converged, strict=True)]
        rows.append(
            {
                "kernel": kind,
                "noise": noise,
                "method": method,
                "setting": setting,
                "systematic": statistics.mean(off),
                "largest": max(map(abs, off)),
                "rms": statistics.mean((run[0] - truth) ** 2 for run in runs) ** 0.5,
                "products": statistics.mean(run[1] for run in runs),
            }
        )

    converged = [ours(system, y, seed, 1e-5, "middle")[0] for seed in range(seeds)]
    for estimate in ("below", "middle"):
        for bias in BIASES:
            runs = [ours(system, y, seed, bias, estimate) for seed in range(seeds)]
            row(f"gpx {estimate}", f"{bias:g} nats", runs, converged)
            assert max(run[2] for run in runs) <= 1.01 * bias
    model = peer(x, y, kind, noise)
    limits = {
        rank: [theirs(model, {**CONVERGED, "rank": rank}, seed)[0] for seed in range(seeds)]
        for rank in {settings["rank"] for settings in FIXED}
    }
    for settings in FIXED:
        runs = [theirs(model, settings, seed) for seed in range(seeds)]
        words = ", ".join(f"{name} {value:g}" for name, value in settings.items())
        row("GPyTorch", words, runs, limits[settings["rank"]])
    return rows


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per problem and error: our products, GPyTorch's in hindsight, and with one setting for all.

    The setting for all is the cheapest in total whose error is within the bound on every problem.
    """
    problems = list(dict.fromkeys((row["kernel"], row["noise"]) for row in rows))
    at = {(r["kernel"], r["noise"], r["method"], r["setting"]): r for r in rows}
    settings = list(dict.fromkeys(r["setting"] for r in rows if r["method"] == "GPyTorch"))
    table = []
    for bias in BIASES:
        good = [
            s
            for s in settings
            if all(abs(at[(*p, "GPyTorch", s)]["systematic"]) <= bias for p in problems)
        ]
        common = min(
            good,
            key=lambda s: sum(at[(*p, "GPyTorch", s)]["products"] for p in problems),
            default=None,
        )
        for p in problems:
            below, middle = (
                at[(*p, f"gpx {estimate}", f"{bias:g} nats")] for estimate in ("below", "middle")
            )
            reach = [
                at[(*p, "GPyTorch", s)]
                for s in settings
                if abs(at[(*p, "GPyTorch", s)]["systematic"]) <= bias
            ]
            best = min(reach, key=lambda r: r["products"], default=None)
            table.append(
                {
                    "error, nats": bias,
                    "kernel": p[0],
                    "noise": p[1],
                    "below: error": below["systematic"],
                    "below: products": round(below["products"]),
                    "middle: error": middle["systematic"],
                    "middle: products": round(middle["products"]),
                    "GPyTorch, best in hindsight": best and round(best["products"]),
                    "GPyTorch, best in hindsight: error": best and best["systematic"],
                    "GPyTorch, best in hindsight: setting": best and best["setting"],
                    "GPyTorch, one setting for all": common
                    and round(at[(*p, "GPyTorch", common)]["products"]),
                }
            )
        if common:
            print(f"{bias:g} nats: one setting for all is {common}")
    return table


def summary(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Totals per error, and how often each is cheapest."""
    lines = []
    for bias in BIASES:
        part = [row for row in table if row["error, nats"] == bias]
        known = [row for row in part if row["GPyTorch, best in hindsight"] is not None]
        common = [row["GPyTorch, one setting for all"] for row in part]
        line: dict[str, Any] = {"error, nats": bias, "problems": len(part)}
        for estimate in ("below", "middle"):
            column = f"{estimate}: products"
            line[f"{estimate}: total products"] = sum(row[column] for row in part)
            line[f"{estimate}: fewer than hindsight"] = sum(
                row["GPyTorch, best in hindsight"] is None
                or row[column] < row["GPyTorch, best in hindsight"]
                for row in part
            )
        line["GPyTorch, hindsight: total where reached"] = sum(
            row["GPyTorch, best in hindsight"] for row in known
        )
        line["problems where one reached the error"] = len(known)
        line["middle: products on these"] = sum(row["middle: products"] for row in known)
        line["GPyTorch, one setting: total"] = None if None in common else sum(common)
        lines.append(line)
    return lines


def draw(rows: list[dict[str, Any]]) -> None:
    """Systematic error against products, one panel per problem."""
    problems = list(dict.fromkeys((row["kernel"], row["noise"]) for row in rows))
    width = len(NOISES)
    height = -(-len(problems) // width)
    figure, axes = plt.subplots(
        height, width, figsize=(3.2 * width, 2.6 * height), squeeze=False, sharey=True
    )
    marks = {"gpx below": "o-", "gpx middle": "s-", "GPyTorch": "x"}
    for axis, (kind, noise) in zip(axes.flat, problems, strict=False):
        part = [r for r in rows if (r["kernel"], r["noise"]) == (kind, noise)]
        for method, mark in marks.items():
            own = [r for r in part if r["method"] == method]
            axis.loglog(
                [r["products"] for r in own],
                [max(abs(r["systematic"]), 1e-3) for r in own],
                mark,
                label=method,
                markersize=4,
            )
        axis.set_title(f"{kind}, noise {noise:g}", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.xaxis.set_minor_formatter("")
    for axis in axes[-1]:
        axis.set_xlabel("products (columns)", fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("systematic error, nats", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(HERE / "products.png", dpi=130)


def report(rows: list[dict[str, Any]], n: int, seeds: int) -> None:
    """Tables, checks and picture of all rows."""
    table = compare(rows)
    totals = summary(table)
    draw(rows)
    (HERE / "products_rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    measured = [r for r in rows if r["method"].startswith("gpx")]
    write(
        HERE,
        "products",
        "Matrix-vector products for an evidence of given accuracy",
        [
            f"n = {n} points, {PROBES} probes, {seeds} seeds; Nystrom preconditioner of rank",
            f"{RANK} (gpx), 15 or 100 (GPyTorch). `below` and `middle`: the lower end or the "
            "middle of the",
            "certified interval is taken as the value. Errors are systematic: relative to the same",
            "probes at convergence. GPyTorch's settings: residual tolerance 1, 1, 0.1, 0.01,",
            "1e-3 with 10, 20, 50, 100, 200 Lanczos steps; `-`: none of them reaches the error.",
            "Best in hindsight: the cheapest setting accurate enough on that problem, which a user",
            "cannot know; its error may be small because the errors of the solve and of the",
            "quadrature cancel. One setting for all: the cheapest that is accurate enough on",
            "every problem.",
        ],
        {"Totals": totals, "By problem": table},
        {
            "every measured error of gpx is within the requested bound": all(
                r["largest"] <= 1.01 * float(r["setting"].split()[0]) + 1e-4 for r in measured
            ),
            "gpx needs fewer products in total than one setting of GPyTorch for all problems": all(
                line["GPyTorch, one setting: total"] is None
                or line["middle: total products"] < line["GPyTorch, one setting: total"]
                for line in totals
            ),
            "gpx needs fewer products on every problem than GPyTorch's best setting in "
            "hindsight": all(
                line["middle: fewer than hindsight"] == line["problems"] for line in totals
            ),
        },
        pictures=["products.png"],
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--points", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    n, seeds = (200, 2) if options.quick else (options.points, options.seeds)
    kinds = list(KINDS)[:1] if options.quick else list(KINDS)
    noises = (1e-1, 1e-3) if options.quick else NOISES
    rows = []
    for kind in kinds:
        for noise in noises:
            start = time.perf_counter()
            rows += measure(kind, noise, n, seeds)
            print(f"{kind}, noise {noise:g}: {time.perf_counter() - start:.0f} s", flush=True)
    if options.quick:
        table = compare(rows)
        for line in (*table, *summary(table)):
            print(line)
    else:
        report(rows, n, seeds)


if __name__ == "__main__":
    main()
