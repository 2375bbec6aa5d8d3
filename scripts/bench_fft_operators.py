"""Toeplitz and interpolation products of gpx against linear_operator and bare FFTs.

    python scripts/bench_fft_operators.py [--device cuda] [--threads 2] [--runs 7] [--quick]

Every figure is the median of interleaved runs in this process. For linear_operator a new operator
is built for every product, as its own models do after each step. gpx is timed with a new spectrum
("fresh") and with the stored spectrum of a plan ("kept"), as in the loop of a solver.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from linear_operator.operators import InterpolatedLinearOperator, ToeplitzLinearOperator
from tables import show
from timing import Work, command_line, fair_in_turns, named
from torch import Tensor

from gpx.linalg import RegularAxis, interpolate
from gpx.linalg.fft_products import fast_length
from gpx.operators import Interpolated, Interpolation, Toeplitz

PEER = "linear_operator"
Group = tuple[str, dict[str, Work]]


def toeplitz_products(n: int, dtype: torch.dtype, device: str) -> list[Group]:
    """A product, and one with its gradient."""
    column = torch.exp(-torch.arange(n, dtype=dtype, device=device) / 50.0)
    right = torch.randn(n, 1, dtype=dtype, device=device)
    length = fast_length(2 * n - 1)
    kept, bare_spectrum = Toeplitz(column), torch.fft.rfft(column, n=length)
    leaf = column.clone().requires_grad_()

    def bare() -> Tensor:
        transformed = torch.fft.rfft(right.squeeze(-1), n=length)
        return torch.fft.irfft(transformed * bare_spectrum, n=length)[:n]

    def with_gradient(kind: type) -> None:
        leaf.grad = None
        (kind(leaf) @ right).sum().backward()

    title = f"Toeplitz product, n = {n:,}"
    return [
        (
            title,
            {
                PEER: lambda: ToeplitzLinearOperator(column) @ right,
                "gpx, fresh": lambda: Toeplitz(column) @ right,
                "gpx, kept": lambda: kept @ right,
                "bare torch.fft, two real FFTs": bare,
            },
        ),
        (
            f"{title}, with gradient",
            {
                PEER: lambda: with_gradient(ToeplitzLinearOperator),
                "gpx": lambda: with_gradient(Toeplitz),
            },
        ),
    ]


def ski_products(n: int, m: int, dtype: torch.dtype, device: str) -> list[Group]:
    """W T W^T times one column and eight."""
    x = torch.rand(n, 1, dtype=dtype, device=device)
    indices, values = interpolate(x, [RegularAxis.covering(0.0, 1.0, m)])
    column = torch.exp(-((torch.arange(m, dtype=dtype, device=device) / 200.0) ** 2))
    weights = Interpolation(values, indices, num_columns=m)
    kept = Interpolated(weights, Toeplitz(column))

    def theirs() -> InterpolatedLinearOperator:
        grid = ToeplitzLinearOperator(column)
        return InterpolatedLinearOperator(grid, indices, values, indices, values)

    def fresh() -> Interpolated:
        return Interpolated(Interpolation(values, indices, num_columns=m), Toeplitz(column))

    groups = []
    for c in (1, 8):
        right = torch.randn(n, c, dtype=dtype, device=device)
        work: dict[str, Work] = {
            PEER: lambda right=right: theirs() @ right,
            f"{PEER}, in a solver": lambda right=right: theirs()._matmul(right),
            "gpx, all fresh": lambda right=right: fresh() @ right,
            "gpx, weights kept, kernel new": lambda right=right: (
                Interpolated(weights, Toeplitz(column)) @ right
            ),
            "gpx, kept": lambda right=right: kept @ right,
        }
        groups.append((f"SKI product, n = {n:,}, grid {m:,}, {c} columns", work))
    return groups


def small_products(dtype: torch.dtype, device: str) -> Group:
    """Overhead of small products."""
    column = torch.exp(-torch.arange(64, dtype=dtype, device=device) / 5.0)
    right = torch.randn(64, 1, dtype=dtype, device=device)
    theirs, ours = ToeplitzLinearOperator(column), Toeplitz(column)
    dense = ours.to_dense()

    def thousand(product: Work) -> Work:
        def run() -> None:
            for _ in range(1000):
                product()

        return run

    return "1,000 products of a 64 x 64 Toeplitz", {
        PEER: thousand(lambda: theirs @ right),
        f"{PEER}, fresh": thousand(lambda: ToeplitzLinearOperator(column) @ right),
        "gpx, kept": thousand(lambda: ours @ right),
        "gpx, fresh": thousand(lambda: Toeplitz(column) @ right),
        "plain dense matmul": thousand(lambda: dense @ right),
    }


def main() -> None:
    parser = command_line(__doc__, threads=2)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    scale, device, rows = 10 if options.quick else 1, options.device, []
    for dtype in (torch.float64, torch.float32):
        for title, work in (
            *toeplitz_products(1_000_000 // scale, dtype, device),
            *ski_products(100_000 // scale, 10_000 // scale, dtype, device),
            small_products(dtype, device),
        ):
            with torch.set_grad_enabled(title.endswith("gradient")):
                found = fair_in_turns(work, options.runs, device)
            for name, seconds in found.items():
                row: dict[str, Any] = {"work": title, "dtype": named(dtype), "by": name}
                row |= {"ms": 1e3 * seconds, "times faster": found[PEER] / seconds}
                rows.append(row)
    show(rows, f"{device}, {options.threads} threads, medians of {options.runs} turns")


if __name__ == "__main__":
    main()
