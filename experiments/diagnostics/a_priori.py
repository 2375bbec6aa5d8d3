"""Number of inducing points required by theory, and measured divergences.

    python experiments/diagnostics/a_priori.py            # 40 data sets: three minutes on one core
    python experiments/diagnostics/a_priori.py --quick    # 8 sets, nothing written: half a minute

Squared exponential kernel of lengthscale 1, standard normal inputs, noise variance 0.1; points
drawn from a determinantal process. Writes a_priori_*.json and RESULTS.md beside this file. Source:
Burt's thesis, sections 3.1 and 3.2, which has the theorems and no experiment.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import argument_parser, write
from torch import Tensor

from gpx.diagnostics import (
    determinantal_kl_bound,
    expected_kl,
    points_for_expected_kl,
    suggest_num_inducing,
)
from gpx.inducing import Determinantal
from gpx.kernels import RBF, Matern32
from gpx.kernels.mercer import mercer_spectrum

HERE = Path(__file__).resolve().parent
NOISE = 0.1
ONE = torch.ones(1, dtype=torch.float64)


def rbf() -> RBF:
    """Unit scales in float64."""
    return RBF(lengthscale=1.0, outputscale=1.0).double().requires_grad_(False)


def inputs(n: int, generator: torch.Generator) -> Tensor:
    """Standard normal (n, 1)."""
    return torch.randn(n, 1, generator=generator, dtype=torch.float64)


@torch.no_grad()
def averages(sets: int, steps: int) -> list[dict[str, Any]]:
    """Means over data sets of n = 200 points beside their bounds, one row per M."""
    kernel, n, noise = rbf(), 200, torch.tensor(NOISE, dtype=torch.float64)
    sizes = (4, 6, 8, 10)
    found: dict[int, list[tuple[float, float, float]]] = {m: [] for m in sizes}
    for seed in range(sets):
        draws = torch.Generator().manual_seed(seed)
        x = inputs(n, draws)
        values = torch.linalg.eigvalsh(kernel.evaluate(x)).flip(0).clamp(min=0.0)
        for m in sizes:
            z = Determinantal(steps=steps)(x, kernel, m, generator=draws)
            cross = kernel.evaluate(z, x)
            trace = n - float((cross * torch.linalg.solve(kernel.evaluate(z), cross)).sum())
            kl = float(expected_kl(kernel, x, z, noise))
            found[m].append((kl, trace, float(values[m:].sum())))
    tails = mercer_spectrum(kernel, ONE, max(sizes)).tails
    rows = []
    for m in sizes:
        kl, trace, beyond = (statistics.mean(column) for column in zip(*found[m], strict=True))
        tail = float(tails[m])
        rows.append(
            {
                "M": m,
                "E KL": kl,
                "E KL at most": float(determinantal_kl_bound(tail, m, n, NOISE)),
                "T": trace,
                "(M + 1) eigenvalues beyond M": (m + 1) * beyond,
                "eigenvalues beyond M": beyond,
                "n tail": n * tail,
            }
        )
    return rows


@torch.no_grad()
def growth(sizes: list[int]) -> list[dict[str, Any]]:
    """Points for one nat on average, by theory and by greedy choice, for two kernels."""
    rows = []
    for n in sizes:
        x = inputs(n, torch.Generator().manual_seed(0))
        rough = Matern32().double().requires_grad_(False)
        rows.append(
            {
                "n": n,
                "suggested": suggest_num_inducing(rbf(), ONE, n, NOISE, 1.0).num_inducing,
                "greedy, squared exponential": len(
                    points_for_expected_kl(rbf(), x, NOISE, 1.0).points
                ),
                "greedy, Matern 3/2": len(points_for_expected_kl(rough, x, NOISE, 1.0).points),
            }
        )
    return rows


REFERENCE = {
    # M: E KL, T, (M + 1) eigenvalues beyond M, eigenvalues beyond M; 40 other data sets
    4: (74.9, 10.36, 18.55, 3.710),
    6: (11.7, 1.95, 3.44, 0.4916),
    8: (1.22, 0.224, 0.268, 0.0298),
    10: (0.035, 0.0069, 0.0076, 6.9e-4),
}
"""An independent computation of the same means."""


def apart(row: dict[str, Any]) -> float:
    """Largest relative difference of a row's means from the reference."""
    names = ("E KL", "T", "(M + 1) eigenvalues beyond M", "eigenvalues beyond M")
    known = zip(names, REFERENCE[row["M"]], strict=True)
    return max(abs(row[name] / value - 1.0) for name, value in known)


def main() -> None:
    quick = argument_parser(__doc__, quick="fewer data sets").parse_args().quick
    folder = None if quick else HERE

    rows = averages(8 if quick else 40, 1500)
    write(
        folder,
        "a_priori_averages",
        "Average KL of points from a determinantal process",
        [
            f"n = 200, means over {8 if quick else 40} data sets. Every column is bounded by the "
            "one to",
            "its right: E KL by n (M + 1) tail / noise, T = tr(K_xx - Q_xx) by M + 1 times the",
            "sum of the eigenvalues of K_xx beyond M, and this on average by n times the Mercer "
            "tail. Reference:",
            "an independent computation on 40 other data sets. The mean of the last column but one",
            "over 40 data sets has a standard error of 4, 8, 14 and 19 %, so two such means can",
            "differ by 30 % at M = 10.",
        ],
        rows,
        {
            "E KL is at most its bound": all(r["E KL"] <= r["E KL at most"] for r in rows),
            "T is at most (M + 1) times its smallest possible value": all(
                r["T"] <= r["(M + 1) eigenvalues beyond M"] for r in rows
            ),
            "the sum of the eigenvalues beyond M is at most n times the tail": all(
                r["eigenvalues beyond M"] <= r["n tail"] for r in rows
            ),
            **{
                f"M = {r['M']}: means within 30 % of the reference (largest difference "
                f"{apart(r):.0%})": apart(r) < 0.3
                for r in rows
            },
        },
    )

    sizes = [250, 500, 1000, 2000, 4000] if quick else [250, 1000, 4000, 16_000, 64_000]
    rows = growth(sizes)
    smooth, rough = (
        [r[f"greedy, {k}"] for r in rows] for k in ("squared exponential", "Matern 3/2")
    )
    write(
        folder,
        "a_priori_growth",
        "Points for an average KL of one nat",
        [
            "`suggested` is computed before the inputs are known; the greedy numbers are the "
            "fewest points with T at most the noise",
            "variance times one nat. They grow as log(n) for the squared exponential and as a "
            "power of n for Matern.",
        ],
        rows,
        {
            "the suggested number of greedy points is enough": all(
                r["greedy, squared exponential"] <= r["suggested"] for r in rows
            ),
            "the number of points grows faster for the rough kernel": rough[-1] / rough[0]
            > 2.0 * smooth[-1] / smooth[0],
        },
    )


if __name__ == "__main__":
    main()
