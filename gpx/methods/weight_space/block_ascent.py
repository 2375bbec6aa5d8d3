"""Exact solves for a group of weights: the warm start of weight-space models, block ascent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.linalg.cholesky import cholesky

ROW_CHUNK = 4096
COLUMN_PANEL = 1024
FLOAT32_SAFETY = 32.0
"""How far the float32 error of the normal matrix must stay below its ridge (``needs_float64``)."""


@dataclass(frozen=True)
class BlockReport:
    """What block solves did.

    Attributes:
        solves: how many groups of blocks were solved.
        visited: leading blocks that were solved at least once.
        residual_variance: mean squared training residual afterwards, squared target units.
        float64_products: whether the feature products ran in float64.
    """

    solves: int
    visited: int
    residual_variance: float
    float64_products: bool


def needs_float64(column_square: float, ridge: float, size: int) -> bool:
    """Whether float32 products are too coarse for the system A + ridge I with b = ``size`` columns.

    Rounding gives A an error matrix of norm about eps32 * a_rr * sqrt(b) (independent entries);
    where that comes near the ridge, small eigenvalues of the system are noise and Cholesky may
    fail (measured: Matern-3/2 on kin40k with a large outputscale over a small noise).
    """
    error = torch.finfo(torch.float32).eps * column_square * size**0.5
    return FLOAT32_SAFETY * error > ridge


@torch.no_grad()
def normal_equations(
    basis: Basis, blocks: Tensor, x: Tensor, y: Tensor, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A = Phi_B^T Phi_B (b, b) and Phi_B^T y (b,) in float64, streamed over rows.

    Products run in ``dtype`` per chunk of rows and are summed in float64. Only the lower triangle
    of A is computed by products (in panels) and then mirrored.

    Cost: about 0.6 * 2 n b^2 operations, O(b^2 + chunk * b) memory.
    """
    size = blocks.shape[0] * basis.block_size
    gram = torch.zeros(size, size, dtype=torch.float64, device=x.device)
    moment = torch.zeros(size, dtype=torch.float64, device=x.device)
    for rows, targets in zip(x.split(ROW_CHUNK), y.split(ROW_CHUNK), strict=True):
        features = basis.block_features(rows.to(dtype), blocks).T  # (b, chunk), contiguous
        moment += (features @ targets.to(dtype)).double()
        for start in range(0, size, COLUMN_PANEL):
            stop = min(start + COLUMN_PANEL, size)
            gram[start:stop, :stop] += features[start:stop] @ features[:stop].T
    lower = torch.tril(gram)
    return lower + torch.tril(gram, -1).T, moment


@torch.no_grad()
def fitted_values(basis: Basis, blocks: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """Phi_B w in float64, (n,), with features in x's dtype; weights (b,). Cost O(n b)."""
    chunks = [
        (weights.to(x.dtype) @ basis.block_features(rows, blocks).T).double()
        for rows in x.split(ROW_CHUNK)
    ]
    return torch.cat(chunks)


@torch.no_grad()
def solve_block(gram: Tensor, right: Tensor, ridge: Tensor) -> Tensor:
    """(A + diag(ridge))^-1 right by Cholesky in float64; ridge = noise * prior precision (b,)."""
    system = gram.clone()
    system.diagonal().add_(ridge)
    factor, _ = cholesky(
        system, name=f"normal matrix of {gram.shape[0]} basis functions", ladder=(0.0, 1e-12, 1e-10)
    )
    return torch.cholesky_solve(right[:, None], factor)[:, 0]


@torch.no_grad()
def ascend(
    basis: Basis,
    mean: Tensor,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    *,
    group: int,
    warm_start: bool,
    solves: int,
) -> BlockReport:
    """Maximise the evidence bound over the weight mean, one group of blocks at a time, in place.

    With ``warm_start`` the first group is solved as if it were the whole basis (prior scaled by
    b / m), which puts the whole posterior mean into it at once. Each further solve is exact for one
    group given the others (Gauss-Seidel, groups in turn): the bound never falls, and the limit is
    the exact posterior mean. A sweep is m / b solves; the warm-started group comes last in it.

    Args:
        basis: phi with S diagonal.
        mean (B, W): weight means; changed.
        x (n, d), y (n,): all training data.
        noise (): noise variance.
        group: blocks per solve.
        warm_start: solve the first group for the whole prior first.
        solves: further solves of one group each, at the true prior.

    Cost: O(n b^2 + b^3) time per solve, O(b^2 + n) memory.
    Source: coordinate ascent on Evans and Nair 2020 (QSGP), equation 2.
    """
    num_blocks = basis.num_blocks
    groups = list(torch.arange(num_blocks, device=x.device).split(group))
    noise64 = noise.double()
    share = groups[0].shape[0] / num_blocks
    size = group * basis.block_size
    probe = basis.block_features(x[:ROW_CHUNK], groups[0][:1])
    column_square = float(probe.double().square().mean()) * x.shape[0]
    least = basis.precision_diagonal(basis.columns_of(groups[0])).min()
    ridge = float(noise64 * least) * (share if warm_start else 1.0)
    coarse = x.dtype != torch.float64 and not needs_float64(column_square, ridge, size)
    dtype = torch.float32 if coarse else torch.float64
    fitted = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    for blocks in groups:
        if bool((mean[blocks] != 0).any()):
            fitted += fitted_values(basis, blocks, mean[blocks].reshape(-1), x)
    done = 0

    def update(blocks: Tensor, prior_scale: float) -> None:
        nonlocal fitted, done
        old = mean[blocks].reshape(-1).double()
        gram, moment = normal_equations(basis, blocks, x, y.double() - fitted, dtype=dtype)
        precision = basis.precision_diagonal(basis.columns_of(blocks)).double()
        new = solve_block(gram, moment + gram @ old, noise64 * prior_scale * precision)
        mean[blocks] = new.to(mean.dtype).view(-1, basis.block_size)
        fitted = fitted + fitted_values(basis, blocks, new - old, x)
        done += 1

    if warm_start:
        update(groups[0], share)
    offset = 1 if warm_start else 0
    for k in range(solves):
        update(groups[(k + offset) % len(groups)], 1.0)
    residual = float((y.double() - fitted).square().mean())
    visited = sum(blocks.shape[0] for blocks in groups[: solves + offset])
    return BlockReport(done, visited, residual, dtype == torch.float64)
