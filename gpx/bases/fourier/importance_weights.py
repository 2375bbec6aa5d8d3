"""Random Fourier features drawn for one kernel, weighted to stand for another."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel

FEW = 0.1
"""A warning is given when fewer than this share of the frequencies carry the prior variance."""

LEAST_LOG_RATIO = -700.0
"""Smaller logarithms of weights are raised to this: their inverses, which are prior precisions, are
numbers in float64."""


class ImportanceWeights(NamedTuple):
    """Prior variances of the features' weights under another kernel.

    Attributes:
        log_variances (m,): log g of every column, in the order of the basis; differentiable in the
            kernel's parameters. Zero for the kernel that the frequencies were drawn for.
        effective (): frequencies that count, (sum w)^2 / sum w^2 of m / 2, detached.
    """

    log_variances: Tensor
    effective: Tensor


def importance_weights(
    basis: RandomFourier, kernel: Kernel, num_inputs: int, *, normalise: bool = False
) -> ImportanceWeights:
    """Weights with which the features of one stationary kernel stand for another, ``kernel``.

    k(x, z) = lim phi(x)^T diag(g) phi(z) with g_r = S(w_r) / S_basis(w_r), the ratio of the
    spectral densities (outputscales included) at the frequency of a column. The basis stays, so
    that every value of the kernel's hyperparameters is an evidence from the same statistics.

    The variance of the estimate is finite only where no lengthscale of ``kernel`` is below
    1/sqrt(2) of the basis' (squared exponential): draw the frequencies for the shortest plausible
    lengthscales and lengthen them. The frequencies that count fall geometrically with the number
    of inputs.

    Args:
        basis: at the hyperparameters that its frequencies were drawn for.
        kernel: with a spectral density that is positive where the basis' is.
        num_inputs: d.
        normalise: divide the ratios by their mean, so that k(x, x) is exact; biased by O(1 / m),
            of smaller variance.

    Raises:
        ConfigError: the basis is not of independent random frequencies.

    Cost: O(m d). Whether enough frequencies count ``warn_of_few`` says.
    Source: Evans thesis, chapter 5 (importance-weighted random Fourier features).
    """
    if type(basis) is not RandomFourier or basis.spread != (1.0,):
        raise ConfigError(
            "importance weights need frequencies drawn independently from the spectral density "
            f"(basis=RandomFourier(), spread=1), got {class_name(basis)}"
        )
    count = basis.num_basis // 2
    indices = torch.arange(count, device=next(basis.parameters()).device)
    ratio = log_ratios(basis, kernel, indices, num_inputs)
    with torch.no_grad():
        share = torch.softmax(ratio, 0)
        effective = 1.0 / share.square().sum()
    if normalise:
        origin = torch.zeros(1, num_inputs, dtype=torch.float64, device=ratio.device)
        wanted = kernel.diagonal(origin)[0].log() - basis.kernel.diagonal(origin)[0].detach().log()
        ratio = ratio - (ratio.logsumexp(0) - math.log(count)) + wanted
    return ImportanceWeights(basis.by_column(ratio), effective)


def log_ratios(basis: RandomFourier, kernel: Kernel, indices: Tensor, num_inputs: int) -> Tensor:
    """Log of the ratio of the spectral densities at frequencies ``indices`` (r,): (r,), float64.

    Differentiable in ``kernel``. Cost: O(r d).
    """
    with torch.no_grad():
        omega = basis.frequencies(indices, num_inputs, torch.float64) / (2.0 * math.pi)
        drawn = basis.kernel.log_spectral_density(omega).double()
    return (kernel.log_spectral_density(omega).double() - drawn).clamp_min(LEAST_LOG_RATIO)


def warn_of_few(effective: Tensor, num_basis: int) -> bool:
    """Warn where fewer than a tenth of m / 2 frequencies count; returns whether it did."""
    count = num_basis // 2
    few = float(effective) < FEW * count
    if few:
        warnings.warn(
            f"only {float(effective):.0f} of {count} frequencies count after re-weighting: the "
            "kernel is too far from the one they were drawn for; draw them for shorter "
            "lengthscales or heavier tails (proposal), or take more (num_basis)",
            stacklevel=2,
        )
    return few
