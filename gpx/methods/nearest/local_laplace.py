"""f at some points by Laplace's approximation on the few rows near each."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.inference.batched_covariance import batched_covariances
from gpx.inference.neighbour_conditional import NearRows
from gpx.inference.neighbour_likelihood import CHUNK_BYTES
from gpx.kernels.base import Kernel
from gpx.likelihoods import Likelihood

MAX_STEPS, MAX_CHANGE, SETTLED = 50, 2.0, 1e-3
"""Limit of Newton's steps, the largest change of f in one, and the change at which they end. From a
prior mean far below large counts a whole step would go much too far; far below large amounts each
of them only changes f by one. Some ten steps are usual."""

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
        f = torch.zeros_like(inner[..., 0])
        for _ in range(MAX_STEPS):
            at = (prior_mean[rows] + f).flatten()
            slope, bend = (
                each.view_as(f) * share for each in likelihood.curvature(y[rows].flatten(), at)
            )
            bend = bend.clamp(*INFORMATION)
            factor, failed = torch.linalg.cholesky_ex(inner + torch.diag_embed(1.0 / bend))
            weights = torch.cholesky_solve((f + slope / bend).unsqueeze(2), factor)
            change = ((inner @ weights).squeeze(2) - f).clamp(-MAX_CHANGE, MAX_CHANGE)
            f = f + change
            if not bool((change.abs() > SETTLED).any()):
                break
        explained = torch.linalg.solve_triangular(factor, cross, upper=False)
        found = (cross * weights).sum((1, 2))
        rest = variance[part] - explained.square().sum((1, 2))
        good = (failed == 0) & found.isfinite() & (rest > 0.0)
        mean[part] = torch.where(good, found, 0.0)
        variance[part] = torch.where(good, rest, variance[part])
    return mean, variance
