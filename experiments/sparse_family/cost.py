"""Time and memory of one evidence and its gradient: effective priors beside SGPR.

    python experiments/sparse_family/cost.py            # kin40k, 10,000 rows, 512 inducing points
    python experiments/sparse_family/cost.py --rows 2000 --repeats 3

Processor time of one thread, interleaved over methods; medians after one untimed evaluation.
Memory is the increase of the peak memory of a process by one evaluation, after a tiny one; medians
of three processes. Freed memory is kept by the process, as in a run of train.py.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import torch
from record import Checks, argument_parser, write
from timing import added_mib, in_own_process, in_turns
from torch import Tensor

from gpx.data import load as load_data
from gpx.kernels import RBF, Kernel, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR, EffectivePrior
from gpx.objectives import CollapsedELBO, EffectiveEvidence
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.training.allocator import keep_freed_memory

HERE = Path(__file__).resolve().parent
KERNELS: dict[str, type[RBF] | type[Matern32]] = {"rbf": RBF, "matern32": Matern32}
METHODS = ["sgpr", "dtc", "fitc", "pitc"]
"""FIC costs what FITC does, PIC what PITC does, SoR what DTC does. All train Z here."""
LIMIT = 1.3
"""FITC's time and memory over SGPR's."""


def rows_of_kin40k(n: int) -> tuple[Tensor, Tensor]:
    """Standardised inputs and targets, float64."""
    data = load_data(build(composed(["approx=sgpr", "data=kin40k"]), "data"), task="regression")
    return data.train_x[:n].double(), data.train_y[:n].double()


def step_of(method: str, kernel: Kernel, x: Tensor, y: Tensor, m: int) -> Callable[[], None]:
    """One evaluation with its gradient."""
    parts = {"kernel": kernel, "mean": Constant(), "likelihood": Gaussian(0.1)}
    sizes = {"num_inputs": x.shape[1], "num_inducing": m}
    if method == "sgpr":
        model, objective = SGPR(**parts, **sizes).double(), CollapsedELBO()
    else:
        if method == "pitc":
            sizes["block_centres"] = x[: max(1, len(x) // m)]
        made = EffectivePrior(**parts, **sizes, prior=method, learn_inducing=True)
        model, objective = made.double(), EffectiveEvidence()
    model.place(x[:m])

    def step() -> None:
        objective.evidence(model, x, y).value.backward()

    return step


def memory(method: str, kind: str, rows: int, inducing: int) -> float:
    """MiB that one evaluation adds; run in a process of its own."""
    torch.set_num_threads(1)
    keep_freed_memory()
    x, y = rows_of_kin40k(rows)
    kernel = KERNELS[kind](x.shape[1], lengthscale=2.0)
    step_of(method, kernel, x[:200], y[:200], 10)()
    return added_mib(step_of(method, kernel, x, y, inducing))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as in a run of train.py
    x, y = rows_of_kin40k(options.rows)
    m, d = options.inducing, x.shape[1]
    table = []
    for name, kind in KERNELS.items():
        steps = {k: step_of(k, kind(d, lengthscale=2.0), x, y, m) for k in METHODS}
        turns = in_turns(steps, options.repeats)
        times = {method: [one.processor for one in seen] for method, seen in turns.items()}
        # where arrays land in the heap differs from process to process
        mib = {
            method: statistics.median(
                in_own_process(memory, method, name, options.rows, m) for _ in range(3)
            )
            for method in METHODS
        }
        for method in METHODS:
            ratios = [a / b for a, b in zip(times[method], times["sgpr"], strict=True)]
            table.append(
                {
                    "kernel": name,
                    "method": method,
                    "n": len(x),
                    "inducing": m,
                    "seconds": statistics.median(times[method]),
                    "time / SGPR": statistics.median(ratios),
                    "MiB": mib[method],
                    "MiB / SGPR": mib[method] / mib["sgpr"],
                }
            )
    fitc = [row for row in table if row["method"] == "fitc"]
    checks: Checks = {}
    for row in fitc:
        words = f"FITC with {row['kernel']} within {LIMIT} times of SGPR's"
        checks[f"{words} time ({row['time / SGPR']:.2f})"] = row["time / SGPR"] <= LIMIT
        checks[f"{words} memory ({row['MiB / SGPR']:.2f})"] = row["MiB / SGPR"] <= LIMIT
    notes = [
        "One evidence and its gradient by hyperparameters and inducing points, float64, one "
        "thread. Medians of interleaved processor seconds, and medians of the ratios to SGPR in "
        "the same round. Memory: increase of the peak memory of a process by one evaluation, "
        "median of three.",
        "SGPR takes 2 n M^2 multiply-adds and FITC 3 n M^2, because its second pass needs a "
        "weighted Gram matrix and a triangular solve; kernel evaluations are the same. Blocks of "
        "PITC have M rows.",
    ]
    write(HERE, "cost", "Cost of one evidence and gradient", notes, table, checks)


if __name__ == "__main__":
    main()
