"""Warm start of weight-space models: block ascent on the weight mean, with exact solves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.methods.weight_space.group_solves import WeightGroup, fitted_values, group_system


@dataclass(frozen=True)
class BlockReport:
    """Result of block solves.

    Attributes:
        solves: number of groups solved.
        visited: leading blocks that were solved at least once.
        residual_variance: mean squared training residual afterwards.
        float64_products: whether any feature products ran in float64.
    """

    solves: int
    visited: int
    residual_variance: float
    float64_products: bool


def solve_order(num_groups: int, *, warm_start: bool, solves: int, share: float) -> list[tuple]:
    """Order of the solves: group numbers, each with the factor of its prior precision.

    A warm start solves the first group with ``share`` of the prior precision, as if it were the
    whole basis. ``solves`` further groups follow in turn at the true prior, starting from the
    second after a warm start.
    """
    first = [(0, share)] if warm_start else []
    return first + [((k + warm_start) % num_groups, 1.0) for k in range(solves)]


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

    With ``warm_start`` the first group is solved as if it were the whole basis (prior precision
    scaled by b / m). Each further solve is exact for one group given the others (Gauss-Seidel,
    groups in turn): the bound never falls, and the limit is the exact posterior mean. A sweep is
    m / b solves.

    Args:
        basis: phi with S diagonal.
        mean (B, W): weight means, changed in place.
        x (n, d), y (n,): all training data.
        noise (): noise variance.
        group: blocks per solve.
        warm_start: solve the first group as if it were the whole basis, first.
        solves: further solves of one group each, at the true prior.

    Cost: O(n b^2 + b^3) time per solve, O(b^2 + n) memory.
    Source: coordinate ascent on Evans and Nair 2020 (QSGP), equation 2.
    """
    lists = torch.arange(basis.num_blocks, device=x.device).split(group)
    fitted = fitted_values(
        ((WeightGroup.of_blocks(basis, b), mean[b].reshape(-1)) for b in lists), x
    )
    share = lists[0].shape[0] / basis.num_blocks
    order = solve_order(len(lists), warm_start=warm_start, solves=solves, share=share)
    float64_products = False
    for number, prior_scale in order:
        blocks = lists[number]
        weights = WeightGroup.of_blocks(basis, blocks)
        old = mean[blocks].reshape(-1).double()
        prior = prior_scale * weights.prior_precision()
        residual = y.double() - fitted
        system = group_system(weights, x, residual, weight=1.0 / float(noise), prior=prior)
        change = system.solve(system.moment - prior * old)
        mean[blocks] = (old + change).to(mean.dtype).view(-1, basis.block_size)
        fitted += weights.values(change, x)
        float64_products = float64_products or system.dtype == torch.float64
    residual_variance = float((y.double() - fitted).square().mean())
    visited = sum(blocks.shape[0] for blocks in lists[: len(order)])
    return BlockReport(len(order), visited, residual_variance, float64_products)
