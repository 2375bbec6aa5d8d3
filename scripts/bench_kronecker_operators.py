"""Kronecker and low-rank operators against ``linear_operator``, in one run.

    python scripts/bench_kronecker_operators.py --threads 2

Calls of both libraries alternate, so that other load slows both; times are medians. Every call
builds a new operator from the same tensors, as a training step does, unless the row says "kept".
Errors of log-determinants are against float64 values from the eigenvalues of the factors, errors
of solves are residuals in float64. Small products are also timed without operators, to show the
overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    KroneckerProductAddedDiagLinearOperator,
    KroneckerProductLinearOperator,
    LowRankRootAddedDiagLinearOperator,
    LowRankRootLinearOperator,
)
from tables import show
from timing import command_line, fair_in_turns, named
from torch import Tensor

from gpx.operators import Kronecker, KroneckerPlusDiagonal, LowRankPlusDiagonal

Call = Callable[[], Tensor]


class Pair(NamedTuple):
    """The same work in both libraries, the error of a result, and plain products, if timed."""

    what: str
    ours: Call
    peer: Call
    error: Callable[[Tensor], float]
    bare: Call | None = None


def grid_covariance(size: int, lengthscale: float, noise: float) -> Tensor:
    x = torch.linspace(0.0, 1.0, size, dtype=torch.float64)
    square = ((x[:, None] - x) / lengthscale).square()
    return torch.exp(-0.5 * square) + noise * torch.eye(size, dtype=torch.float64)


def relative(expected: Tensor) -> Callable[[Tensor], float]:
    wide = expected.double()
    return lambda found: float((found.double() - wide).norm() / wide.norm())


def peer_product(factors: list[Tensor]) -> KroneckerProductLinearOperator:
    return KroneckerProductLinearOperator(*map(DenseLinearOperator, factors))


def peer_low_rank(factor: Tensor, diagonal: Tensor) -> LowRankRootAddedDiagLinearOperator:
    low_rank = LowRankRootLinearOperator(factor)
    return LowRankRootAddedDiagLinearOperator(low_rank, DiagLinearOperator(diagonal))


def kronecker_pairs(size: int, dtype: torch.dtype, device: str) -> list[Pair]:
    exact = [grid_covariance(size, scale, 1e-3).to(device) for scale in (0.05, 0.1, 0.2)]
    factors = [f.to(dtype) for f in exact]
    logdet = float(sum(size**2 * torch.linalg.eigvalsh(f.double()).log().sum() for f in factors))
    right = torch.randn(size**3, 1, dtype=dtype, device=device)
    noise = torch.tensor([0.1], dtype=dtype, device=device)
    wide = KroneckerPlusDiagonal(Kronecker(*[f.double() for f in factors]), noise.double())

    def ours() -> KroneckerPlusDiagonal:
        return KroneckerPlusDiagonal(Kronecker(*factors), noise)

    def theirs() -> KroneckerProductAddedDiagLinearOperator:
        diagonal = ConstantDiagLinearOperator(noise, diag_shape=size**3)
        return KroneckerProductAddedDiagLinearOperator(peer_product(factors), diagonal)

    def residual(found: Tensor) -> float:
        return relative(right)(wide @ found.double())

    kept, kept_peer = ours(), theirs()
    return [
        Pair(
            f"Kronecker logdet, 3 x {size}",
            lambda: Kronecker(*factors).logdet(),
            lambda: peer_product(factors).logdet(),
            lambda found: abs(float(found) / logdet - 1.0),
        ),
        Pair(
            f"Kronecker + noise solve, 3 x {size}",
            lambda: ours().solve(right),
            lambda: theirs().solve(right),
            residual,
        ),
        Pair(
            f"Kronecker + noise solve, 3 x {size}, kept",
            lambda: kept.solve(right),
            lambda: kept_peer.solve(right),
            residual,
        ),
        Pair(
            f"Kronecker product, 3 x {size}",
            lambda: Kronecker(*factors) @ right,
            lambda: peer_product(factors) @ right,
            relative(Kronecker(*[f.double() for f in factors]) @ right.double()),
        ),
    ]


def low_rank_pair(n: int, k: int, dtype: torch.dtype, device: str) -> Pair:
    factor = torch.randn(n, k, dtype=dtype, device=device) / k**0.5
    diagonal = torch.rand(n, dtype=dtype, device=device) + 0.5
    right = torch.randn(n, 1, dtype=dtype, device=device)

    def residual(found: Tensor) -> float:
        x, f = found.double(), factor.double()
        return relative(right)(f @ (f.mT @ x) + diagonal.double()[:, None] * x)

    return Pair(
        f"low rank + diagonal solve, n = {n:,}, k = {k}",
        lambda: LowRankPlusDiagonal(factor, diagonal).solve(right),
        lambda: peer_low_rank(factor, diagonal).solve(right),
        residual,
    )


def small_pairs(dtype: torch.dtype, device: str) -> list[Pair]:
    """1,000 products of a 64 x 64 operator."""
    factors = [torch.randn(8, 8, dtype=dtype, device=device) for _ in range(2)]
    low, noise = torch.randn(64, 4, dtype=dtype, device=device), torch.ones(64).to(factors[0])
    right = torch.randn(64, 1, dtype=dtype, device=device)
    ours, peer = Kronecker(*factors), peer_product(factors)
    ours_low, peer_low = LowRankPlusDiagonal(low, noise), peer_low_rank(low, noise)

    def thousand(product: Call) -> Call:
        def run() -> Tensor:
            for _ in range(999):
                product()
            return product()

        return run

    def bare() -> Tensor:
        return ((right.view(8, 8).mT @ factors[0].mT).view(8, 8).mT @ factors[1].mT).view(64, 1)

    wide, wide_low = [f.double() for f in factors], low.double()
    dense_low = wide_low @ wide_low.mT + torch.diag(noise.double())
    return [
        Pair(
            "1,000 products, Kronecker 8 x 8",
            thousand(lambda: ours @ right),
            thousand(lambda: peer @ right),
            relative(torch.kron(*wide) @ right.double()),
            thousand(bare),
        ),
        Pair(
            "1,000 products, low rank + diagonal 64",
            thousand(lambda: ours_low @ right),
            thousand(lambda: peer_low @ right),
            relative(dense_low @ right.double()),
            thousand(lambda: low @ (low.mT @ right) + noise[:, None] * right),
        ),
    ]


@torch.no_grad()
def main() -> None:
    parser = command_line(__doc__, threads=2, repeats=5)
    parser.add_argument("--size", type=int, default=100, help="rows of each of three factors")
    parser.add_argument("--rows", type=int, default=100_000, help="n of the low-rank row")
    parser.add_argument("--rank", type=int, default=500)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float64, torch.float32):
        for pair in (
            *kronecker_pairs(args.size, dtype, args.device),
            low_rank_pair(args.rows, args.rank, dtype, args.device),
            *small_pairs(dtype, args.device),
        ):
            work = {"ours": pair.ours, "peer": pair.peer}
            errors = {name: pair.error(call()) for name, call in work.items()}
            work |= {"bare": pair.bare} if pair.bare else {}
            seconds = fair_in_turns(work, args.repeats, args.device)
            found = {name: 1e3 * each for name, each in seconds.items()}
            rows.append(
                {
                    "work": pair.what,
                    "dtype": named(dtype),
                    "gpx, ms": found["ours"],
                    "linear_operator, ms": found["peer"],
                    "ratio": found["peer"] / found["ours"],
                    "bare products, ms": found.get("bare"),
                    "gpx error": errors["ours"],
                    "linear_operator error": errors["peer"],
                }
            )
    show(rows, f"{args.device}, {args.threads} threads, medians of {args.repeats} turns")


if __name__ == "__main__":
    main()
