"""Block ascent on the weight-space evidence bound: one group of weights at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.errors import NotPositiveDefinite
from gpx.linalg.cholesky import cholesky
from gpx.linalg.triangular import inverse_lower
from gpx.methods.weight_space.block_ascent import ROW_CHUNK, needs_float64
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cells import Cells

COLUMN_PANEL = 256
"""Least columns of a product at once; an eighth of a group where that is more."""

TRACE, LOG_DET, PRIOR_TRACE, PRIOR_MEAN = range(4)
"""Columns of ``BlockDiagonalWeights.terms``."""


@dataclass(frozen=True)
class GroupSolve:
    """What one solve changed.

    Attributes:
        change (b,): new weights minus old ones, float64.
        float64_products: whether feature products ran in float64.
    """

    change: Tensor
    float64_products: bool


@torch.no_grad()
def group_products(
    basis: Basis, cells: Cells, group: int, x: Tensor, residual: Tensor, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Lower triangle of Phi_g^T Phi_g (b, b) and Phi_g^T residual (b,) in float64.

    Features and their products are made in ``dtype`` by chunks of rows and summed in float64; the
    upper triangle is left at zero or partly filled.

    Cost: about 1.2 n b^2 operations, O(b^2 + chunk b) memory.
    """
    size = sum(cells.size(cell) for cell in cells.group(group))
    gram = torch.zeros(size, size, dtype=torch.float64, device=x.device)
    moment = torch.zeros(size, dtype=torch.float64, device=x.device)
    panel = max(COLUMN_PANEL, size // 8)
    for rows, targets in zip(x.split(ROW_CHUNK), residual.split(ROW_CHUNK), strict=True):
        features = cells.group_features(basis, group, rows.to(dtype))
        moment += (features @ targets.to(dtype)).double()
        for start in range(0, size, panel):
            stop = min(start + panel, size)
            gram[start:stop, :stop] += features[start:stop] @ features[:stop].T
    return gram.tril_(), moment


@torch.no_grad()
def group_values(basis: Basis, cells: Cells, group: int, weights: Tensor, x: Tensor) -> Tensor:
    """Phi_g w in float64 (n,), features in x's dtype; weights (b,). Cost O(n b)."""
    chunks = [
        (weights.to(x.dtype) @ cells.group_features(basis, group, rows)).double()
        for rows in x.split(ROW_CHUNK)
    ]
    return torch.cat(chunks)


@torch.no_grad()
def solve_group(
    basis: Basis,
    family: BlockDiagonalWeights,
    group: int,
    x: Tensor,
    residual: Tensor,
    *,
    noise: Tensor,
    prior_scale: float = 1.0,
) -> GroupSolve:
    """Set q of one group of cells to its optimum given the others, in place.

    With A = Phi_g^T Phi_g and r = Phi_g^T residual the optimum of the bound over the group has

        precision  P = A / noise + S_g,     mean  P^-1 (r + A mu_g) / noise;

    and the covariance of a cell is the inverse of its diagonal block of P. The bound is at its
    maximum over the group afterwards: block ascent, which never lowers it. (``natural_step`` takes
    mini-batches.)

    Args:
        basis: phi with S diagonal.
        family: q; means, covariance roots and evidence terms of the group are replaced.
        group: number.
        x (n, d): all inputs.
        residual (n,): y - Phi mu there, float64, with the group's own part in Phi mu.
        noise (): noise variance.
        prior_scale: factor of S_g in this step; below one the group stands in for others too.

    Raises:
        NotPositiveDefinite: the system is singular even in float64.

    Cost: O(n b^2 + b^3) time, O(b^2) memory for b columns; free of m.
    Source: coordinate ascent variational inference.
    """
    cells, members = family.cells, family.cells.group(group)
    variance = noise.detach().double()
    old = torch.cat([cells.read(family.mean.data, cell) for cell in members]).double()
    columns = torch.cat([cells.columns(cell, x.device) for cell in members])
    precision = basis.precision_diagonal(columns).detach().double()
    probe = cells.features(basis, members[0], x[:256])
    column_square = float(probe.double().square().mean()) * x.shape[0]
    ridge = float(variance * precision.min()) * prior_scale
    dtype = x.dtype
    if needs_float64(column_square, ridge, columns.shape[0]):
        dtype = torch.float64

    def attempt(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        gram, moment = group_products(basis, cells, group, x, residual, dtype=dtype)
        own = gram @ old + gram.T @ old - gram.diagonal() * old  # A mu from the lower triangle
        system = gram / variance
        system.diagonal().add_(prior_scale * precision)
        linear = (moment + own) / variance
        factor, _ = cholesky(
            system, name=f"precision of {columns.shape[0]} basis functions", ladder=(0.0,)
        )
        new = torch.cholesky_solve(linear[:, None], factor)[:, 0]
        return system, new

    try:
        system, new = attempt(dtype)
    except NotPositiveDefinite:
        if dtype == torch.float64:
            raise
        dtype = torch.float64
        system, new = attempt(dtype)
    new = new.to(family.mean.dtype).double()
    start = 0
    for cell in members:
        own = slice(start, start + cells.size(cell))
        start = own.stop
        cells.write(family.mean.data, cell, new[own].to(family.mean.dtype))
        factor, _ = cholesky(system[own, own], name=f"precision of cell {cell}", ladder=(0.0,))
        root = inverse_lower(factor)
        family.covariance.store(cell, root)
        prior_trace = (root.square() @ precision[own]).sum()
        # A = noise (P - S): its trace with Sigma needs no product
        trace = variance * (root.shape[0] - prior_scale * prior_trace)
        log_det = -2.0 * factor.diagonal().log().sum()
        prior_mean = precision[own] @ new[own].square()
        family.terms[cell] = torch.stack((trace, log_det, prior_trace, prior_mean)).cpu()
    return GroupSolve(new - old, dtype == torch.float64 and x.dtype != torch.float64)


def diagonal_precision(
    basis: Basis, family: BlockDiagonalWeights, cell: int, noise: Tensor, num_data: int
) -> Tensor:
    """1 / c^2 (b,) of the closed-form mean-field scales of ``cell``, float64."""
    columns = family.cells.columns(cell, family.mean.device)
    ratio = family.cells.read(family.column_ratio, cell).double()
    square = num_data * basis.mean_column_square().double() * ratio  # type: ignore[operator]
    return square / noise.double() + basis.precision_diagonal(columns).double()


@torch.no_grad()
def diagonal_terms(
    basis: Basis, family: BlockDiagonalWeights, noise: Tensor, num_data: int
) -> None:
    """Fill ``terms`` of all cells that were not solved; O(m), once."""
    for cell in range(family.cells.num_cells):
        if family.is_solved(cell):
            continue
        precision = basis.precision_diagonal(family.cells.columns(cell, family.mean.device))
        total = diagonal_precision(basis, family, cell, noise, num_data)
        prior = precision.double()
        mean = family.cells.read(family.mean.data, cell).double()
        family.terms[cell] = torch.stack(
            (
                (noise.double() * (total - prior) / total).sum(),
                -total.log().sum(),
                (prior / total).sum(),
                prior @ mean.square(),
            )
        ).cpu()


@torch.no_grad()
def evidence_terms(
    family: BlockDiagonalWeights,
    misfit: float,
    noise: float,
    num_data: int,
    log_precision: float,
    *,
    columns: int | None = None,
    prior_scale: float = 1.0,
) -> dict[str, float]:
    """Terms of the ELBO in nats from tracked numbers; O(cells).

    Args:
        misfit: |y - Phi mu|^2 over all data, or an estimate.
        noise: noise variance.
        num_data: n.
        log_precision: log|S| of those columns.
        columns: of the model, with ``family.solved_only`` those of the solved cells; null for all.
        prior_scale: s, for a prior precision of s S.
    """
    trace, log_det, prior_trace, prior_mean = family.terms.sum(0).tolist()
    if columns is None:
        columns = family.num_blocks * family.block_size
    log_precision += columns * math.log(prior_scale)
    prior = prior_scale * (prior_trace + prior_mean)
    kl = 0.5 * (prior - columns - log_precision - log_det)
    return {
        "fit": -0.5 * (misfit / noise + num_data * math.log(2.0 * math.pi * noise)),
        "trace": -0.5 * trace / noise,
        "complexity": -kl,
    }


def group_mean(family: BlockDiagonalWeights, group: int) -> Tensor:
    """Weight means (b,) of a group, one cell after the other."""
    cells = family.cells
    return torch.cat([cells.read(family.mean.data, cell) for cell in cells.group(group)])
