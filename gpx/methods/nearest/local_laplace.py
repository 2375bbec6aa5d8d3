"""f at some points by Laplace's approximation on the few rows near each."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.inference.batched_covariance import batched_covariances
from gpx.inference.neighbour_conditional import NearRows
from gpx.inference.neighbour_likelihood import CHUNK_BYTES
from gpx.kernels.base import Kernel
from gpx.likelihoods import Likelihood

MAX_STEPS, SETTLED = 50, 1e-3
"""Limit of Newton's steps, and the change of f at which they end. Some ten are usual; far below
large amounts each step only changes f by one."""

MAX_HALVINGS = 40
"""Limit of the halvings of a step until the density of f given the data rises: from a prior mean
far below large counts a whole step would go much too far."""

ROUNDING = 1e-12
"""Relative decrease of that density that counts as none."""

INFORMATION = 1e-10, 1e10
"""Range of the curvature of a row."""


@torch.no_grad()
def local_laplace(
    kernel: Kernel,
    likelihood: Likelihood,
    prior_mean: Tensor,
    x: Tensor,
    y: Tensor,
    shares: Tensor | None,
    queries: Tensor,
    count: int = 64,
) -> tuple[Tensor, Tensor]:
    """Mean and variance (q,) of f, minus the prior mean, at each query; float64.

    Each is of Laplace's approximation on the ``count`` rows nearest to the query, and of the prior
    where that is not finite.

    Args:
        likelihood: of one latent function, log-concave, defines ``curvature``.
        prior_mean (n,), x (n, d), y (n,): of the rows.
        shares (n,): weight of each row; None: one.
        queries (q, d).

    Cost: about ten times q count^3 / 3 operations; memory of a chunk of queries.
    """
    x, y, queries, prior_mean = x.double(), y.double(), queries.double(), prior_mean.double()
    near = NearRows(kernel, x)(queries, count)
    num, k = near.shape
    mean, variance = x.new_zeros(num), kernel.diagonal(queries).clone()
    for part in row_slices(num, max(1, CHUNK_BYTES // (8 * (k + 1) ** 2)), at_least_one=True):
        rows, asked = near[part], queries[part].unsqueeze(1)
        inner = batched_covariances(kernel, x[rows])
        cross = batched_covariances(kernel, x[rows], asked)
        share = 1.0 if shares is None else shares[rows].double()
        mode = _mode(likelihood, inner, prior_mean[rows], y[rows], share)
        explained = torch.linalg.solve_triangular(mode.factor, cross, upper=False)
        found = (cross.squeeze(2) * mode.weights).sum(1)
        rest = variance[part] - explained.square().sum((1, 2))
        good = mode.good & found.isfinite() & (rest > 0.0)
        mean[part] = torch.where(good, found, 0.0)
        variance[part] = torch.where(good, rest, variance[part])
    return mean, variance


class _Mode(NamedTuple):
    """f = K weights of groups (g, k), where the density of f given the data is largest.

    Attributes:
        weights (g, k).
        factor (g, k, k): lower, of K + W^{-1}, W the curvature of each row.
        good (g,): whether there is a factor.
    """

    weights: Tensor
    factor: Tensor
    good: Tensor


def _mode(
    likelihood: Likelihood, inner: Tensor, prior_mean: Tensor, y: Tensor, share: Tensor | float
) -> _Mode:
    """Newton's method, each step of a group halved until the density of f given the data rises.

    Args:
        inner (g, k, k): K.
        prior_mean (g, k), y (g, k), share (g, k): of the rows.
    """

    def log_density(f: Tensor, weights: Tensor) -> Tensor:
        """Of the data and f = K weights (g, k) of each group, up to a constant: (g,)."""
        logs = likelihood.log_prob(y.flatten(), (prior_mean + f).flatten()).view_as(f)
        return (share * logs - 0.5 * f * weights).sum(1).nan_to_num(-math.inf)

    f = torch.zeros_like(prior_mean)
    weights, value = f, log_density(f, f)
    for _ in range(MAX_STEPS):
        slope, bend = (
            each.view_as(f) * share
            for each in likelihood.curvature(y.flatten(), (prior_mean + f).flatten())
        )
        bend = bend.clamp(*INFORMATION)
        factor, failed = torch.linalg.cholesky_ex(inner + torch.diag_embed(1.0 / bend))
        aim = torch.cholesky_solve((f + slope / bend).unsqueeze(2), factor)
        step, change = aim.squeeze(2) - weights, (inner @ aim).squeeze(2) - f
        length = torch.ones_like(f[:, :1])
        for _ in range(MAX_HALVINGS):
            found = log_density(f + length * change, weights + length * step)
            lower = ~(found >= value - ROUNDING * value.abs())
            if not bool(lower.any()):
                break
            length = torch.where(lower.unsqueeze(1), 0.5 * length, length)
        length = length.masked_fill(lower.unsqueeze(1), 0.0)
        f, weights = f + length * change, weights + length * step
        value = torch.where(lower, value, found)
        if not bool(((length * change).abs() > SETTLED).any()):
            break
    return _Mode(weights, factor, failed == 0)
