"""Solvers of gpx against linear_operator's on the same machine, in the same run.

Pivoted Cholesky (n = 10^4, rank 100) and 100 steps of conjugate gradients (n = 2,000, 11 right-hand
sides), float64 and float32. Both sides alternate; medians are reported, and what the result is
worth beside how long it took.

    python scripts/bench_solvers.py --threads 2 --repeats 7 [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import linear_operator
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from linear_operator.utils.linear_cg import linear_cg

from gpx.kernels import RBF
from gpx.linalg import RelativeResidual, conjugate_gradients, pivoted_cholesky


def seconds(function, device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    out = function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, out


def alternate(ours, theirs, repeats, device):
    """Median seconds of each, and the results of the last run."""
    ours(), theirs()
    times = ([], [])
    results = [None, None]
    for _ in range(repeats):
        for i, function in enumerate((ours, theirs)):
            elapsed, results[i] = seconds(function, device)
            times[i].append(elapsed)
    return [statistics.median(t) for t in times], results


def bench_pivoted_cholesky(n, rank, dtype, repeats, device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64).to(device, dtype)
    kernel = RBF(lengthscale=0.5, outputscale=1.0).to(device, dtype)
    peer = ScaleKernel(RBFKernel()).to(device, dtype)
    peer.base_kernel.lengthscale, peer.outputscale = 0.5, 1.0

    def ours():
        with torch.no_grad():
            matrix = kernel(x)
            return pivoted_cholesky(
                lambda i: kernel.evaluate(x[i], x), matrix.diagonal(), rank
            ).residual.sum()

    def theirs():
        with torch.no_grad(), linear_operator.settings.preconditioner_tolerance(1e-30):
            matrix = peer(x).evaluate_kernel()
            factor, _ = linear_operator.pivoted_cholesky(
                matrix, rank, error_tol=1e-30, return_pivots=True
            )
            return matrix.diagonal().sum() - factor.square().sum()

    times, errors = alternate(ours, theirs, repeats, device)
    return times, f"trace error {float(errors[0]):.4f} / {float(errors[1]):.4f}"


def bench_cg(n, columns, steps, dtype, repeats, device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64).to(device)
    matrix = RBF(lengthscale=0.5, outputscale=1.0).to(device, torch.float64).evaluate(x, x).detach()
    matrix = (matrix + 0.1 * torch.eye(n, dtype=torch.float64, device=device)).to(dtype)
    rhs = torch.randn(n, columns, generator=generator, dtype=torch.float64).to(device, dtype)
    impossible = RelativeResidual(1e-30)

    def ours():
        found = conjugate_gradients(
            matrix, rhs, stop=impossible, max_iterations=steps, on_failure="return"
        )
        return found.solution, found.report

    def theirs():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return linear_cg(matrix, rhs, tolerance=1e-30, max_iter=steps, max_tridiag_iter=0), None

    def products():
        out = rhs
        for _ in range(steps):
            out = matrix @ rhs
        return out, None

    times, results = alternate(ours, theirs, repeats, device)
    bare = statistics.median(seconds(products, device)[0] for _ in range(repeats))
    exact, reference = matrix.double(), rhs.double()

    def residual(solution):
        gap = torch.linalg.vector_norm(reference - exact @ solution.double(), dim=0)
        return float((gap / torch.linalg.vector_norm(reference, dim=0)).max())

    report = results[0][1]
    return times, (
        f"true relative residual {residual(results[0][0]):.2e} / {residual(results[1][0]):.2e}, "
        f"reported by gpx {report.residual:.2e}; the {steps} products alone {bare * 1e3:.0f} ms"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    print(
        f"{device}, {options.threads} threads, median of {options.repeats}; gpx / linear_operator"
    )
    for dtype in (torch.float64, torch.float32):
        for name, (times, note) in (
            (
                "pivoted Cholesky n=10000 rank 100",
                bench_pivoted_cholesky(10_000, 100, dtype, options.repeats, device),
            ),
            (
                "100 CG steps n=2000, 11 sides",
                bench_cg(2_000, 11, 100, dtype, options.repeats, device),
            ),
        ):
            ours, theirs = times
            print(
                f"{str(dtype).removeprefix('torch.'):8} {name:34} {ours * 1e3:8.1f} / "
                f"{theirs * 1e3:8.1f} ms  {theirs / ours:5.1f} times faster; {note}"
            )


if __name__ == "__main__":
    main()
