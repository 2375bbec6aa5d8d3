"""Kernel matrix products against the machine's limit and against linear_operator.

    python scripts/bench_kernel_matrix.py [--device cuda] [--threads 2] [--runs 7] [--kernel RBF]

The limit is the time of exp for all n^2 entries plus the multiply-adds of the two thin matrix
products at the rate of large square ones; both are measured alternately with the product. A
product of a square matrix evaluates only one triangle, so it may be faster than the limit. Every
figure is that of the fastest run, because other programs slow the others; "CPU" is processor time
over threads, which they affect less. Peak memory is the increase during the product in a new
process.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import torch
from peers import matern, rbf
from tables import show
from timing import added_mib, command_line, in_own_process, in_turns, least, named
from torch import Tensor

import gpx.kernels
from gpx.backends import keops_installed
from gpx.backends.tiles import GROUPS, run_groups
from gpx.backends.triton import triton_refusal

warnings.filterwarnings("ignore")

DIMENSIONS, COLUMNS, LENGTHSCALE, OUTPUTSCALE = 8, 8, 3.0, 1.3
PEER = "linear_operator"


def rates(dtype: torch.dtype, device: str, threads: int) -> tuple[Callable, Callable, int, int]:
    """Runs that exponentiate and multiply, with the entries and multiply-adds each does."""
    side, size = (256, 1024) if device == "cpu" else (8192, 8192)  # exp within a core's cache
    repeats = 16 if device == "cpu" else 1
    draws = [-torch.rand(side, side, dtype=dtype, device=device) * 5 for _ in range(threads)]
    tiles = [torch.empty_like(d) for d in draws]
    factors = [torch.randn(2, size, size, dtype=dtype, device=device) for _ in range(threads)]
    products = [torch.empty(size, size, dtype=dtype, device=device) for _ in range(threads)]

    def exponentials() -> None:
        def work(g: int) -> None:
            for _ in range(repeats * GROUPS):
                torch.exp(draws[g], out=tiles[g])

        run_groups(work, threads, threads=threads)

    def multiplications() -> None:
        def work(g: int) -> None:
            torch.mm(factors[g][0], factors[g][1], out=products[g])

        run_groups(work, threads, threads=threads)

    return exponentials, multiplications, threads * repeats * GROUPS * side**2, threads * size**3


def inputs(n: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, DIMENSIONS, dtype=dtype, device=device)
    return x, torch.randn(n, COLUMNS, dtype=dtype, device=device)


def make_kernel(name: str, dtype: torch.dtype, device: str) -> gpx.kernels.Kernel:
    kernel = getattr(gpx.kernels, name)(DIMENSIONS).to(device, dtype)
    kernel.lengthscale = torch.full((DIMENSIONS,), LENGTHSCALE, dtype=dtype, device=device)
    kernel.outputscale = torch.tensor(OUTPUTSCALE, dtype=dtype, device=device)
    return kernel


def against_the_limit(n: int, dtype: torch.dtype, options: argparse.Namespace) -> None:
    device, threads = options.device, options.threads if options.device == "cpu" else 1
    kernel = make_kernel(options.kernel, dtype, device)
    x, right = inputs(n, dtype, device)
    half = x.clone()
    operator, rectangular = kernel(x, backend="chunked"), kernel(x, half, backend="chunked")
    exponentials, multiplications, entries, products = rates(dtype, device, threads)
    contestants: dict[str, Callable[[], object]] = {
        "exp": exponentials,
        "mm": multiplications,
        "chunked, square": lambda: operator @ right,
        "chunked, rectangular": lambda: rectangular @ right,
    }
    if keops_installed() and device == "cuda":
        symbolic = kernel(x, backend="keops")
        contestants["KeOps"] = lambda: symbolic @ right
    if device == "cuda" and triton_refusal(kernel(x).entries) is None:
        compiled = kernel(x, backend="triton")
        contestants["Triton"] = lambda: compiled @ right
    with torch.no_grad():
        found = {k: least(v) for k, v in in_turns(contestants, options.runs, device).items()}
    per_exp = [t / entries for t in found.pop("exp")]
    per_multiply = [t / products for t in found.pop("mm")]
    work = n * n * (DIMENSIONS + 2 + COLUMNS)
    limit = [n * n * e + work * m for e, m in zip(per_exp, per_multiply, strict=True)]
    rows = [
        {
            "product by": name,
            "s, wall": wall,
            "time / limit": wall / limit[0],
            "s, processor / threads": processor / threads,
            "processor / limit": processor / limit[1],
        }
        for name, (wall, processor) in found.items()
    ]
    show(
        rows,
        f"{options.kernel}, n = {n:,}, d = {DIMENSIONS}, {COLUMNS} columns, {named(dtype)}: "
        f"exp {1e-9 / per_exp[0]:.2f} G/s, product {2e-9 / per_multiply[0]:.0f} GFLOP/s, limit "
        f"{limit[0]:.3f} s wall, {limit[1] / threads:.3f} s processor / threads",
    )
    added = in_own_process(product_mib, n, dtype, options)
    whole = n * n * x.element_size() / 2**20
    print(f"memory of a product: {added:.0f} MiB, against {whole:.0f} MiB of the matrix")


def product_mib(n: int, dtype: torch.dtype, options: argparse.Namespace) -> float:
    """MiB that a product adds; runs in its own process."""
    torch.set_num_threads(options.threads)
    kernel = make_kernel(options.kernel, dtype, options.device)
    x, right = inputs(n, dtype, options.device)
    operator = kernel(x, backend="chunked")
    with torch.no_grad():
        return added_mib(lambda: operator @ right, options.device)


def against_linear_operator(n: int, dtype: torch.dtype, options: argparse.Namespace) -> None:
    kernel = make_kernel(options.kernel, dtype, options.device)
    if options.kernel == "RBF":
        peer = rbf(DIMENSIONS, LENGTHSCALE, OUTPUTSCALE)
    else:
        nu = float(options.kernel.removeprefix("Matern")[0]) / 2
        peer = matern(nu, DIMENSIONS, LENGTHSCALE, OUTPUTSCALE)
    peer = peer.to(options.device, dtype)
    x, right = inputs(n, dtype, options.device)

    def ours(backend: str) -> Callable[[], object]:
        return lambda: kernel(x, backend=backend) @ right

    def with_gradient(product: Callable[[], Tensor], module: torch.nn.Module) -> Callable:
        def run() -> None:
            module.zero_grad()
            product().sum().backward()

        return run

    with torch.no_grad():
        theirs = peer(x) @ right
        difference = (kernel(x, backend="chunked") @ right - theirs).abs().max()
        error = (difference / theirs.abs().max()).item()
        work = {PEER: lambda: peer(x) @ right} | {b: ours(b) for b in ("dense", "chunked")}
        found = in_turns(work, options.runs, options.device)
    slopes = {PEER: with_gradient(work[PEER], peer)}
    slopes |= {b: with_gradient(ours(b), kernel) for b in ("dense", "chunked")}
    slopes = {f"{name}, gradient": run for name, run in slopes.items()}
    found |= in_turns(slopes, max(2, options.runs // 3), options.device)
    best, rows = {name: least(seen) for name, seen in found.items()}, []
    for name, (wall, processor) in best.items():
        theirs = best[f"{PEER}, gradient" if name.endswith("gradient") else PEER]
        rows.append(
            {
                "product by": name,
                "s, wall": wall,
                "times faster": theirs.wall / wall,
                "s, processor": processor,
                "processor, ratio": theirs.processor / processor,
            }
        )
    show(rows, f"n = {n:,}, {named(dtype)}, relative difference {error:.0e}")


def main() -> None:
    parser = command_line(__doc__, threads=2)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--peer-n", type=int, default=5_000, help="linear_operator stores n x n")
    kernels = ["RBF", "Matern12", "Matern32", "Matern52"]
    parser.add_argument("--kernel", default="RBF", choices=kernels)
    parser.add_argument("--dtype", default="", help="float32 or float64; both when not given")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    names = [options.dtype] if options.dtype else ["float64", "float32"]
    dtypes = [getattr(torch, name) for name in names]
    print(f"torch {torch.__version__}, {options.device}, {options.threads} threads")
    for dtype in dtypes:
        against_the_limit(options.n, dtype, options)
        against_linear_operator(options.peer_n, dtype, options)


if __name__ == "__main__":
    main()
