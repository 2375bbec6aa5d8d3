"""Traces of training: steps of conjugate gradients, L-BFGS against Adam.

    python experiments/cglb/traces.py                    # elevators, 2,000 training rows, M = 64
    python experiments/cglb/traces.py --data pol --rows 5000 --inducing 256 --evaluations 300

Writes cg_steps.png, optimisers.png and traces.json beside this file, which comparison.py puts into
RESULTS.md. Every hyperparameter starts at 1, v at zero; epsilon is one nat. Source: Burt's thesis,
figures 4.2 and 4.3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import torch
from protocol import small_set, sparse_at_ones
from record import COMMIT

from gpx.models import CGLB, AuxiliarySolver
from gpx.objectives import CGLowerBound
from gpx.training.lbfgsb import LBFGSB

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent


def fit(
    x: torch.Tensor, y: torch.Tensor, inducing: int, evaluations: int, *, warm: bool, optimiser: str
) -> list[dict[str, Any]]:
    """Train; one record per evaluation: steps of conjugate gradients, bound, seconds."""
    torch.manual_seed(0)
    model = sparse_at_ones(CGLB, x, y, inducing)
    objective = CGLowerBound(AuxiliarySolver(product_dtype="float32"))
    records: list[dict[str, Any]] = []
    begun = time.perf_counter()

    def loss() -> torch.Tensor:
        if not warm:
            model.auxiliary.zero_()
        evidence = objective.evidence(model, x, y)
        records.append(
            {
                "steps": evidence.report.iterations,
                "converged": evidence.report.converged,
                "bound": float(evidence.value.detach()),
                "seconds": time.perf_counter() - begun,
            }
        )
        return -evidence.value / len(y)

    parameters = list(model.parameters())
    if optimiser == "lbfgs":
        LBFGSB(ftol=2.2e-9, gtol=1e-5).minimise(
            parameters,
            loss,
            evaluations,
            lambda *_: None,
            after_iteration=lambda: objective.after_step(model),
            after_stall=lambda: objective.after_stall(model),
        )
        return records
    adam = torch.optim.Adam(parameters, lr=0.1, betas=(0.9, 0.999))
    for _ in range(evaluations):
        adam.zero_grad()
        loss().backward()
        adam.step()
        objective.after_step(model)
    return records


def draw(runs: dict[str, list[dict[str, Any]]], title: str) -> None:
    """Two pictures."""
    figure, axis = plt.subplots(figsize=(6, 3.5))
    for name in ("warm start", "cold start"):
        axis.plot([r["steps"] for r in runs[name]], label=name, linewidth=1)
    axis.set(xlabel="evaluation of the bound", ylabel="conjugate gradient steps", title=title)
    axis.legend()
    figure.savefig(HERE / "cg_steps.png", dpi=150, bbox_inches="tight")
    figure, axis = plt.subplots(figsize=(6, 3.5))
    best = max(r["bound"] for run in runs.values() for r in run)
    for name, run in (("L-BFGS", "warm start"), ("Adam, rate 0.1", "adam")):
        gap = [best - r["bound"] + 1.0 for r in runs[run]]
        axis.semilogy(gap, label=name, linewidth=1)
    axis.set(xlabel="evaluation of the bound", ylabel="nats below the best + 1", title=title)
    axis.legend()
    figure.savefig(HERE / "optimisers.png", dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="elevators")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--inducing", type=int, default=64)
    parser.add_argument("--evaluations", type=int, default=120)
    options = parser.parse_args()
    (x, y), _ = small_set(options.data, options.rows, train_fraction=0.67)
    runs = {
        name: fit(x, y, options.inducing, options.evaluations, warm=warm, optimiser=optimiser)
        for name, warm, optimiser in (
            ("warm start", True, "lbfgs"),
            ("cold start", False, "lbfgs"),
            ("adam", True, "adam"),
        )
    }
    title = f"{options.data}, n = {len(y):,}, M = {options.inducing}"
    draw(runs, title)
    summary: dict[str, Any] = {"setting": title}
    for name, run in runs.items():
        quarter = max(1, len(run) // 4)
        summary[name] = {
            "evaluations": len(run),
            "median steps, first quarter": statistics.median(r["steps"] for r in run[:quarter]),
            "median steps, last quarter": statistics.median(r["steps"] for r in run[-quarter:]),
            "best bound": max(r["bound"] for r in run),
            "seconds": run[-1]["seconds"],
            "all solves converged": all(r["converged"] for r in run),
        }
    record = {"commit": COMMIT, "summary": summary, "runs": runs}
    (HERE / "traces.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
