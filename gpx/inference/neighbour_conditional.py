"""The latent function at an input, given the noisy values of a few rows near to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.neighbour_likelihood import CHUNK_BYTES, group_covariances, noisy_factor
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary


class Conditional(NamedTuple):
    """f at each query given the values of its group, before a prior mean is added.

    Attributes:
        mean (q,), variance (q,): of f; the variance is not negative.
        weights (q, k): mean = sum_j weights_j residual_j, of every row of the group.
    """

    mean: Tensor
    variance: Tensor
    weights: Tensor


def near_coordinates(kernel: Kernel, x: Tensor) -> Tensor:
    """Coordinates in which near rows are strongly correlated: x (n, d) -> (n, q), no gradients.

    Those of the kernel's stationary parts, side by side (inputs in units of their lengthscales);
    x itself for a kernel that has none.
    """
    with torch.no_grad():
        parts = [part for part in kernel.modules() if isinstance(part, Stationary)]
        found = [
            part.coordinates(x if part.active_dims is None else x[:, part.active_dims])
            for part in parts
        ]
        return torch.cat(found, 1) if found else x


@torch.no_grad()
def neighbour_conditional(
    kernel: Kernel, noise: Tensor, x: Tensor, residual: Tensor, queries: Tensor, near: Tensor
) -> Conditional:
    """Mean and variance of f at ``queries`` given noisy values of the rows ``near`` to each.

    Args:
        kernel: covariance function.
        noise (): noise variance.
        x (n, d), residual (n,): data; y less its prior mean.
        queries (q, d).
        near (q, k): rows of x; -1 where there are fewer.

    Raises:
        NotPositiveDefinite: the covariance of a group with its noise has no factor.

    Cost: q k^3 / 3 operations and q k^2 kernel entries; memory of a chunk of groups.
    """
    size = near.shape[1]
    means, variances, weights = [], [], []
    bytes_each = x.element_size() * (size + 1) ** 2
    for rows, points in zip(
        near.split(max(1, CHUNK_BYTES // bytes_each)),
        queries.split(max(1, CHUNK_BYTES // bytes_each)),
        strict=True,
    ):
        there = rows >= 0
        inputs = torch.cat([x[rows.clamp_min(0)], points.unsqueeze(1)], 1)
        joint = group_covariances(kernel, inputs)
        factor = noisy_factor(joint[:, :size, :size], noise, there)
        cross = joint[:, :size, size:] * there.unsqueeze(2)
        white = torch.linalg.solve_triangular(factor, cross, upper=False)
        weight = torch.linalg.solve_triangular(factor.mT, white, upper=True).squeeze(2)
        means.append((weight * residual[rows.clamp_min(0)]).sum(1))
        variances.append((joint[:, size, size] - white.square().sum((1, 2))).clamp_min(0.0))
        weights.append(weight)
    return Conditional(torch.cat(means), torch.cat(variances), torch.cat(weights))
