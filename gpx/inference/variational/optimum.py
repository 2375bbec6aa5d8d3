"""The optimal q(v) for Gaussian noise, from sums over all the data."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inference.nystrom import BlockStore, NystromSums, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor, best_noise
from gpx.inference.variational.strategy import InducingVariables
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.means.base import Mean

GAUSSIAN = (Gaussian, GaussianOutputs)
"""Likelihoods whose optimal q(v) has a closed form."""

SUMS_CHUNK = 2**16
"""Rows whose residuals are in memory together while sums over all data are taken."""


def whitened_sums(variables: InducingVariables, mean: Mean, x: Tensor, y: Tensor) -> NystromSums:
    """What the optimal q(v) depends on, in float64: O(n M^2), memory free of n.

    Args:
        variables: u at the current hyperparameters.
        mean: prior mean of f.
        x (n, d), y (n,) or (n, p).
    """
    whitener, found = variables.whitener(), None
    for rows, targets in zip(x.split(SUMS_CHUNK), y.split(SUMS_CHUNK), strict=True):
        store = BlockStore(whitener, rows, dtype=torch.float64)
        residual = targets - mean(rows).view(-1, *(1 for _ in y.shape[1:]))
        part = nystrom_sums(store, residual)
        found = part if found is None else found.with_sums_of(part)
    assert found is not None  # there are rows
    return found


def whitened_optimum(
    sums: NystromSums, likelihood: Gaussian | GaussianOutputs
) -> tuple[Tensor, Tensor]:
    """Mean (p, M) and lower factor (p, M, M) of the q(v) of highest bound at this noise."""
    noises = likelihood.noise_variance.double().view(-1)
    inner = [InnerFactor(s, n) for s, n in zip(sums.outputs(), noises, strict=True)]
    return torch.stack([i.weights for i in inner]), torch.stack([i.inverse_root() for i in inner])


@torch.no_grad()
def raise_noise(sums: NystromSums, num_data: int, likelihood: Gaussian | GaussianOutputs) -> None:
    """Set the noise variance to that of highest collapsed bound of every output, if larger.

    Hyperparameters fitted to a subset leave the noise too low for a sparse model, which must count
    as noise what its inducing points cannot explain.
    """
    current = likelihood.noise_variance
    noises = current.double().view(-1)
    best = [best_noise(s, num_data, n) for s, n in zip(sums.outputs(), noises, strict=True)]
    likelihood.noise_variance = torch.maximum(
        current, torch.stack(best).view_as(current).to(current.dtype)
    )
