"""GRIEF against the machine's multiply-adds: features, evaluations, grid size.

    python scripts/bench_grief.py --threads 1
    python scripts/bench_grief.py --quick
    python scripts/bench_grief.py --device cuda

Features: time and working memory of all eigenfunctions at n points, computed block by block, for
growing n, d and p; nanoseconds per entry must not grow. The limit is one elementwise product per
entry and term of the one-dimensional series, and one multiply-add per term and function, at the
rates of this machine. Evaluation: evidence and gradient against 1.5 n p^2 multiply-adds of the
matrix product (n p^2 / 2 for the Gram matrix, n p^2 for the gradient). Nodes: 10, 30 and 100 per
axis; the time may grow only by that of the eigenpairs. Times are processor seconds on one thread;
on a GPU, wall-clock seconds and the GPU's memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tables import show
from timing import Work, command_line, fair, in_turns, spent, tensors_mib

from gpx.bases import GridOptions
from gpx.bases.grid_eigenfunctions.data_pass import EigenfunctionPass
from gpx.bases.grid_eigenfunctions.polynomials import column_polynomials
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GRIEF
from gpx.objectives import EigenfunctionEvidence

EVIDENCE = EigenfunctionEvidence()
DEVICE = "cpu"
"""Device of all computations; set by ``main``."""


def best(function: Work, rounds: int) -> float:
    """Smallest of several timings, seconds."""
    each = [spent(function, DEVICE) for _ in range(rounds)]
    return min(fair([seconds], DEVICE) for seconds in each)


def rates(rounds: int) -> tuple[float, float, float]:
    """Multiply-adds of a matrix product, elementwise products and exponentials per second."""
    a, b = torch.randn(1000, 1000, device=DEVICE), torch.randn(1000, 512, device=DEVICE)
    gemm = 1000 * 1000 * 512 / best(lambda: a @ b, rounds)
    c = torch.empty_like(b)
    products = b.numel() / best(lambda: torch.mul(b, b, out=c), rounds)
    return gemm, products, b.numel() / best(lambda: torch.exp(b, out=c), rounds)


def problem(n: int, d: int, p: int, nodes: int = 10) -> tuple:
    """Model and data: n normal points in d dimensions."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    y = x.sum(1).sin()
    model = GRIEF(
        kernel=RBF(ard_num_dims=d, lengthscale=math.sqrt(d)),
        mean=Zero(),
        likelihood=Gaussian(0.01),
        num_inputs=d,
        num_eigenfunctions=p,
        grid=GridOptions(points_per_dim=nodes),
        noise_first=False,
    ).to(DEVICE)
    model.initialise(x, y, generator=torch.Generator(DEVICE).manual_seed(1))
    return model, x, y


def evaluate(model: GRIEF, x: torch.Tensor, y: torch.Tensor) -> None:
    """Evidence and gradient."""
    model.zero_grad()
    EVIDENCE(model, x, y).backward()


@torch.no_grad()
def features(model: GRIEF, x: torch.Tensor) -> None:
    """All eigenfunctions at x, one block after another."""
    functions = EigenfunctionPass(model.basis, model.basis.modes(), x)
    for rows in functions.blocks():
        functions(rows)


@torch.no_grad()
def series_size(model: GRIEF, x: torch.Tensor) -> tuple[int, int]:
    """Functions of an axis, and terms of their series."""
    basis = model.basis
    found = column_polynomials(
        basis.factors, basis.nodes, basis.sizes == 1, basis.modes().transforms, x
    )
    return found.series.shape[1:]


def eigenpairs(model: GRIEF) -> None:
    """One-dimensional eigenproblems and their gradient."""
    values, vectors = model.basis.eigenpairs()
    (values.sum() + vectors.sum()).backward()


def main() -> None:
    parser = command_line(__doc__, threads=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="sizes a quarter")
    options = parser.parse_args()
    global DEVICE
    DEVICE = options.device
    torch.set_num_threads(options.threads)
    torch.set_default_dtype(torch.float64)
    unit = 5_000 if options.quick else 20_000
    gemm, elementwise, exponentials = rates(20)
    print(f"{options.threads} threads, torch {torch.__version__}, float64, {DEVICE}")
    print(
        f"matrix product {gemm / 1e9:.1f}, elementwise product {elementwise / 1e9:.2f}, "
        f"exponential {exponentials / 1e9:.2f} billion/s"
    )

    base = (unit, 16, 500)
    cases = [base, (2 * unit, 16, 500), (4 * unit, 16, 500)]
    cases += [(unit, 32, 500), (unit, 64, 500), (unit, 128, 500)]
    cases += [(unit, 16, 1000), (unit, 16, 2000)]
    rows: list[dict[str, Any]] = []
    for n, d, p in cases:
        model, x, _ = problem(n, d, p)
        seconds = best(lambda m=model, x=x: features(m, x), options.rounds)
        c, terms = series_size(model, x)
        limit = n * ((p + d * terms) / elementwise + d * terms * c / gemm)
        rows.append({"n": n, "d": d, "p": p, "log10 m": round(model.basis.log10_grid_size)})
        rows[-1] |= {"seconds": seconds, "ns an entry": 1e9 * seconds / (n * p)}
        rows[-1] |= {"time / limit": seconds / limit}
        rows[-1] |= {"MiB": tensors_mib(lambda m=model, x=x: features(m, x), DEVICE)}
    show(rows, "Features; working memory beside the data")

    rows = []
    for n, d, p in [base, (2 * unit, 16, 500), (unit, 128, 500), (unit, 16, 1000)]:
        model, x, y = problem(n, d, p)
        seconds = best(lambda m=model, x=x, y=y: evaluate(m, x, y), options.rounds)
        limit = (1.5 * n * p**2 + 5 / 6 * p**3) / gemm
        rows.append({"n": n, "d": d, "p": p, "log10 m": round(model.basis.log10_grid_size)})
        rows[-1] |= {"seconds": seconds, "time / limit": seconds / limit}
        rows[-1] |= {"MiB": tensors_mib(lambda m=model, x=x, y=y: evaluate(m, x, y), DEVICE)}
    show(rows, "Evidence and gradient; limit: 1.5 n p^2 + 5/6 p^3 multiply-adds")

    models = {nodes: problem(10_000, 10, 200, nodes) for nodes in (10, 30, 100)}
    work: dict[str, Work] = {}
    for nodes, (model, x, y) in models.items():
        work[f"all {nodes}"] = lambda m=model, x=x, y=y: evaluate(m, x, y)
        work[f"eigenpairs {nodes}"] = lambda m=model: eigenpairs(m)
    turns = in_turns(work, 3 * options.rounds, DEVICE, warm=0)
    least_of = {name: min(fair([one], DEVICE) for one in seen) for name, seen in turns.items()}
    rows = [
        {
            "nodes": nodes,
            "log10 m": round(model.basis.log10_grid_size),
            "seconds": least_of[f"all {nodes}"],
            "eigenpairs, s": least_of[f"eigenpairs {nodes}"],
            "rest, s": least_of[f"all {nodes}"] - least_of[f"eigenpairs {nodes}"],
        }
        for nodes, (model, _, _) in models.items()
    ]
    show(rows, "Nodes an axis at n = 10,000, d = 10, p = 200: an evaluation, and its eigenpairs")


if __name__ == "__main__":
    main()
