"""Solvers of gpx against linear_operator's on the same machine, in the same run.

    python scripts/bench_solvers.py --threads 2 --repeats 7 [--device cuda]
    python scripts/bench_solvers.py --threads 1 --repeats 4 --steps

Pivoted Cholesky (n = 10^4, rank 100) and 100 steps of conjugate gradients (n = 2,000, 11 right-hand
sides), in float64 and float32. The libraries alternate, and times are medians. The accuracy of each
result is given too: the remaining trace of a factor, and the largest true relative residual of a
solve.

``--steps`` measures the cost of one step at several sizes instead, with and without a
preconditioner of rank 100: the smallest processor time of a thread between two products, which
depends little on other load.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import linear_operator
import torch
from linear_operator.operators import (
    AddedDiagLinearOperator,
    ConstantDiagLinearOperator,
    DenseLinearOperator,
)
from linear_operator.utils.linear_cg import linear_cg
from peers import rbf
from tables import show
from timing import Work, command_line, fair_in_turns, named
from torch import Tensor

from gpx.kernels import RBF
from gpx.linalg import (
    LowRankPlusNoise,
    RelativeResidual,
    conjugate_gradients,
    pivoted_cholesky,
)
from gpx.linalg.thin_products import DenseProduct

LENGTHSCALE = 0.5
IMPOSSIBLE = 1e-30
"""A tolerance that is never reached, so that all solvers take the given number of steps."""
NOISE = 0.1
RANK = 100
STEPS = 12


def points(n: int) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=generator, dtype=torch.float64), generator


def pivoted(n: int, rank: int, dtype: torch.dtype, device: str) -> tuple[dict[str, Work], Any]:
    """Times of both factorisations, and the remaining trace of one."""
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
    """Times of both solves and of the products alone, and the largest true relative residual."""
    x, generator = points(n)
    exact = RBF(lengthscale=LENGTHSCALE, outputscale=1.0).double().evaluate(x, x).detach()
    exact = (exact + NOISE * torch.eye(n, dtype=torch.float64)).to(device)
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


class Stamped:
    """A matrix product that records the processor time of its thread at every call."""

    def __init__(self, product: Callable[[Tensor], Tensor]) -> None:
        self.product = product
        self.marks: list[int] = []

    def __call__(self, vectors: Tensor) -> Tensor:
        self.marks.append(time.thread_time_ns())
        return self.product(vectors)

    def least_ms(self) -> float:
        """Smallest time between two calls, without the first two, which differ."""
        marks = self.marks[1:]
        return 1e-6 * min(b - a for a, b in pairwise(marks))


def of_steps(n: int, columns: int, dtype: torch.dtype, turns: int) -> list[dict[str, Any]]:
    """Milliseconds of a step and of its product, with and without a preconditioner."""
    x, generator = points(n)
    noise_free = RBF(lengthscale=LENGTHSCALE, outputscale=1.0).double().evaluate(x, x).detach()
    factor = pivoted_cholesky(lambda i: noise_free[i], noise_free.diagonal(), RANK).factor
    matrix = (noise_free + NOISE * torch.eye(n, dtype=torch.float64)).to(dtype)
    rhs = torch.randn(n, columns, generator=generator, dtype=torch.float64).to(dtype)
    noise = ConstantDiagLinearOperator(torch.tensor([NOISE], dtype=dtype), diag_shape=n)
    operator = AddedDiagLinearOperator(DenseLinearOperator(noise_free.to(dtype)), noise)
    with (
        linear_operator.settings.max_preconditioner_size(RANK),
        linear_operator.settings.min_preconditioning_size(1),
        linear_operator.settings.preconditioner_tolerance(IMPOSSIBLE),
    ):
        their_solve = operator._preconditioner()[0]
    rows = []
    for title, solves in {
        "none": (None, None),
        f"rank {RANK}": (LowRankPlusNoise(factor.to(dtype), NOISE), their_solve),
    }.items():
        least: dict[str, float] = {}
        for _ in range(turns):
            ours, theirs = Stamped(DenseProduct(matrix)), Stamped(matrix.matmul)
            conjugate_gradients(
                ours,
                rhs,
                preconditioner=solves[0],
                stop=RelativeResidual(IMPOSSIBLE),
                max_iterations=STEPS,
                on_failure="return",
            )
            linear_cg(
                theirs,
                rhs,
                tolerance=IMPOSSIBLE,
                max_iter=STEPS,
                max_tridiag_iter=0,
                preconditioner=solves[1],
            )
            alone = Stamped(DenseProduct(matrix))
            by_columns = rhs.mT.contiguous().mT
            for _ in range(STEPS):
                alone(by_columns)
            found = {"gpx": ours, "linear_operator": theirs, "product of gpx": alone}
            for name, stamped in found.items():
                least[name] = min(least.get(name, float("inf")), stamped.least_ms())
        rows.append(
            {
                "dtype": named(dtype),
                "n": n,
                "sides": columns,
                "preconditioner": title,
                **{f"{name}, ms": ms for name, ms in least.items()},
                "times faster": least["linear_operator"] / least["gpx"],
            }
        )
    return rows


def main() -> None:
    parser = command_line(__doc__, threads=2, repeats=7)
    parser.add_argument("--steps", action="store_true", help="what one step costs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    if options.steps:
        for n in (2000, 4000):
            for dtype in (torch.float64, torch.float32):
                for columns in (1, 11, 33):
                    rows += of_steps(n, columns, dtype, options.repeats)
        show(rows, f"one step, {STEPS} of them in {options.repeats} turns, least time of a thread")
        return
    for dtype in (torch.float64, torch.float32):
        for title, (work, worth) in {
            "pivoted Cholesky, n = 10,000, rank 100": pivoted(10_000, 100, dtype, options.device),
            "100 steps of CG, n = 2,000, 11 sides": gradients(2000, 11, 100, dtype, options.device),
        }.items():
            seconds = fair_in_turns(work, options.repeats, options.device)
            found = {name: 1e3 * each for name, each in seconds.items()}
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
