"""Kronecker and low-rank operators against ``linear_operator``, in one run.

    python scripts/bench_kronecker_operators.py --threads 2

Calls of both libraries alternate, so that other load on the machine hits both; times are medians.
Every call builds its operator anew from the same tensors, as a training step does, unless the row
says "kept". Errors are against the same quantity in float64: log-determinants from the eigenvalues
of the factors, solves by their residual in float64.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

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
from torch import Tensor

from gpx.operators import Kronecker, KroneckerPlusDiagonal, LowRankPlusDiagonal


class Row(NamedTuple):
    what: str
    ours: Callable[[], Tensor]
    peer: Callable[[], Tensor]
    error: Callable[[Tensor], float]


def grid_covariance(size: int, lengthscale: float, noise: float) -> Tensor:
    x = torch.linspace(0.0, 1.0, size, dtype=torch.float64)
    square = ((x[:, None] - x) / lengthscale).square()
    return torch.exp(-0.5 * square) + noise * torch.eye(size, dtype=torch.float64)


def relative(expected: Tensor) -> Callable[[Tensor], float]:
    wide = expected.double()
    return lambda found: float((found.double() - wide).norm() / wide.norm())


def kronecker_rows(size: int, dtype: torch.dtype, device: str) -> list[Row]:
    exact = [grid_covariance(size, scale, 1e-3).to(device) for scale in (0.05, 0.1, 0.2)]
    factors = [f.to(dtype) for f in exact]
    logdet = sum(size**2 * torch.linalg.eigvalsh(f.double()).log().sum() for f in factors)
    count = size**3
    right = torch.randn(count, 1, dtype=dtype, device=device)
    noise = torch.tensor([0.1], dtype=dtype, device=device)
    kept = KroneckerPlusDiagonal(Kronecker(*factors), noise)
    wide = KroneckerPlusDiagonal(Kronecker(*[f.double() for f in factors]), noise.double())

    def peer_operator() -> KroneckerProductAddedDiagLinearOperator:
        product = KroneckerProductLinearOperator(*map(DenseLinearOperator, factors))
        return KroneckerProductAddedDiagLinearOperator(
            product, ConstantDiagLinearOperator(noise, diag_shape=count)
        )

    kept_peer = peer_operator()

    def residual(found: Tensor) -> float:
        return float((wide @ found.double() - right.double()).norm() / right.double().norm())

    return [
        Row(
            f"Kronecker logdet, 3 x {size}",
            lambda: Kronecker(*factors).logdet(),
            lambda: KroneckerProductLinearOperator(*map(DenseLinearOperator, factors)).logdet(),
            lambda found: abs(float(found) / float(logdet) - 1.0),
        ),
        Row(
            f"Kronecker + noise solve, 3 x {size}",
            lambda: KroneckerPlusDiagonal(Kronecker(*factors), noise).solve(right),
            lambda: peer_operator().solve(right),
            residual,
        ),
        Row(
            f"Kronecker + noise solve, 3 x {size}, kept",
            lambda: kept.solve(right),
            lambda: kept_peer.solve(right),
            residual,
        ),
        Row(
            f"Kronecker product, 3 x {size}",
            lambda: Kronecker(*factors) @ right,
            lambda: KroneckerProductLinearOperator(*map(DenseLinearOperator, factors)) @ right,
            relative(Kronecker(*[f.double() for f in factors]) @ right.double()),
        ),
    ]


def low_rank_rows(n: int, k: int, dtype: torch.dtype, device: str) -> list[Row]:
    factor = torch.randn(n, k, dtype=dtype, device=device) / k**0.5
    diagonal = torch.rand(n, dtype=dtype, device=device) + 0.5
    right = torch.randn(n, 1, dtype=dtype, device=device)

    def residual(found: Tensor) -> float:
        x, f = found.double(), factor.double()
        return float(
            (f @ (f.mT @ x) + diagonal.double()[:, None] * x - right).norm() / right.norm()
        )

    return [
        Row(
            f"low rank + diagonal solve, n = {n}, k = {k}",
            lambda: LowRankPlusDiagonal(factor, diagonal).solve(right),
            lambda: LowRankRootAddedDiagLinearOperator(
                LowRankRootLinearOperator(factor), DiagLinearOperator(diagonal)
            ).solve(right),
            residual,
        )
    ]


def small_rows(dtype: torch.dtype, device: str) -> list[Row]:
    """1,000 products of a 64 x 64 operator; the plain products are timed beside them."""
    factors = [torch.randn(8, 8, dtype=dtype, device=device) for _ in range(2)]
    low, noise = torch.randn(64, 4, dtype=dtype, device=device), torch.ones(64).to(factors[0])
    right = torch.randn(64, 1, dtype=dtype, device=device)
    ours, peer = (
        Kronecker(*factors),
        KroneckerProductLinearOperator(*map(DenseLinearOperator, factors)),
    )
    ours_low = LowRankPlusDiagonal(low, noise)
    peer_low = LowRankRootAddedDiagLinearOperator(
        LowRankRootLinearOperator(low), DiagLinearOperator(noise)
    )

    def thousand(product: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            for _ in range(999):
                product()
            return product()

        return run

    def bare() -> Tensor:
        return ((right.view(8, 8).mT @ factors[0].mT).view(8, 8).mT @ factors[1].mT).view(64, 1)

    dense = torch.kron(factors[0].double(), factors[1].double())
    dense_low = low.double() @ low.double().mT + torch.diag(noise.double())
    return [
        Row(
            "1,000 products, Kronecker 8 x 8",
            thousand(lambda: ours @ right),
            thousand(lambda: peer @ right),
            relative(dense @ right.double()),
        ),
        Row("  overhead over bare products", thousand(bare), thousand(bare), lambda found: 0.0),
        Row(
            "1,000 products, low rank + diagonal 64",
            thousand(lambda: ours_low @ right),
            thousand(lambda: peer_low @ right),
            relative(dense_low @ right.double()),
        ),
        Row(
            "  overhead over bare products",
            thousand(lambda: low @ (low.mT @ right) + noise[:, None] * right),
            thousand(lambda: low @ (low.mT @ right) + noise[:, None] * right),
            lambda found: 0.0,
        ),
    ]


def measure(row: Row, repeats: int, device: str) -> tuple[float, float, float, float]:
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    errors = {}
    for name, call in (("ours", row.ours), ("peer", row.peer)):
        errors[name] = row.error(call())  # also warms up
    for _ in range(repeats):
        for name, call in (("ours", row.ours), ("peer", row.peer)):
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return (
        statistics.median(times["ours"]),
        statistics.median(times["peer"]),
        errors["ours"],
        errors["peer"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=int, default=100, help="rows of each of three factors")
    parser.add_argument("--rows", type=int, default=100_000, help="n of the low-rank row")
    parser.add_argument("--rank", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads; milliseconds")
    print(
        f"{'':44} {'dtype':8} {'gpx':>9} {'peer':>9} {'ratio':>6} {'gpx error':>10} "
        f"{'peer error':>10}"
    )
    for dtype in (torch.float64, torch.float32):
        rows = [
            *kronecker_rows(args.size, dtype, args.device),
            *low_rank_rows(args.rows, args.rank, dtype, args.device),
            *small_rows(dtype, args.device),
        ]
        name = str(dtype).removeprefix("torch.")
        previous = (0.0, 0.0)
        for row in rows:
            ours, peer, our_error, peer_error = measure(row, args.repeats, args.device)
            if row.what.startswith(" "):
                ours, peer = previous[0] - ours, previous[1] - peer
            print(
                f"{row.what:44} {name:8} {ours:9.2f} {peer:9.2f} {peer / ours:6.2f} "
                f"{our_error:10.1e} {peer_error:10.1e}"
            )
            previous = (ours, peer)


if __name__ == "__main__":
    with torch.no_grad():
        main()
