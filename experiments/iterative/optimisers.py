"""Training on exact, lower-bound and iterative evidences, by L-BFGS and by Adam.

    python experiments/iterative/optimisers.py           # pol, 400 training rows, 100 evaluations
    python experiments/iterative/optimisers.py --quick   # 120 rows, 4 evaluations, nothing written

Every run starts at ones. After each evaluation the exact evidence is computed by Cholesky at the
same hyperparameters; it compares the methods and checks the reported evidence. `joint`: the
auxiliary vector of the CG lower bound is optimised beside the hyperparameters instead of being
solved for.

Writes optimisers.json, optimisers.png and RESULTS.md beside this file. Source: Burt thesis, figures
4.1 (blocks against joint), 4.3 (L-BFGS against Adam), 4.5 (stability) and 4.7 (barely biased).
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import torch
from protocol import exact_at_ones, small_set, sparse_at_ones
from record import write
from torch import Tensor, nn

from gpx.linalg import UnconvergedWarning
from gpx.models import CGLB, SGPR, ExactGP
from gpx.objectives import BarelyBiasedMLL, CGLowerBound, CollapsedELBO, ExactMLL, IterativeMLL
from gpx.training.lbfgsb import LBFGSB

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
NEAR = 10.0
"""A run has converged when within this many nats of the best exact evidence of all runs."""
OFF = 1000.0
"""A reported evidence this many nats above the exact one counts as diverged."""


def joint_bound(model: CGLB, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The CG lower bound by dense algebra, differentiable in v too; two products with K."""
    noise, z = model.likelihood.noise_variance, model.inducing_points
    eye = torch.eye(len(y), dtype=y.dtype)
    matrix = model.kernel.evaluate(x, x) + noise * eye
    inner = model.kernel.evaluate(z, z) + 1e-10 * torch.eye(len(z), dtype=y.dtype)
    half = torch.linalg.solve_triangular(
        torch.linalg.cholesky(inner), model.kernel.evaluate(z, x), upper=False
    )
    q = half.mT @ half + noise * eye
    factor = torch.linalg.cholesky(q)
    target = y - model.mean(x)
    r = target - matrix @ v
    fit = r @ torch.cholesky_solve(r[:, None], factor)[:, 0] + v @ (target + r)
    logdet = 2.0 * factor.diagonal().log().sum()
    gap = len(y) * torch.log1p((matrix - q).trace() / (len(y) * noise))
    return -0.5 * (fit + logdet + gap + len(y) * math.log(2.0 * math.pi))


def train(
    model: Any,
    evidence: Callable[[], Tensor],
    rate: float | None,
    data: tuple[Tensor, Tensor],
    evaluations: int,
    after: Callable[[], Any] = lambda: None,
    extra: tuple[nn.Parameter, ...] = (),
) -> list[tuple[float, float]]:
    """Maximise by Adam at ``rate``, or by L-BFGS (None): (reported, exact) at every evaluation."""
    trace: list[tuple[float, float]] = []
    yardstick = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)

    def loss() -> Tensor:
        value = evidence()
        with torch.no_grad():
            truth = ExactMLL().evidence(yardstick, *data).value.item()
        trace.append((value.item(), truth))
        return -value / len(data[1])

    parameters = [*model.parameters(), *extra]
    if rate is None:
        LBFGSB().minimise(parameters, loss, evaluations, lambda *_: None, after_iteration=after)
        return trace
    adam = torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.999))
    for _ in range(evaluations):
        adam.zero_grad()
        loss().backward()
        adam.step()
        after()
    return trace


def run(name: str, x: Tensor, y: Tensor, evaluations: int, inducing: int) -> list:
    """One of ``RUNS``."""
    method, rate = RUNS[name]
    data = x, y
    torch.manual_seed(0)
    if method in ("cglb", "joint", "sgpr"):
        model = sparse_at_ones(SGPR if method == "sgpr" else CGLB, x, y, inducing)
        if method == "joint":
            v = nn.Parameter(torch.zeros_like(y))
            return train(
                model, lambda: joint_bound(model, v, x, y), rate, data, evaluations, extra=(v,)
            )
        bound = CollapsedELBO() if method == "sgpr" else CGLowerBound()
        return train(
            model,
            lambda: bound.evidence(model, x, y).value,
            rate,
            data,
            evaluations,
            lambda: bound.after_step(model),
        )
    holder = exact_at_ones(x, 100, 1e-6 if method == "published" else 1e-4)
    objective: Any = {
        "exact": ExactMLL,
        "iterative": IterativeMLL,
        "published": partial(IterativeMLL, criterion="residual_per_row", tolerance=1.0),
        "barely biased": partial(BarelyBiasedMLL, bias=10.0, probes=1),
    }[method]()
    objective.prepare(holder, x, y, generator=torch.Generator().manual_seed(0))
    # a line search needs a fixed function, hence fixed probes; Adam's are drawn anew
    draws = None if rate is None else torch.Generator().manual_seed(1)
    return train(
        holder,
        lambda: objective.evidence(holder, x, y, generator=draws).value,
        rate,
        data,
        evaluations,
    )


RUNS: dict[str, tuple[str, float | None]] = {
    "exact, L-BFGS": ("exact", None),
    "exact, Adam 0.1": ("exact", 0.1),
    "iterative, L-BFGS": ("iterative", None),
    "iterative, Adam 0.1": ("iterative", 0.1),
    "iterative, Adam 0.01": ("iterative", 0.01),
    "iterative, published rule, Adam 0.1": ("published", 0.1),
    "barely biased, 10 nats, Adam 0.1": ("barely biased", 0.1),
    "CG lower bound, L-BFGS": ("cglb", None),
    "CG lower bound, joint, L-BFGS": ("joint", None),
    "CG lower bound, Adam 0.1": ("cglb", 0.1),
    "CG lower bound, Adam 0.01": ("cglb", 0.01),
    "CG lower bound, Adam 0.001": ("cglb", 0.001),
    "collapsed bound, L-BFGS": ("sgpr", None),
}


BARELY_BIASED = {
    "barely biased evidence at most the exact one plus its Monte Carlo error (unknown with one "
    "probe)": None,
    "barely biased evidence of 100 nats with a preconditioner of rank 500 on bike and pol": None,
}


def draw(traces: dict[str, list], best: float, title: str) -> None:
    figure, axis = plt.subplots(figsize=(7, 4))
    for name, trace in traces.items():
        if "0.01" in name or "0.001" in name:
            continue
        axis.semilogy([best - truth + 1.0 for _, truth in trace], label=name, linewidth=1)
    axis.set(xlabel="evaluation", ylabel="exact evidence, nats below the best + 1", title=title)
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(HERE / "optimisers.png", dpi=150, bbox_inches="tight")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default="pol")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--inducing", type=int, default=64)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows, evaluations = (120, 4) if options.quick else (options.rows, options.evaluations)
    (x, y), _ = small_set(options.data, rows, train_fraction=0.67)
    traces = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        for name in RUNS:
            traces[name] = run(name, x, y, evaluations, min(options.inducing, rows // 4))
            print(name, len(traces[name]), traces[name][-1], flush=True)
    if options.quick:
        return
    best = max(truth for trace in traces.values() for _, truth in trace)
    table = [
        {
            "evidence and optimiser": name,
            "evaluations": len(trace),
            "best exact evidence": max(truth for _, truth in trace),
            f"evaluations to {NEAR:g} nats of the best": next(
                (i + 1 for i, (_, truth) in enumerate(trace) if truth >= best - NEAR), None
            ),
            "last reported evidence": trace[-1][0],
            "exact evidence at the last": trace[-1][1],
            "largest report above exact": max(value - truth for value, truth in trace),
        }
        for name, trace in traces.items()
    ]
    by_name = {row["evidence and optimiser"]: row for row in table}
    excess = {name: row["largest report above exact"] for name, row in by_name.items()}
    title = f"{options.data}, n = {rows}, M = {options.inducing}"
    draw(traces, best, title)
    write(
        HERE,
        "optimisers",
        "Training on exact, lower-bound and iterative evidences, by L-BFGS and Adam",
        [
            f"{options.data}, {rows} training rows (standardised), Matern 3/2 ARD, all",
            f"hyperparameters from 1, {options.inducing} inducing points, preconditioner of rank",
            "100, ten probes (fixed for L-BFGS, drawn anew for Adam), one for barely biased.",
            "Values in nats. L-BFGS may end before its budget. The gradient of the iterative "
            "evidence",
            "is an unbiased estimate, not the derivative of the value at fixed probes. Why L-BFGS "
            "fails on it: value and gradient",
            "disagree by about a standard error, so the line search makes less progress.",
            "One run at the looser tolerance 1.0: L-BFGS ended after 64 evaluations with",
            "-107.8 nats, Adam after 100 with -21.7.",
        ],
        table,
        {
            "no bound is above the exact evidence": all(
                value <= 1e-6 * abs(best)
                for name, value in excess.items()
                if name.startswith(("CG lower", "collapsed"))
            ),
            "all values of the CG lower bound are finite, for every optimiser and rate": all(
                math.isfinite(value)
                for name, trace in traces.items()
                if name.startswith("CG lower")
                for value, _ in trace
            ),
            f"with a certificate the iterative evidence never exceeds the exact one by {OFF:g} "
            "nats": all(
                value < OFF
                for name, value in excess.items()
                if name.startswith(("iterative, Adam", "iterative, L-BFGS", "barely"))
            ),
            "the final value of L-BFGS is higher than that of Adam, for the exact evidence and the "
            "CG lower bound": all(
                by_name[f"{kind}, L-BFGS"]["last reported evidence"]
                > by_name[f"{kind}, Adam 0.1"]["last reported evidence"]
                for kind in ("exact", "CG lower bound")
            ),
            "L-BFGS reaches a higher exact evidence than Adam when training on the iterative "
            "evidence": (
                by_name["iterative, L-BFGS"]["best exact evidence"]
                >= by_name["iterative, Adam 0.1"]["best exact evidence"]
            ),
            "solving for the auxiliary vector reaches a higher exact evidence than optimising it "
            "jointly": (
                by_name["CG lower bound, L-BFGS"]["best exact evidence"]
                >= by_name["CG lower bound, joint, L-BFGS"]["best exact evidence"]
            ),
            **BARELY_BIASED,
        },
        pictures=["optimisers.png"],
    )


if __name__ == "__main__":
    main()
