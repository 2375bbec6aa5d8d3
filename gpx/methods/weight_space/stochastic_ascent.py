"""Stochastic natural-gradient steps on the weight-space evidence bound, one group at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.errors import NotPositiveDefinite
from gpx.linalg.cholesky import cholesky
from gpx.linalg.triangular import inverse_lower
from gpx.methods.weight_space.block_ascent import needs_float64
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cell_ascent import group_mean, group_products


@dataclass(frozen=True)
class Averaging:
    """How natural parameters of a group average with the estimate from a batch.

    Attributes:
        step: rho in (0, 1], weight of the new estimate; 1 at the first visit.
        points: N that the likelihood stands for; n in the end, fewer before n rows were seen.
        prior_scale: s, factor of the prior precision; V / G while V of G groups stand in for all.
        last_points, last_prior_scale: both at the last visit of the group.
    """

    step: float
    points: int
    prior_scale: float
    last_points: int
    last_prior_scale: float

    @property
    def kept(self) -> float:
        """Factor of the old likelihood part, (1 - rho) N / N_last."""
        return (1.0 - self.step) * self.points / self.last_points


@torch.no_grad()
def natural_step(
    basis: Basis,
    family: BlockDiagonalWeights,
    group: int,
    x: Tensor,
    residual: Tensor,
    *,
    noise: Tensor,
    num_data: int,
    averaging: Averaging,
) -> Tensor:
    """Average natural parameters of one group with their estimate from a batch, in place.

    Given the other groups the optimum of the bound has precision A / noise + s S and linear term
    (r + A mu) / noise, with A = Phi_g^T Phi_g and r = Phi_g^T (y - Phi mu) summed over N points.
    Sums over a uniform batch times N / rows are unbiased for both. The likelihood's part averages,

        A_t = (1 - rho) (N / N_last) A_{t-1} + rho (N / rows) Phi_g^T Phi_g

    and likewise the linear term; the prior's part is s S, exactly. The mean follows from both. With
    rho = 1/t and N = t rows that is Bayesian updating by one batch after the other; with N = n and
    sum rho = infinity, sum rho^2 finite the fixed point is block ascent on all data. The new
    precision is at least rho times the batch's own, so that whatever rho the step is a proximal one
    on the batch and cannot overshoot there.

    Args:
        basis: phi with S diagonal.
        family: q; means, covariance roots and evidence terms of the group are replaced.
        group: number.
        x (rows, d): uniform sample of the inputs.
        residual (rows,): y - Phi mu there, float64, with the group's own part in Phi mu; exact.
        noise (): noise variance.
        num_data: n, for the evidence terms.
        averaging: weights of old and new.

    Returns:
        change (b,): new weights minus old ones, float64.

    Raises:
        NotPositiveDefinite: the system is singular even in float64.

    Cost: O(rows b^2 + b^3) time, O(b^2) memory for b columns; free of n and of m.
    Source: Hoffman et al. 2013 (stochastic natural gradients), on blocks of Evans and Nair 2020.
    """
    cells, members = family.cells, family.cells.group(group)
    scale = averaging.points / x.shape[0]
    variance = noise.detach().double()
    old = group_mean(family, group).double()
    columns = torch.cat([cells.columns(cell, x.device) for cell in members])
    prior = basis.precision_diagonal(columns).detach().double()
    probe = cells.features(basis, members[0], x[:256])
    column_square = float(probe.double().square().mean()) * x.shape[0]
    ridge = float(variance * prior.min()) * averaging.prior_scale / scale / averaging.step
    dtype = x.dtype
    if needs_float64(column_square, ridge, columns.shape[0]):
        dtype = torch.float64
    previous = None
    if averaging.step < 1.0:
        previous = _likelihood_precision(family, members, averaging.last_prior_scale * prior)
        previous.mul_(averaging.kept)

    def attempt(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        gram, moment = group_products(basis, cells, group, x, residual, dtype=dtype)
        gram.mul_(scale)
        system = gram * (averaging.step / variance)
        if previous is not None:
            system.add_(previous)
        system.diagonal().add_(averaging.prior_scale * prior)
        # the averages above, less what the old mean already solves
        right = averaging.step * scale * moment / variance
        shrinkage = averaging.prior_scale - averaging.kept * averaging.last_prior_scale
        right -= shrinkage * prior * old
        factor, _ = cholesky(
            system, name=f"precision of {columns.shape[0]} basis functions", ladder=(0.0,)
        )
        return system, torch.cholesky_solve(right[:, None], factor)[:, 0], gram

    try:
        system, change, gram = attempt(dtype)
    except NotPositiveDefinite:
        if dtype == torch.float64:
            raise
        system, change, gram = attempt(torch.float64)
    new = (old + change).to(family.mean.dtype)
    start = 0
    for cell in members:
        own = slice(start, start + cells.size(cell))
        start = own.stop
        cells.write(family.mean.data, cell, new[own])
        factor, _ = cholesky(system[own, own], name=f"precision of cell {cell}", ladder=(0.0,))
        root = inverse_lower(factor)
        family.covariance.store(cell, root)
        product = gram[own, own] * (root.T @ root)  # the lower triangle counts twice
        trace = (2.0 * product.sum() - product.diagonal().sum()) * num_data / averaging.points
        family.terms[cell] = torch.stack(
            (
                trace,
                -2.0 * factor.diagonal().log().sum(),
                (root.square() @ prior[own]).sum(),
                prior[own] @ new[own].double().square(),
            )
        ).cpu()
    return new.double() - old


def _likelihood_precision(
    family: BlockDiagonalWeights, members: list[int], prior: Tensor
) -> Tensor:
    """Lower triangle of Sigma_g^-1 - diag(prior) (b, b), block-diagonal over the cells."""
    out = torch.zeros(prior.shape[0], prior.shape[0], dtype=torch.float64, device=prior.device)
    start = 0
    for cell in members:
        root = family.covariance.root(cell, torch.float64)
        assert root is not None, "a step below one averages with an earlier visit"
        own = slice(start, start + root.shape[0])
        start = own.stop
        inverse = inverse_lower(root)
        out[own, own] = torch.tril(inverse @ inverse.T)
    out.diagonal().sub_(prior)
    return out
