"""A control variate for the log-determinant: what circulants say of the part left to the probes.

Stochastic quadrature leaves log |I + W E W^T / noise| to its probes, E the part of the grid's
matrix that no low-rank part carries. On waves W^T W is nearly a number, rho_k of wave k, and E is
its eigenvalue e_k: W T W^T, T a circulant with eigenvalues log(1 + rho_k e_k / noise) / rho_k, is
near that logarithm. Its quadratic forms at the same probes cost one product, and their mean, the
trace of W T W^T, is known exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.linalg.trace import mean_and_error
from gpx.operators import BlockToeplitz, Toeplitz

LEAST_SHARE = 1e-3
"""Of the largest rho: waves that interpolation damps more take this one."""
LEAST_PROBES = 4
"""Fewer do not tell how much of the control variate to take."""


@torch.no_grad()
def control_variate(
    lags: Tensor, noise: Tensor, gram: Tensor, threshold: Tensor, seen: Tensor
) -> Tensor:
    """Quadratic forms of W T W^T at the probes, less their mean, (L,).

    Args:
        lags (m_1, ..., m_d): of a stationary K on a regular grid.
        noise (): variance.
        gram (m_1, ..., m_d): sums of (W^T W)_uv over pairs of each lag, both signs.
        threshold (): waves of K with larger eigenvalues are carried by the low-rank part.
        seen (m, L): W^T of standard probes.

    Cost: one product with K for L columns.
    """
    shape = tuple(lags.shape)
    single = gram / lags.numel()
    for dim in range(lags.ndim):  # one sign
        single = single.clone()
        single.narrow(dim, 1, shape[dim] - 1).mul_(0.5)
    rho = torch.fft.rfftn(reflected(single)).real
    rho = rho.clamp_min(LEAST_SHARE * float(rho.max()))
    strengths = torch.fft.rfftn(reflected(lags)).real
    left = torch.where(strengths < threshold, strengths.clamp_min(0.0), 0.0)
    spectrum = torch.log1p(rho * left / noise) / rho
    found = torch.fft.irfftn(spectrum, s=[2 * m - 2 for m in shape])
    found = found[tuple(slice(m) for m in shape)].contiguous()
    operator = Toeplitz(found) if found.ndim == 1 else BlockToeplitz(found, grid=shape)
    return (seen * operator._multiply(seen)).sum(0) - (gram * found).sum()


def reduced(samples: Tensor, control: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of samples (L,) less what a control variate (L,) of mean zero explains, and its error.

    Every probe's share of it is fitted to the other probes, so that the mean stays unbiased.
    """
    count = len(samples)
    if count < LEAST_PROBES:
        return mean_and_error(samples)
    others = 1.0 - torch.eye(count, dtype=samples.dtype, device=samples.device)
    x = (control - (others @ control / (count - 1)).unsqueeze(1)) * others
    y = (samples - (others @ samples / (count - 1)).unsqueeze(1)) * others
    share = (x * y).sum(1) / x.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
    return mean_and_error(samples - share * control)


def reflected(column: Tensor) -> Tensor:
    """A circulant's generator (2 m_1 - 2, ..., 2 m_d - 2) from lags (m_1, ..., m_d)."""
    for dim, m in enumerate(column.shape):
        column = torch.cat([column, column.narrow(dim, 1, m - 2).flip(dim)], dim)
    return column
