"""Likelihood of values given their neighbours: hyperparameters at the full density of the data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.linalg import cholesky, with_gradient

CHUNK_BYTES = 2**23
"""Of the covariances of one chunk of groups; several such arrays are alive at once."""

LEAST_SQUARE = 1e-30
"""Smallest squared distance: a square root has no derivative at zero."""


def neighbours(kernel: Kernel, x: Tensor, rows: Tensor, count: int) -> Tensor:
    """The training rows that say most about each of ``rows``, by squared correlation.

    Args:
        kernel: covariance function; nothing is differentiated.
        x (n, d): all inputs.
        rows (r,): indices into x.
        count: k, below n.

    Returns:
        (r, k): indices, the nearest for a stationary kernel; a row is no neighbour of itself.

    Cost: r n kernel entries.
    """
    with torch.no_grad():
        variance = kernel.diagonal(x).clamp_min(torch.finfo(x.dtype).tiny)
        found = []
        for part in rows.split(max(1, CHUNK_BYTES // (8 * x.shape[0]))):
            # not in place: the covariances of a constant may be one number, expanded
            score = kernel.evaluate(x[part], x).square() / variance
            score.scatter_(1, part[:, None], -1.0)
            found.append(score.topk(count, dim=1).indices)
    return torch.cat(found)


def group_covariances(kernel: Kernel, inputs: Tensor) -> Tensor:
    """Covariance matrices of groups of inputs (r, k, d) -> (r, k, k), differentiable.

    Cost: r k^2 kernel entries.
    """
    r, k, d = inputs.shape
    if not kernel.has_formula:
        left = inputs.unsqueeze(2).expand(r, k, k, d).reshape(-1, d)
        right = inputs.unsqueeze(1).expand(r, k, k, d).reshape(-1, d)
        return kernel.pairs(left, right).view(r, k, k)

    def squared_distance(z1: Tensor, z2: Tensor) -> Tensor:
        z = z1.view(r, k, -1)
        z = z - z.detach().mean(1, keepdim=True)
        square = z.square().sum(2)
        cross = torch.baddbmm(square.unsqueeze(2) + square.unsqueeze(1), z, z.mT, alpha=-2.0)
        return cross.clamp_min(LEAST_SQUARE)

    flat = inputs.reshape(-1, d)
    found = kernel.formula(squared_distance, flat, flat)
    assert isinstance(found, Tensor)
    return found


def neighbour_log_likelihood(
    kernel: Kernel, noise: Tensor, inputs: Tensor, residuals: Tensor
) -> Tensor:
    """sum_i log p(y_i | y_N(i)): the last value of every group given the others, in nats.

    With C the covariance of a group with its noise, e the last unit vector, a = C^-1 e, s = a_last
    and b = a^T y, the conditional density has precision s and deviation b / s: its logarithm is
    (log s - b^2 / s - log 2 pi) / 2. The gradient with respect to C has rank two,

        -(1 / s + b^2 / s^2) a a^T / 2 + (b / s) (a alpha^T + alpha a^T) / 2,    alpha = C^-1 y,

    so that an evaluation with its gradient costs one factorisation of each group.

    Args:
        kernel: covariance function; gradients reach its parameters.
        noise (): noise variance.
        inputs (r, k + 1, d), residuals (r, k + 1): groups, in float64; y less its prior mean.

    Raises:
        NotPositiveDefinite: a group's covariance has no factor.

    Its score has mean zero under the model whatever the groups, so its maximiser is consistent; in
    contrast to the evidence of a random subset it sees the data at their full density.
    Cost: r k^3 / 3 operations and r k^2 kernel entries; memory of a chunk of groups.
    Source: Vecchia 1988; Stein, Chi and Welty 2004; with all neighbours, as MuyGPs (Muyskens et al.
    2021) and the nearest-neighbour processes of Datta et al. 2016.
    """
    wanted = torch.is_grad_enabled()
    parameters = [p for p in kernel.parameters() if p.requires_grad] if wanted else []
    sums = [torch.zeros_like(p) for p in parameters]
    r, size, _ = inputs.shape
    value, noise_gradient = residuals.new_zeros(()), residuals.new_zeros(())
    residual_gradient = torch.empty_like(residuals)
    unit = residuals.new_zeros(size, 1)
    unit[-1] = 1.0
    for rows in torch.arange(r, device=inputs.device).split(
        max(1, CHUNK_BYTES // (8 * size * size))
    ):
        with torch.set_grad_enabled(bool(parameters)):
            covariance = group_covariances(kernel, inputs[rows])
        with torch.no_grad():
            y = residuals[rows].unsqueeze(2)
            system = covariance.detach().clone()
            system.diagonal(dim1=1, dim2=2).add_(noise)
            factor, _ = cholesky(system, name=f"covariance of {size} neighbours", ladder=(0.0,))
            solved = torch.cholesky_solve(torch.cat([unit.expand_as(y), y], 2), factor)
            a, alpha = solved[..., 0], solved[..., 1]
            s, b = a[:, -1], alpha[:, -1]
            value += 0.5 * (s.log() - b.square() / s - math.log(2.0 * math.pi)).sum()
            if not wanted:
                continue
            residual_gradient[rows] = -(b / s).unsqueeze(1) * a
            # G = a u^T + u a^T
            u = (0.5 * b / s).unsqueeze(1) * alpha
            u -= (0.25 * (1.0 / s + (b / s).square())).unsqueeze(1) * a
            noise_gradient += 2.0 * (a * u).sum()
            weights = a.unsqueeze(2) * u.unsqueeze(1)
            weights = weights + weights.mT
        if parameters:
            found = torch.autograd.grad(covariance, parameters, weights, allow_unused=True)
            for total, part in zip(sums, found, strict=True):
                total += 0.0 if part is None else part
    if not wanted:
        return value
    return with_gradient(
        value, [residuals, noise, *parameters], [residual_gradient, noise_gradient, *sums]
    )
