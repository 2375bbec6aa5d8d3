"""Steps on the weight-space evidence bound in mean and covariance of one group of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.linalg.cholesky import cholesky
from gpx.linalg.triangular import inverse_lower
from gpx.methods.base.objective import Evidence, Kind
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.group_solves import WeightGroup, group_system

TRACE = 0
"""Column of ``BlockDiagonalWeights.terms`` with tr(Phi_g^T Phi_g Sigma_g)."""


@dataclass(frozen=True)
class Averaging:
    """Weights with which natural parameters of a group are averaged with those of a batch.

    Attributes:
        step: rho in (0, 1], weight of the new estimate; 1 at the first visit.
        points: N, number of points the likelihood counts for: those seen so far, at most n.
        prior_scale: s, factor of the prior precision; V / G while the model has V of G groups.
        last_points, last_prior_scale: both at the previous visit of the group.
    """

    step: float
    points: int
    prior_scale: float
    last_points: int
    last_prior_scale: float

    @classmethod
    def exact(cls, num_data: int, prior_scale: float = 1.0) -> Averaging:
        """All rows at once: the optimum of the group, without averaging."""
        return cls(1.0, num_data, prior_scale, num_data, prior_scale)

    @property
    def kept(self) -> float:
        """Factor of the old likelihood term, (1 - rho) N / N_last."""
        return (1.0 - self.step) * self.points / self.last_points


@torch.no_grad()
def natural_step(
    family: BlockDiagonalWeights,
    group: int,
    weights: WeightGroup,
    x: Tensor,
    residual: Tensor,
    *,
    noise: Tensor,
    num_data: int,
    averaging: Averaging,
) -> Tensor:
    """Average natural parameters of one group with their estimate from a batch, in place.

    Given the other groups, the optimum of the bound has precision A / noise + s S and linear term
    (r + A mu) / noise, with A = Phi_g^T Phi_g and r = Phi_g^T (y - Phi mu) summed over N points;
    the covariance of a cell is the inverse of its diagonal block of that precision.

    With all rows and ``Averaging.exact`` the step sets the group to this optimum (block ascent,
    which never lowers the bound). Otherwise sums over a uniform batch times N / rows are unbiased
    for A and r, and the likelihood term is averaged,

        A_t = (1 - rho) (N / N_last) A_{t-1} + rho (N / rows) Phi_g^T Phi_g

    and likewise the linear term, while the prior term s S is exact. With rho = 1/t and N = t rows
    this is Bayesian updating by one batch after the other; with N = n, sum rho = infinity and
    sum rho^2 finite it converges to block ascent on all data. The new precision is at least rho
    times that of the batch, so that the step cannot overshoot on the batch for any rho.

    Args:
        family: q; means, covariance roots and evidence terms of the group are replaced.
        group: number.
        weights: the columns of the group, of a basis with S diagonal.
        x (rows, d): all inputs, or a uniform sample of them.
        residual (rows,): y - Phi mu there, float64, where Phi mu includes this group; exact.
        noise (): noise variance.
        num_data: n, for the evidence terms.
        averaging: weights of old and new parameters.

    Returns:
        change (b,): new weights minus old ones, float64.

    Raises:
        NotPositiveDefinite: the system is singular even in float64.

    Cost: O(rows b^2 + b^3) time, O(b^2) memory for b columns; independent of n and m.
    Source: coordinate ascent variational inference; Hoffman et al. 2013 (stochastic natural
    gradients), on blocks of Evans and Nair 2020.
    """
    cells = family.cells
    variance = float(noise.detach().double())
    old = cells.read_group(family.mean.data, group).double()
    prior = weights.prior_precision()
    data_weight = averaging.step * averaging.points / x.shape[0] / variance
    earlier = None
    if averaging.step < 1.0:
        earlier = _likelihood_precision(family, group, averaging.last_prior_scale * prior)
        earlier.mul_(averaging.kept)
    system = group_system(
        weights,
        x,
        residual,
        weight=data_weight,
        prior=averaging.prior_scale * prior,
        earlier=earlier,
    )
    # the averaged linear term minus precision * old mean is moment - shrinkage * prior * old
    shrinkage = averaging.prior_scale - averaging.kept * averaging.last_prior_scale
    new = (old + system.solve(system.moment - shrinkage * prior * old)).to(family.mean.dtype)
    start = 0
    for cell in cells.group(group):
        own = slice(start, start + cells.size(cell))
        start = own.stop
        cells.write(family.mean.data, cell, new[own])
        factor, _ = cholesky(
            system.precision[own, own], name=f"precision of cell {cell}", ladder=(0.0,)
        )
        root = inverse_lower(factor)
        family.covariance.store(cell, root)
        prior_trace = (root.square() @ prior[own]).sum()
        # trace of the batch's term: that of the whole precision minus prior and earlier visits
        trace = root.shape[0] - averaging.prior_scale * prior_trace
        if earlier is not None:
            product = earlier[own, own] * (root.T @ root)  # the lower triangle counts twice
            trace = trace - 2.0 * product.sum() + product.diagonal().sum()
        family.terms[cell] = torch.stack(
            (
                trace * variance / averaging.step * num_data / averaging.points,
                -2.0 * factor.diagonal().log().sum(),
                prior_trace,
                prior[own] @ new[own].double().square(),
            )
        ).cpu()
    return new.double() - old


def _likelihood_precision(family: BlockDiagonalWeights, group: int, prior: Tensor) -> Tensor:
    """Lower triangle of Sigma_g^-1 - diag(prior) (b, b), block-diagonal over the cells."""
    out = torch.zeros(prior.shape[0], prior.shape[0], dtype=torch.float64, device=prior.device)
    start = 0
    for cell in family.cells.group(group):
        root = family.covariance.root(cell, torch.float64)
        assert root is not None, "a step below one averages with an earlier visit"
        own = slice(start, start + root.shape[0])
        start = own.stop
        inverse = inverse_lower(root)
        out[own, own] = torch.tril(inverse @ inverse.T)
    out.diagonal().sub_(prior)
    return out


@torch.no_grad()
def diagonal_terms(
    basis: Basis, family: BlockDiagonalWeights, noise: Tensor, num_data: int
) -> None:
    """Set ``terms`` of all cells not solved yet; O(m)."""
    for cell in range(family.cells.num_cells):
        if family.is_solved(cell):
            continue
        # 1 / c^2 of the closed-form mean-field scales
        prior = basis.precision_diagonal(family.cells.columns(cell, family.mean.device)).double()
        square = num_data * basis.mean_column_square().double()
        total = prior + square * family.cells.read(family.column_ratio, cell) / noise.double()
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
def tracked_evidence(
    family: BlockDiagonalWeights,
    misfit: float,
    noise: float,
    num_data: int,
    log_precision: float,
    *,
    columns: int | None = None,
    prior_scale: float = 1.0,
    kind: Kind = "lower_bound",
) -> Evidence:
    """The ELBO in nats from tracked numbers; O(cells).

    Args:
        misfit: |y - Phi mu|^2 over all data, or an estimate.
        noise: noise variance.
        num_data: n.
        log_precision: log|S| of the model's columns.
        columns: number of the model's columns (with ``family.solved_only`` those of solved cells);
            None: all.
        prior_scale: s, for a prior precision of s S.
        kind: "estimate" if the misfit is one.
    """
    trace, log_det, prior_trace, prior_mean = family.terms.sum(0).tolist()
    if columns is None:
        columns = family.num_blocks * family.block_size
    log_precision += columns * math.log(prior_scale)
    prior = prior_scale * (prior_trace + prior_mean)
    kl = 0.5 * (prior - columns - log_precision - log_det)
    values = {
        "fit": -0.5 * (misfit / noise + num_data * math.log(2.0 * math.pi * noise)),
        "trace": -0.5 * trace / noise,
        "complexity": -kl,
    }
    parts = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    return Evidence(torch.stack(list(parts.values())).sum(), kind, parts)
