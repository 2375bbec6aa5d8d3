"""Conjugate gradients with eigenfunctions of a grid as preconditioner.

    python experiments/grief/preconditioner.py            # n = 2000
    python experiments/grief/preconditioner.py --quick    # n = 500, nothing written

n points uniform in [0, 1]^2, squared exponential, noise variance 1e-4, 200 eigenfunctions of a
20 x 20 grid against a subset of 200 points and as many greedy ones, to a relative residual of 1e-6.
The source gives no numbers; the reference ones are an independent computation. Writes
preconditioner.json and RESULTS.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import argument_parser, write

from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.kernels import RBF
from gpx.linalg import (
    LowRankPlusNoise,
    conjugate_gradients,
    nystrom_preconditioner,
    pivoted_cholesky,
)
from gpx.models import IterativeOptions

HERE = Path(__file__).resolve().parent
NOISE, RANK = 1e-4, 200
REFERENCE = {0.1: (2626, 34, 85), 0.2: (946, 1, 5), 0.4: (277, 1, 3)}


@torch.no_grad()
def main() -> None:
    quick = argument_parser(__doc__, quick="500 points").parse_args().quick
    n = 500 if quick else 2000
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator)
    y = torch.randn(n, generator=generator)
    chosen = x[torch.randperm(n, generator=generator)[:RANK]]
    rows = []
    for lengthscale, reference in REFERENCE.items():
        kernel = RBF(lengthscale=lengthscale, outputscale=None)
        matrix = kernel.evaluate(x, x)
        matrix.diagonal().add_(NOISE)
        options = IterativeOptions(preconditioner="grief", rank=RANK)
        ours = PreconditionedKernel(kernel, x, torch.tensor(NOISE), options).preconditioner
        subset = nystrom_preconditioner(
            kernel.evaluate(chosen, chosen), kernel.evaluate(chosen, x), NOISE
        )
        found = pivoted_cholesky(
            lambda chosen, k=kernel: k.evaluate(x[chosen], x), torch.ones(n), RANK
        )
        greedy = LowRankPlusNoise(found.factor, NOISE, below_kernel=True)
        steps = [
            conjugate_gradients(
                matrix, y, preconditioner=q, max_iterations=10_000
            ).report.iterations
            for q in (None, ours.solve, subset.solve, greedy.solve)
        ]
        names = ("CG", "GRIEF", "subset", "greedy points")
        rows.append(
            {
                "lengthscale": lengthscale,
                **dict(zip(names, steps, strict=True)),
                **{f"{a}, reference": b for a, b in zip(names[:3], reference, strict=True)},
            }
        )
    notes = [
        f"n = {n}, rank {RANK}; iterations to a relative residual of 1e-6. Greedy points: "
        "incomplete pivoted Cholesky factor.",
        "Both are options of exact GPs (approx.iterative.preconditioner=grief or nystrom).",
    ]
    checks = {
        "at least 20 times fewer iterations than without a preconditioner": all(
            row["CG"] >= 20 * row["GRIEF"] for row in rows
        ),
        "fewer iterations than with a subset of as many points": all(
            row["GRIEF"] < row["subset"] for row in rows
        ),
    }
    title, folder = "Eigenfunctions as preconditioner", None if quick else HERE
    write(folder, "preconditioner", title, notes, rows, checks)


if __name__ == "__main__":
    main()
