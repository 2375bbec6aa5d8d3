"""Predictive variances of an exact Gaussian process: a global projection, then nearby data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gpx.inference.noisy_kernel import PreconditionedKernel

BLOCK_BYTES = 2**26
"""Of one block of residual covariances and their inputs."""

ROUNDING = 64.0
"""Of residual covariances, in units of eps ||K||: goes on their diagonal, so that bounds hold."""


@torch.no_grad()
def explained_by_neighbours(
    system: PreconditionedKernel, image: Tensor, rest: Tensor, neighbours: int
) -> Tensor:
    """Variance of f that data near each test point explain beyond a projection; (b,), not negative.

    Given the functionals S^T y, observations i and j have covariance K_ij - w_i^T w_j (K with the
    noise) and f(x_*) has r_i with observation i. The data of largest |r_i|, the near ones that S
    misses, explain r_N^T (K_NN - W_N W_N^T)^{-1} r_N more. Conditioning on data that are there, it
    leaves an upper bound of the exact variance.

    Args:
        system: K.
        image (n, t): W = K S L^{-T} with L L^T = S^T K S.
        rest (n, b): r = k_* - W L^{-1} S^T k_*.
        neighbours: data of each test point, k.

    Cost: k^2 (t + d) + k^3 / 3 operations per test point; n b to find them.
    Source: conditioning in two steps; full-scale approximations (Sang and Huang 2012) join a low
    rank and a local part likewise.
    """
    count = min(neighbours, rest.shape[0])
    chosen = rest.mT.abs().topk(count, dim=1, sorted=False).indices  # (b, k)
    inputs, width = system.x, max(image.shape[1] + count, count * system.x.shape[1])
    least = system.noise * (1.0 + ROUNDING * system.rounding)
    found = rest.new_zeros(rest.shape[1])
    for points in torch.arange(rest.shape[1], device=rest.device).split(
        max(1, BLOCK_BYTES // (8 * count * width))
    ):
        rows = chosen[points]
        left = inputs[rows].unsqueeze(2).expand(-1, -1, count, -1)
        right = inputs[rows].unsqueeze(1).expand(-1, count, -1, -1)
        flat = system.kernel.pairs(left.flatten(0, 2), right.flatten(0, 2))
        inner = flat.view(len(points), count, count)
        near = image[rows]
        inner = torch.baddbmm(inner, near, near.mT, alpha=-1.0)
        inner.diagonal(dim1=1, dim2=2).add_(least)
        factor, failed = torch.linalg.cholesky_ex(inner)
        gap = rest.mT[points].gather(1, rows).unsqueeze(2)
        white = torch.linalg.solve_triangular(factor, gap, upper=False)
        # where rounding leaves no factor nothing more is explained, and the bound still holds
        found[points] = torch.where(failed == 0, white.square().sum((1, 2)), 0.0)
    return found
