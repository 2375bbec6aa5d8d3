"""Toeplitz and interpolation products of gpx against linear_operator and bare FFTs, as ratios.

    python scripts/bench_fft_operators.py [--device cuda] [--threads 2] [--runs 7] [--quick]

Every figure is the median of interleaved runs in this process; above one, gpx is faster. A fresh
operator is built for every product of linear_operator, as its own models do after each step; gpx
is timed both ways: "fresh" (the spectrum made anew) and "kept" (the spectrum of the plan, as in a
solver's loop).
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from linear_operator.operators import InterpolatedLinearOperator, ToeplitzLinearOperator
from torch import Tensor

from gpx.linalg import RegularAxis, interpolate
from gpx.linalg.fft_products import fast_length
from gpx.operators import Interpolated, Interpolation, Toeplitz

warnings.filterwarnings("ignore", category=UserWarning)


def medians(
    contestants: dict[str, Callable[[], object]], runs: int, device: str
) -> dict[str, float]:
    """Median seconds of each, run in turns so that all meet the same machine."""
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(runs + 1):
        for name, run in contestants.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first turn warms caches and plans up
                seen[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seen.items()}


def report(title: str, found: dict[str, float], peer: str) -> None:
    print(title)
    for name, seconds in found.items():
        print(
            f"  {name:<34}{seconds * 1e3:>11.3f} ms   {found[peer] / seconds:>7.2f} x", flush=True
        )


def toeplitz_product(n: int, dtype: torch.dtype, device: str, runs: int) -> None:
    column = torch.exp(-torch.arange(n, dtype=dtype, device=device) / 50.0)
    right = torch.randn(n, 1, dtype=dtype, device=device)
    length = fast_length(2 * n - 1)
    kept = Toeplitz(column)
    bare_spectrum = torch.fft.rfft(column, n=length)

    def bare() -> Tensor:
        transformed = torch.fft.rfft(right.squeeze(-1), n=length)
        return torch.fft.irfft(transformed * bare_spectrum, n=length)[:n]

    with torch.no_grad():
        found = medians(
            {
                "linear_operator": lambda: ToeplitzLinearOperator(column) @ right,
                "gpx, fresh": lambda: Toeplitz(column) @ right,
                "gpx, kept": lambda: kept @ right,
                "bare torch.fft, two real FFTs": bare,
            },
            runs,
            device,
        )
    report(f"Toeplitz product, n = {n:,}, {dtype}", found, "linear_operator")

    leaf = column.clone().requires_grad_()

    def with_gradient(kind: type) -> None:
        leaf.grad = None
        (kind(leaf) @ right).sum().backward()

    found = medians(
        {
            "linear_operator": lambda: with_gradient(ToeplitzLinearOperator),
            "gpx": lambda: with_gradient(Toeplitz),
        },
        max(3, runs // 2),
        device,
    )
    report("  ... with its gradient", found, "linear_operator")


def ski_product(n: int, m: int, dtype: torch.dtype, device: str, runs: int) -> None:
    x = torch.rand(n, 1, dtype=dtype, device=device)
    axis = RegularAxis.covering(0.0, 1.0, m)
    indices, values = interpolate(x, [axis])
    column = torch.exp(-((torch.arange(m, dtype=dtype, device=device) / 200.0) ** 2))
    weights = Interpolation(values, indices, num_columns=m)
    kept = Interpolated(weights, Toeplitz(column))
    for c in (1, 8):
        right = torch.randn(n, c, dtype=dtype, device=device)

        def theirs(right: Tensor = right) -> object:
            grid = ToeplitzLinearOperator(column)
            return InterpolatedLinearOperator(grid, indices, values, indices, values) @ right

        def their_solver_product(right: Tensor = right) -> object:
            grid = ToeplitzLinearOperator(column)
            made = InterpolatedLinearOperator(grid, indices, values, indices, values)
            return made._matmul(right)

        def fresh(right: Tensor = right) -> object:
            made = Interpolation(values, indices, num_columns=m)
            return Interpolated(made, Toeplitz(column)) @ right

        def new_kernel(right: Tensor = right) -> object:
            return Interpolated(weights, Toeplitz(column)) @ right

        def ours(right: Tensor = right) -> object:
            return kept @ right

        with torch.no_grad():
            found = medians(
                {
                    "linear_operator": theirs,
                    "linear_operator, in a solver": their_solver_product,
                    "gpx, all fresh": fresh,
                    "gpx, weights kept, kernel new": new_kernel,
                    "gpx, kept": ours,
                },
                runs,
                device,
            )
        report(
            f"SKI product, n = {n:,}, grid {m:,}, {c} columns, {dtype}", found, "linear_operator"
        )


def small_products(dtype: torch.dtype, device: str, runs: int) -> None:
    column = torch.exp(-torch.arange(64, dtype=dtype, device=device) / 5.0)
    right = torch.randn(64, 1, dtype=dtype, device=device)
    theirs, ours, dense = ToeplitzLinearOperator(column), Toeplitz(column), None
    dense = ours.to_dense()

    def thousand(operator: object) -> Callable[[], None]:
        def run() -> None:
            for _ in range(1000):
                operator @ right  # type: ignore[operator]

        return run

    def thousand_new(kind: type) -> Callable[[], None]:
        def run() -> None:
            for _ in range(1000):
                kind(column) @ right

        return run

    found = medians(
        {
            "linear_operator": thousand(theirs),
            "linear_operator, fresh": thousand_new(ToeplitzLinearOperator),
            "gpx, kept": thousand(ours),
            "gpx, fresh": thousand_new(Toeplitz),
            "plain dense matmul": thousand(dense),
        },
        runs,
        device,
    )
    report(f"1,000 products of a 64 x 64 Toeplitz, {dtype}", found, "linear_operator")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    scale = 10 if options.quick else 1
    print(f"torch {torch.__version__}, {options.device}, {options.threads} threads")
    for dtype in (torch.float64, torch.float32):
        toeplitz_product(1_000_000 // scale, dtype, options.device, options.runs)
        ski_product(100_000 // scale, 10_000 // scale, dtype, options.device, options.runs)
        small_products(dtype, options.device, options.runs)


if __name__ == "__main__":
    main()
