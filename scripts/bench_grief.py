"""GRIEF against the machine's multiply-adds: features, evaluations, grid size.

    python scripts/bench_grief.py --threads 1
    python scripts/bench_grief.py --quick
    python scripts/bench_grief.py --device cuda

Features: seconds and working memory of all eigenfunctions at n points, block by block, over n, d
and p in turn; nanoseconds an entry must not grow. Limit: one elementwise product an entry and a
term of the one-dimensional series, and a multiply-add a term and function, at this machine's rates.
Evaluation: evidence and gradient against 1.5 n p^2 multiply-adds of its matrix product (n p^2 / 2
for the Gram matrix, n p^2 for the gradient). Nodes: 10, 30 and 100 an axis in turn; the time may
grow by that of the eigenpairs. Seconds are of the processor on one thread; on a GPU of the wall,
and memory is its own.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from device_clock import clock_of

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
"""Where everything runs; set by ``main``."""


def clock() -> float:
    """Seconds: of this process on one thread, whatever else runs; of the wall on several."""
    on_cpu = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    return clock_of(DEVICE, on_cpu)()


def best(function: Callable[[], object], rounds: int) -> float:
    """Smallest of several timings, seconds."""
    found = math.inf
    for _ in range(rounds):
        started = clock()
        function()
        found = min(found, clock() - started)
    return found


def working_memory(function: Callable[[], object]) -> float:
    """MiB that a call holds at most."""
    if torch.device(DEVICE).type == "cuda":
        before = torch.cuda.memory_allocated(DEVICE)
        torch.cuda.reset_peak_memory_stats(DEVICE)
        function()
        return (torch.cuda.max_memory_allocated(DEVICE) - before) / 2**20
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    current = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak / 2**20


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="sizes a quarter")
    parser.add_argument("--device", default="cpu")
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

    print("\nfeatures: seconds, ns an entry, ratio to the limit, working memory beside the data")
    print(f"{'n':>8} {'d':>4} {'p':>5} {'log10 m':>8} {'s':>7} {'ns':>6} {'ratio':>6} {'MiB':>6}")
    base = (unit, 16, 500)
    cases = [base, (2 * unit, 16, 500), (4 * unit, 16, 500)]
    cases += [(unit, 32, 500), (unit, 64, 500), (unit, 128, 500)]
    cases += [(unit, 16, 1000), (unit, 16, 2000)]
    for n, d, p in cases:
        model, x, _ = problem(n, d, p)
        seconds = best(lambda m=model, x=x: features(m, x), options.rounds)
        c, terms = series_size(model, x)
        limit = n * ((p + d * terms) / elementwise + d * terms * c / gemm)
        memory = working_memory(lambda m=model, x=x: features(m, x))
        print(
            f"{n:>8} {d:>4} {p:>5} {model.basis.log10_grid_size:>8.0f} {seconds:>7.3f} "
            f"{1e9 * seconds / (n * p):>6.2f} {seconds / limit:>6.2f} {memory:>6.1f}"
        )

    print("\nevidence and gradient: seconds, ratio to 1.5 n p^2 + 5/6 p^3 multiply-adds")
    print(f"{'n':>8} {'d':>4} {'p':>5} {'log10 m':>8} {'s':>7} {'ratio':>6} {'MiB':>6}")
    for n, d, p in [base, (2 * unit, 16, 500), (unit, 128, 500), (unit, 16, 1000)]:
        model, x, y = problem(n, d, p)
        seconds = best(lambda m=model, x=x, y=y: evaluate(m, x, y), options.rounds)
        limit = (1.5 * n * p**2 + 5 / 6 * p**3) / gemm
        memory = working_memory(lambda m=model, x=x, y=y: evaluate(m, x, y))
        print(
            f"{n:>8} {d:>4} {p:>5} {model.basis.log10_grid_size:>8.0f} {seconds:>7.2f} "
            f"{seconds / limit:>6.2f} {memory:>6.1f}"
        )

    print(
        "\nnodes an axis at n = 10,000, d = 10, p = 200: seconds an evaluation, of them eigenpairs"
    )
    print(f"{'nodes':>6} {'log10 m':>8} {'s':>7} {'eigen s':>8} {'rest':>6}")
    models = {nodes: problem(10_000, 10, 200, nodes) for nodes in (10, 30, 100)}
    seconds = dict.fromkeys(models, math.inf)
    eigen = dict.fromkeys(models, math.inf)
    for _ in range(3 * options.rounds):  # in turn: rates drift
        for nodes, (model, x, y) in models.items():
            spent = best(lambda m=model, x=x, y=y: evaluate(m, x, y), 1)
            seconds[nodes] = min(seconds[nodes], spent)
            eigen[nodes] = min(eigen[nodes], best(lambda m=model: eigenpairs(m), 1))
    for nodes, (model, _, _) in models.items():
        rest = (seconds[nodes] - eigen[nodes]) / (seconds[10] - eigen[10])
        print(
            f"{nodes:>6} {model.basis.log10_grid_size:>8.0f} {seconds[nodes]:>7.3f} "
            f"{eigen[nodes]:>8.3f} {rest:>6.2f}"
        )


if __name__ == "__main__":
    main()
