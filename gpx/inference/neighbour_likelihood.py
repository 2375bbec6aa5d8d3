"""Likelihood of values given their neighbours, to fit hyperparameters."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.batched_covariance import batched_covariances
from gpx.inference.padded_rows import batch_bytes, noisy_system
from gpx.kernels.base import Kernel
from gpx.linalg import cholesky, cholesky_in_place, with_gradient

CHUNK_BYTES = 2**23
"""Largest bytes of the covariances of one chunk of groups, of which several arrays exist at once;
on a CPU those of ``batch_bytes``, which its cache holds."""


def neighbours(kernel: Kernel, x: Tensor, rows: Tensor, count: int) -> Tensor:
    """The training rows of largest squared correlation with each of ``rows``.

    Args:
        kernel: covariance function; nothing is differentiated.
        x (n, d): all inputs.
        rows (r,): indices into x.
        count: k, below n.

    Returns:
        (r, k): indices, without the row itself; for a stationary kernel the nearest rows.

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


def noisy_factor(
    covariance: Tensor,
    noise: Tensor,
    there: Tensor | None,
    out: Tensor | None = None,
    *,
    hint: str = "",
) -> Tensor:
    """Lower factors of covariances (r, s, s) with noise; absent members have rows of the identity.

    Args:
        covariance (r, s, s), noise (), (s,) or (r, s): of each value of a group.
        there (r, s): False for absent members of smaller groups; None: all are present.
        out (r, s, s): receives the factors, contiguous; None: a new tensor.
        hint: one more thing to try, for the error message.

    Raises:
        NotPositiveDefinite: a matrix has no factor; no jitter is added.
    """

    fill = partial(noisy_system, covariance, noise, there)
    name = f"covariance of {covariance.shape[1]} neighbours"
    if out is None:
        out = torch.empty_like(covariance, memory_format=torch.contiguous_format)
    if torch.compiler.is_exporting():  # programs do not write over their arrays
        return cholesky(fill(out), name=name, hint=hint)[0]
    return cholesky_in_place(fill, out, name=name, ladder=(0.0,), hint=hint)[0].mT


def neighbour_log_likelihood(
    kernel: Kernel,
    noise: Tensor,
    x: Tensor,
    residual: Tensor,
    groups: Tensor,
    *,
    targets: int = 1,
) -> Tensor:
    """sum over groups of log p(the last ``targets`` values of the group | its others), in nats.

    With C = L L^T the covariance of a group with its noise, the given values first, z = L^{-1} y,
    and W the rows of L^{-1} that belong to the targets, the conditional density is that of
    independent standard normal z in those rows, less their log L_ii. With alpha_0 = C_gg^{-1} y_g
    of the given values alone (zero at the targets) and v = W^T z, the gradient with respect to C is

        (v alpha_0^T + alpha_0 v^T + v v^T - W^T W) / 2,

    so that an evaluation with its gradient costs one factorisation of each group.

    Args:
        kernel: covariance function; gradients reach its parameters, and x.
        noise () or (n,): noise variance of all rows or of each.
        x (n, d), residual (n,): data in float64; y less its prior mean.
        groups (r, s): rows of x, the targets last; -1 where a group has fewer.
        targets: t, from 1 to s.

    Raises:
        NotPositiveDefinite: a group's covariance has no factor.

    Its score has mean zero under the model whatever the groups, so its maximiser is consistent.
    Unlike the evidence of a random subset it uses the data at their full density. Where every row
    is a target once, given rows that were targets before, the sum is the log density of all values
    under the process of Vecchia's approximation (``gpx.methods.nearest``).
    Cost: r (s^3 / 3 + 2 t s^2) operations and r s^2 kernel entries; memory of a chunk of groups.
    Source: Vecchia 1988; Stein, Chi and Welty 2004; with all neighbours, as MuyGPs (Muyskens et al.
    2021) and the nearest-neighbour processes of Datta et al. 2016; several targets at once as
    Guinness 2018.
    """
    wanted = torch.is_grad_enabled()
    parameters = [p for p in kernel.parameters() if p.requires_grad] if wanted else []
    sums = [torch.zeros_like(p) for p in parameters]
    moving = wanted and x.requires_grad
    points, point_gradient = x.detach(), torch.zeros_like(x if moving else x[:0])
    value, noise_gradient = residual.new_zeros(()), torch.zeros_like(noise)
    residual_gradient = torch.zeros_like(residual)
    size = groups.shape[1]
    given = size - targets
    last = torch.eye(size, dtype=residual.dtype, device=residual.device)[:, given:]
    chunk = min(CHUNK_BYTES, batch_bytes(x.device))
    parts = groups.split(max(1, chunk // (8 * size * size)))
    # arrays of every chunk in turn
    factors = residual.new_empty(len(parts[0]), size, size)
    weights = torch.empty_like(factors) if wanted else factors[:0]
    for rows in parts:
        there, index = rows >= 0, rows.clamp_min(0)
        inputs = points[index].requires_grad_(moving)
        with torch.set_grad_enabled(bool(parameters) or moving):
            covariance = batched_covariances(kernel, inputs)
        with torch.no_grad():
            y = (residual[index] * there).unsqueeze(2)
            own_noise = noise[index] if noise.ndim else noise
            factor = noisy_factor(covariance.detach(), own_noise, there, factors[: len(rows)])
            z = torch.linalg.solve_triangular(factor, y, upper=False)
            deviations = factor.diagonal(dim1=1, dim2=2)[:, given:]
            own = z[:, given:]
            # absent rows have z = 0 and a deviation of one
            value -= deviations.log().sum() + 0.5 * own.square().sum()
            value -= 0.5 * LOG_TWO_PI * there[:, given:].sum(dtype=value.dtype)
            if not wanted:
                continue
            columns = torch.linalg.solve_triangular(factor.mT, last, upper=True)  # W^T
            columns = columns * there[:, None, given:]
            before = torch.linalg.solve_triangular(
                factor[:, :given, :given].mT, z[:, :given], upper=True
            )
            before = torch.nn.functional.pad(before, (0, 0, 0, targets))
            v = columns @ own
            # entries of absent rows are zero in v, before and columns
            residual_gradient.index_add_(0, index.flatten(), -v.flatten())
            left = torch.cat([v, before, columns], 2)
            right = torch.cat([0.5 * (before + v), 0.5 * v, -0.5 * columns], 2)
            weight = torch.bmm(left, right.mT, out=weights[: len(rows)])
            by_noise = weight.diagonal(dim1=1, dim2=2)
            if noise.ndim:
                noise_gradient.index_add_(0, index.flatten(), by_noise.flatten())
            else:
                noise_gradient += by_noise.sum()
        if not (parameters or moving):
            continue
        sources = [*parameters, inputs] if moving else parameters
        found = list(torch.autograd.grad(covariance, sources, weight, allow_unused=True))
        if moving:
            of_inputs = found.pop()
            if of_inputs is not None:
                point_gradient.index_add_(0, index.flatten(), of_inputs.flatten(0, 1))
        for total, part in zip(sums, found, strict=True):
            total += 0.0 if part is None else part
    if not wanted:
        return value
    sources, gradients = [residual, noise, *parameters], [residual_gradient, noise_gradient, *sums]
    if moving:
        sources, gradients = [*sources, x], [*gradients, point_gradient]
    return with_gradient(value, sources, gradients)
