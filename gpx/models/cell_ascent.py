"""Block ascent on the weight-space evidence bound: one group of weights at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.bases.cells import Cells
from gpx.errors import NotPositiveDefinite
from gpx.linalg.cholesky import cholesky
from gpx.linalg.triangular import inverse_lower
from gpx.models.block_ascent import COLUMN_PANEL, ROW_CHUNK, needs_float64
from gpx.variational.weights_block_diagonal import BlockDiagonalWeights

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
    for rows, targets in zip(x.split(ROW_CHUNK), residual.split(ROW_CHUNK), strict=True):
        features = cells.group_features(basis, group, rows.to(dtype))
        moment += (features @ targets.to(dtype)).double()
        for start in range(0, size, COLUMN_PANEL):
            stop = min(start + COLUMN_PANEL, size)
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
    num_data: int,
    step: float = 1.0,
    prior_scale: float = 1.0,
) -> GroupSolve:
    """Natural-gradient step on q of one group of cells given the others, in place.

    With A = n / rows Phi_g^T Phi_g and r = n / rows Phi_g^T residual, unbiased for their sums over
    all data, the optimum of the bound over the group has the natural parameters

        precision  L^ = A / noise + S_g,     linear  h^ = (r + A mu_g) / noise;

    both are averaged with the current ones, L <- (1 - step) L + step L^ and likewise h. The mean is
    L^-1 h of the whole group, the covariance of a cell the inverse of its diagonal block of L. With
    all rows and step = 1 this is the exact block solve, after which the bound is at its maximum
    over the group: block ascent, which never lowers it.

    Args:
        basis: phi with S diagonal.
        family: q; means, covariance roots and evidence terms of the group are replaced.
        group: number.
        x (rows, d): all inputs or a uniform sample of them.
        residual (rows,): y - Phi mu there, float64, with the group's own part in Phi mu; may be an
            unbiased estimate.
        noise (): noise variance.
        num_data: n.
        step: rho in (0, 1].
        prior_scale: factor of S_g in this step; below one the group stands in for others too.

    Raises:
        NotPositiveDefinite: the system is singular even in float64.

    Cost: O(rows b^2 + b^3) time, O(b^2) memory for b columns; free of n and of m.
    Source: coordinate ascent; Hoffman et al. 2013 (stochastic natural gradients).
    """
    cells, members = family.cells, family.cells.group(group)
    scale = num_data / x.shape[0]
    variance = noise.detach().double()
    old = torch.cat([cells.read(family.mean.data, cell) for cell in members]).double()
    columns = torch.cat([cells.columns(cell, x.device) for cell in members])
    precision = basis.precision_diagonal(columns).detach().double()
    probe = cells.features(basis, members[0], x[:256])
    column_square = float(probe.double().square().mean()) * x.shape[0]
    ridge = float(variance * precision.min()) * prior_scale / scale / step
    dtype = x.dtype
    if needs_float64(column_square, ridge, columns.shape[0]):
        dtype = torch.float64
    previous = None
    if step < 1.0:
        parts = [_precision(basis, family, cell, noise, num_data) for cell in members]
        previous = torch.block_diag(*parts)

    def attempt(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        gram, moment = group_products(basis, cells, group, x, residual, dtype=dtype)
        gram.mul_(scale)
        own = gram @ old + gram.T @ old - gram.diagonal() * old  # A mu from the lower triangle
        system = gram / variance
        system.diagonal().add_(prior_scale * precision)
        linear = (scale * moment + own) / variance
        if previous is not None:
            system.mul_(step).add_(torch.tril(previous), alpha=1.0 - step)
            linear = step * linear + (1.0 - step) * (previous @ old)
        factor, _ = cholesky(
            system, name=f"precision of {columns.shape[0]} basis functions", ladder=(0.0,)
        )
        new = torch.cholesky_solve(linear[:, None], factor)[:, 0]
        return system, new, gram

    try:
        system, new, gram = attempt(dtype)
    except NotPositiveDefinite:
        if dtype == torch.float64:
            raise
        dtype = torch.float64
        system, new, gram = attempt(dtype)
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
        if previous is None:  # A = noise (L - S): its trace with Sigma needs no product
            trace = variance * (root.shape[0] - prior_scale * prior_trace)
        else:
            covariance = root.T @ root
            product = gram[own, own] * covariance
            trace = 2.0 * product.sum() - product.diagonal().sum()
        log_det = -2.0 * factor.diagonal().log().sum()
        prior_mean = precision[own] @ new[own].square()
        family.terms[cell] = torch.stack((trace, log_det, prior_trace, prior_mean)).cpu()
    return GroupSolve(new - old, dtype == torch.float64 and x.dtype != torch.float64)


def _precision(
    basis: Basis, family: BlockDiagonalWeights, cell: int, noise: Tensor, num_data: int
) -> Tensor:
    """Sigma_g^-1 (b, b) of the current q in float64: from its root, or of the mean-field scales."""
    root = family.covariance.root(cell, torch.float64)
    if root is None:
        return torch.diag(diagonal_precision(basis, family, cell, noise, num_data))
    inverse = inverse_lower(root)
    return inverse @ inverse.T


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
    family: BlockDiagonalWeights, misfit: float, noise: float, num_data: int, log_precision: float
) -> dict[str, float]:
    """Terms of the ELBO in nats from tracked numbers; O(cells).

    Args:
        misfit: |y - Phi mu|^2 over all data, or an estimate.
        noise: noise variance.
        num_data: n.
        log_precision: log|S|.
    """
    trace, log_det, prior_trace, prior_mean = family.terms.sum(0).tolist()
    columns = family.num_blocks * family.block_size
    kl = 0.5 * (prior_trace + prior_mean - columns - log_precision - log_det)
    return {
        "fit": -0.5 * (misfit / noise + num_data * math.log(2.0 * math.pi * noise)),
        "trace": -0.5 * trace / noise,
        "complexity": -kl,
    }


@torch.no_grad()
def sampled_values(
    basis: Basis,
    family: BlockDiagonalWeights,
    group: int,
    visited: int,
    x: Tensor,
    columns: int,
    *,
    generator: torch.Generator | None,
) -> Tensor:
    """Unbiased estimate of Phi mu at x from a bounded number of columns; float64 (rows,).

    Only the first ``visited`` groups have weights. ``group`` itself always counts; of the others as
    many as ``columns`` allow are drawn without replacement and weighted by their inverse share.
    Where all fit, the value is exact.

    Args:
        basis, family: phi and q.
        group: about to be solved.
        visited: leading groups whose weights may differ from zero.
        x (rows, d): inputs.
        columns: budget of basis functions beside the group's own.
        generator: on the CPU or x's device; only used when groups are left out.

    Cost: O(rows columns) whatever m is.
    """
    cells = family.cells
    others = visited - (1 if group < visited else 0)
    count = min(others, max(1, columns // (cells.largest * cells.parts)))
    if others <= 0:
        chosen: list[int] = []
    elif count == others:
        chosen = [k for k in range(visited) if k != group]
    else:
        device = x.device if generator is None else generator.device
        drawn: set[int] = set()
        while len(drawn) < count:  # rejection: free of the number of groups
            candidate = int(torch.randint(visited, (), generator=generator, device=device))
            if candidate != group:
                drawn.add(candidate)
        chosen = sorted(drawn)
    total = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    for other in chosen:
        total += group_values(basis, cells, other, group_mean(family, other), x)
    if chosen:
        total *= others / len(chosen)
    if group < visited:
        total += group_values(basis, cells, group, group_mean(family, group), x)
    return total


def group_mean(family: BlockDiagonalWeights, group: int) -> Tensor:
    """Weight means (b,) of a group, one cell after the other."""
    cells = family.cells
    return torch.cat([cells.read(family.mean.data, cell) for cell in cells.group(group)])
