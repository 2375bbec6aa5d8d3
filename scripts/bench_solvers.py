"""Solvers of gpx against linear_operator's on the same machine, in the same run.

    python scripts/bench_solvers.py --threads 2 --repeats 7 [--device cuda]

Pivoted Cholesky (n = 10^4, rank 100) and 100 steps of conjugate gradients (n = 2,000, 11 right-hand
sides), float64 and float32. All alternate; medians are reported, and what the result is worth
beside how long it took: the trace that a factor leaves, the largest true relative residual of a
solve.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import linear_operator
import torch
from linear_operator.utils.linear_cg import linear_cg
from peers import rbf
from tables import show
from timing import Work, fair, in_turns, named
from torch import Tensor

from gpx.kernels import RBF
from gpx.linalg import RelativeResidual, conjugate_gradients, pivoted_cholesky

LENGTHSCALE = 0.5
IMPOSSIBLE = 1e-30
"""Tolerance that no solver reaches: all take the steps that they are told."""


def points(n: int) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=generator, dtype=torch.float64), generator


def pivoted(n: int, rank: int, dtype: torch.dtype, device: str) -> tuple[dict[str, Work], Any]:
    """Factors of both, and the trace that one leaves."""
    x = points(n)[0].to(device, dtype)
    kernel = RBF(lengthscale=LENGTHSCALE, outputscale=1.0).to(device, dtype)
    peer = rbf(None, LENGTHSCALE).to(device, dtype)

    @torch.no_grad()
    def ours() -> Tensor:
        found = pivoted_cholesky(lambda i: kernel.evaluate(x[i], x), kernel(x).diagonal(), rank)
        return found.residual.sum()

    @torch.no_grad()
    def theirs() -> Tensor:
        matrix = peer(x).evaluate_kernel()
        factor, _ = linear_operator.pivoted_cholesky(
            matrix, rank, error_tol=IMPOSSIBLE, return_pivots=True
        )
        return matrix.diagonal().sum() - factor.square().sum()

    return {"gpx": ours, "linear_operator": theirs}, float


def gradients(
    n: int, columns: int, steps: int, dtype: torch.dtype, device: str
) -> tuple[dict[str, Work], Callable[[Tensor], float]]:
    """Solves of both, the products alone, and the largest true relative residual of one."""
    x, generator = points(n)
    exact = RBF(lengthscale=LENGTHSCALE, outputscale=1.0).double().evaluate(x, x).detach()
    exact = (exact + 0.1 * torch.eye(n, dtype=torch.float64)).to(device)
    right = torch.randn(n, columns, generator=generator, dtype=torch.float64).to(device)
    matrix, rhs = exact.to(dtype), right.to(dtype)

    def ours() -> Tensor:
        stop = RelativeResidual(IMPOSSIBLE)
        return conjugate_gradients(
            matrix, rhs, stop=stop, max_iterations=steps, on_failure="return"
        ).solution

    def theirs() -> Tensor:
        return linear_cg(matrix, rhs, tolerance=IMPOSSIBLE, max_iter=steps, max_tridiag_iter=0)

    def products() -> None:
        for _ in range(steps):
            matrix @ rhs

    def residual(solution: Tensor) -> float:
        gap = torch.linalg.vector_norm(right - exact @ solution.double(), dim=0)
        return float((gap / torch.linalg.vector_norm(right, dim=0)).max())

    return {"gpx": ours, "linear_operator": theirs, "the products alone": products}, residual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float64, torch.float32):
        for title, (work, worth) in {
            "pivoted Cholesky, n = 10,000, rank 100": pivoted(10_000, 100, dtype, options.device),
            "100 steps of CG, n = 2,000, 11 sides": gradients(2000, 11, 100, dtype, options.device),
        }.items():
            times = in_turns(work, options.repeats, options.device)
            found = {k: 1e3 * fair(v, options.device, options.threads) for k, v in times.items()}
            for name, run in work.items():
                result = run()
                rows.append(
                    {
                        "work": title,
                        "dtype": named(dtype),
                        "by": name,
                        "ms": found[name],
                        "over gpx": found[name] / found["gpx"],
                        "left": None if result is None else worth(result),
                    }
                )
    show(rows, f"{options.device}, {options.threads} threads, medians of {options.repeats} turns")


if __name__ == "__main__":
    main()
