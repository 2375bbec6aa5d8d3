"""A control variate for the log-determinant, from circulant approximations.

Stochastic quadrature estimates log |I + W E W^T / noise|, where E is the part of the grid's matrix
that the low-rank part lacks. In a Fourier basis W^T W and E are nearly diagonal, with entries rho_k
and e_k. The matrix W T W^T, with T the circulant of eigenvalues log(1 + rho_k e_k / noise) / rho_k,
then approximates the matrix logarithm. Its quadratic forms at the same probes cost one product, and
their expectation, the trace of W T W^T, is known exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.linalg.trace import mean_and_error
from gpx.operators import BlockToeplitz, Toeplitz

MIN_RHO_SHARE = 1e-3
"""Smallest rho_k, relative to the largest."""
MIN_PROBES = 4
"""Fewest probes from which the coefficient of the control variate is fitted."""


@torch.no_grad()
def control_variate(
    lags: Tensor, noise: Tensor, gram: Tensor, threshold: Tensor, seen: Tensor
) -> Tensor:
    """Quadratic forms of W T W^T at the probes minus their expectation, (L,).

    Args:
        lags (m_1, ..., m_d): of a stationary K on a regular grid.
        noise (): variance.
        gram (m_1, ..., m_d): sums of (W^T W)_uv over pairs of each lag, both signs.
        threshold (): larger eigenvalues of K are in the low-rank part.
        seen (m, L): W^T times standard probes.

    Cost: one product of K with L columns.
    """
    shape = tuple(lags.shape)
    single = gram / lags.numel()
    for dim in range(lags.ndim):  # halve nonzero lags, which hold both signs
        single = single.clone()
        single.narrow(dim, 1, shape[dim] - 1).mul_(0.5)
    rho = torch.fft.rfftn(reflect_lags(single)).real
    rho = rho.clamp_min(MIN_RHO_SHARE * float(rho.max()))
    strengths = torch.fft.rfftn(reflect_lags(lags)).real
    left = torch.where(strengths < threshold, strengths.clamp_min(0.0), 0.0)
    spectrum = torch.log1p(rho * left / noise) / rho
    found = torch.fft.irfftn(spectrum, s=[2 * m - 2 for m in shape])
    found = found[tuple(slice(m) for m in shape)].contiguous()
    operator = Toeplitz(found) if found.ndim == 1 else BlockToeplitz(found, grid=shape)
    return (seen * operator._multiply(seen)).sum(0) - (gram * found).sum()


def mean_with_control(samples: Tensor, control: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of samples (L,) corrected by a zero-mean control variate (L,), and its standard error.

    The coefficient for each sample is fitted to the others, so that the mean stays unbiased.
    """
    count = len(samples)
    if count < MIN_PROBES:
        return mean_and_error(samples)
    others = 1.0 - torch.eye(count, dtype=samples.dtype, device=samples.device)
    x = (control - (others @ control / (count - 1)).unsqueeze(1)) * others
    y = (samples - (others @ samples / (count - 1)).unsqueeze(1)) * others
    share = (x * y).sum(1) / x.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
    return mean_and_error(samples - share * control)


def reflect_lags(column: Tensor) -> Tensor:
    """A circulant's generator (2 m_1 - 2, ..., 2 m_d - 2) from lags (m_1, ..., m_d)."""
    for dim, m in enumerate(column.shape):
        column = torch.cat([column, column.narrow(dim, 1, m - 2).flip(dim)], dim)
    return column
