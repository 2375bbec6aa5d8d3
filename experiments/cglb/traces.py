"""Traces of training: steps of conjugate gradients, L-BFGS against Adam.

    python experiments/cglb/traces.py                    # elevators, 2,000 training rows, M = 64
    python experiments/cglb/traces.py --data protein --inducing 256 --evaluations 300
    python experiments/cglb/traces.py --draw             # only draw the pictures again

Adds a setting to traces.json, or replaces it, and draws cg_steps.png and optimisers.png beside this
file; comparison.py puts them into RESULTS.md. Every hyperparameter starts at 1, v at zero; epsilon
is one nat. The iterative GP has a preconditioner of rank M, ten Gaussian probes that are drawn
again at every step, and Adam. Source: Burt's thesis, figures 4.2 and 4.3.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import torch
from protocol import exact_at_ones, small_set, sparse_at_ones
from record import COMMIT, argument_parser
from row_files import locked, merged

from gpx.linalg import UnconvergedWarning
from gpx.models import CGLB, AuxiliarySolver
from gpx.objectives import CGLowerBound, IterativeMLL
from gpx.training.lbfgsb import LBFGSB

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from gpx.atomic_file import write_atomically

HERE = Path(__file__).resolve().parent
TRACES = HERE / "traces.json"
ITERATIVE = "iterative GP"
Record = dict[str, Any]
"""A setting: data, rows, M; a summary of every run, and the runs."""


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


def fit_iteratively(
    x: torch.Tensor, y: torch.Tensor, rank: int, evaluations: int
) -> list[dict[str, Any]]:
    """Records of the iterative GP; its "bound" is an estimate of the evidence."""
    model = exact_at_ones(x, rank, noise_floor=1e-4)
    objective = IterativeMLL(probes=10, kind_of_probes="gaussian")
    draws = torch.Generator().manual_seed(0)
    adam = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.9, 0.999))
    records: list[dict[str, Any]] = []
    begun = time.perf_counter()
    for _ in range(evaluations):
        adam.zero_grad()
        evidence = objective.evidence(model, x, y, generator=draws)
        (-evidence.value / len(y)).backward()
        adam.step()
        records.append(
            {
                "steps": evidence.report.iterations,
                "converged": evidence.report.converged,
                "bound": float(evidence.value.detach()),
                "seconds": time.perf_counter() - begun,
            }
        )
    return records


def key_of(record: Record) -> tuple[Any, ...]:
    """What identifies a setting."""
    return tuple(record[key] for key in ("data", "rows", "inducing"))


def read() -> list[Record]:
    """The settings that are done, in the order of data, rows and M."""
    found = json.loads(TRACES.read_text()) if TRACES.exists() else []
    return sorted(found, key=key_of)


def title(record: Record) -> str:
    return f"{record['data']}, n = {record['rows']:,}, M = {record['inducing']}"


def summary(run: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one run."""
    quarter = max(1, len(run) // 4)
    return {
        "evaluations": len(run),
        "median steps, first quarter": statistics.median(r["steps"] for r in run[:quarter]),
        "median steps, last quarter": statistics.median(r["steps"] for r in run[-quarter:]),
        "best bound": max(r["bound"] for r in run),
        "seconds": run[-1]["seconds"],
        "all solves converged": all(r["converged"] for r in run),
    }


def draw(records: list[Record]) -> None:
    """Two pictures with a panel for every setting."""
    for name, plot in (("cg_steps.png", draw_steps), ("optimisers.png", draw_gaps)):
        size = (5 * len(records), 3.5)
        figure, axes = plt.subplots(1, len(records), figsize=size, squeeze=False)
        for axis, record in zip(axes[0], records, strict=True):
            plot(axis, record["runs"])
            axis.set(title=title(record))
            axis.legend()
        figure.savefig(HERE / name, dpi=150, bbox_inches="tight")
        plt.close(figure)


def draw_steps(axis: Any, runs: dict[str, list[dict[str, Any]]]) -> None:
    for name in ("warm start", "cold start", ITERATIVE):
        if name in runs:
            axis.plot([r["steps"] for r in runs[name]], label=name, linewidth=1)
    axis.set(xlabel="evaluation", ylabel="conjugate gradient steps", yscale="symlog")


def draw_gaps(axis: Any, runs: dict[str, list[dict[str, Any]]]) -> None:
    bounds = {name: run for name, run in runs.items() if name != ITERATIVE}
    best = max(r["bound"] for run in bounds.values() for r in run)
    for name, run in (("L-BFGS", "warm start"), ("Adam, rate 0.1", "adam")):
        gap = [best - r["bound"] + 1.0 for r in bounds[run]]
        axis.semilogy(gap, label=name, linewidth=1)
    axis.set(xlabel="evaluation of the bound", ylabel="nats below the best + 1")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", default="elevators")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--inducing", type=int, default=64)
    parser.add_argument("--evaluations", type=int, default=120)
    parser.add_argument("--draw", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.draw:
        draw(read())
        return
    (x, y), _ = small_set(options.data, options.rows, train_fraction=0.67)
    runs = {
        name: fit(x, y, options.inducing, options.evaluations, warm=warm, optimiser=optimiser)
        for name, warm, optimiser in (
            ("warm start", True, "lbfgs"),
            ("cold start", False, "lbfgs"),
            ("adam", True, "adam"),
        )
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)  # it is in the table
        runs[ITERATIVE] = fit_iteratively(x, y, options.inducing, options.evaluations)
    record = {
        "data": options.data,
        "rows": len(y),
        "inducing": options.inducing,
        "commit": COMMIT,
        "summary": {name: summary(run) for name, run in runs.items()},
        "runs": runs,
    }
    with locked(HERE):
        records = sorted(merged(read(), [record], key_of), key=key_of)
        write_atomically(TRACES, json.dumps(records, indent=1) + "\n")
        draw(records)
    print(json.dumps(record["summary"], indent=1))


if __name__ == "__main__":
    main()
