"""Circulant matrices near a symmetric Toeplitz matrix: log-determinants and preconditioners.

All take the first column k (..., m), k_j = k(j h), and return the first column c (..., m) of a
symmetric circulant, differentiably. For solves apply them to T + noise I (add the noise to k_0):
Tyrtyshnikov's is not equivariant under shifts, and the others are positive definite only then.

Source: Hultin 2017, section 3.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite, ShapeError
from gpx.linalg.fft_products import convolve, embed_symmetric, fast_length, spectrum
from gpx.tensor_checks import check_one_of

Kind = Literal["strang", "chan", "tyrtyshnikov"]


def strang(column: Tensor) -> Tensor:
    """Copies the central diagonals: c_j = k_j for j <= m / 2, else k_{m-j}; minimises |C - T|_1.

    Cost O(m). May be indefinite for slowly decaying kernels.
    """
    m = column.shape[-1]
    half = column[..., : m // 2 + 1]
    return torch.cat([half, column[..., 1 : (m + 1) // 2].flip(-1)], -1)


def chan(column: Tensor) -> Tensor:
    """T. Chan's optimal circulant, c_j = ((m - j) k_j + j k_{m-j}) / m; minimises |C - T|_F.

    Its eigenvalues are at least the smallest of T, so it is positive definite where T is. O(m).
    """
    m = column.shape[-1]
    share = torch.arange(m, dtype=column.dtype, device=column.device) / m
    return (1.0 - share) * column + share * _reflected(column)


def tyrtyshnikov(column: Tensor) -> Tensor:
    """The super-optimal circulant, minimiser of |I - C^-1 T|_F.

    Eigenvalue q is delta_q(T^2) / delta_q(T) with delta_q(M) = f_q^H M f_q in the Fourier basis;
    both in O(m log m) through the splitting of T into a circulant and a skew-circulant matrix.
    Where T f_q = 0 to rounding any eigenvalue is a minimiser; zero is taken, without gradient.

    Raises:
        NotPositiveDefinite: delta_q(T) = 0 but T f_q is not: T is indefinite and has no minimiser
            (one host synchronisation).
    """
    m = column.shape[-1]
    mirrored = _reflected(column)
    even, odd = 0.5 * (column + mirrored), 0.5 * (column - mirrored)
    # c_0 = s_0 = k_0 / 2
    first = 0.5 * column[..., :1]
    even = torch.cat([first, even[..., 1:]], -1)
    odd = torch.cat([first, odd[..., 1:]], -1)
    gamma = _real_spectrum(even)
    lengths = (fast_length(2 * m - 1),)
    # the skew-circulant with first column s is symmetric Toeplitz: s_j = -s_{m-j}
    squared = convolve(
        spectrum(embed_symmetric(odd, lengths[0])), odd.unsqueeze(-1), lengths, (m,), (m,)
    ).squeeze(-1)
    skew = _real_spectrum(chan(odd))
    delta = gamma + skew
    delta_squared = gamma**2 + 2.0 * gamma * skew + _real_spectrum(chan(squared))
    size = 2.0 * column.detach().abs().sum(-1, keepdim=True)  # at least the norm of T
    rounding = 16.0 * torch.finfo(column.dtype).eps
    lost = delta.detach().abs() <= rounding * size
    if bool((lost & (delta_squared.detach().abs() > rounding * size * size)).any()):
        raise NotPositiveDefinite(
            f"the Toeplitz matrix of size {m} is indefinite and has no super-optimal circulant: a "
            "Fourier vector has f^H T f = 0 but T f is not zero. Add the noise variance at lag "
            "zero, or use chan."
        )
    ratio = torch.where(lost, 0.0, delta_squared / torch.where(lost, 1.0, delta))
    return torch.fft.irfft(ratio + 0j, n=m)


def whittle(
    covariance: Callable[[Tensor], Tensor],
    spacing: Tensor,
    grid: Sequence[int],
    *,
    wraps: int = 3,
) -> Tensor:
    """Wraps the kernel around the grid: c[i] = sum_j k(spacing (i + j grid)), |j| <= wraps.

    Any number of axes; with one it is the circulant, with more the BCCB approximation, for which
    no factorising kernel is needed. Symmetrised, so that the spectrum is real.

    Args:
        covariance: lag vectors (..., D) -> values (...).
        spacing (D,), grid (n_1, ..., n_D).
        wraps: w >= 1; slowly decaying kernels need more (see ``enough_wraps``).

    Returns:
        c (n_1, ..., n_D).

    Cost: (2 w + 1)^D evaluations of n_1 ... n_D entries, one wrap at a time.
    """
    if wraps < 1:
        raise ConfigError(f"whittle needs wraps >= 1, got {wraps}: without wrapping it is useless")
    if spacing.shape != (len(grid),):
        raise ShapeError(f"one spacing per axis of the grid {tuple(grid)}, got {spacing.tolist()}")
    sizes = torch.tensor(tuple(grid), dtype=spacing.dtype, device=spacing.device)
    axes = [torch.arange(n, dtype=spacing.dtype, device=spacing.device) for n in grid]
    place = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    total: Tensor | None = None
    for wrap in itertools.product(range(-wraps, wraps + 1), repeat=len(grid)):
        shift = torch.tensor(wrap, dtype=spacing.dtype, device=spacing.device) * sizes
        part = covariance(spacing * (place + shift))
        total = part if total is None else total + part
    assert total is not None
    dims = tuple(range(len(grid)))
    return 0.5 * (total + total.flip(dims).roll((1,) * len(grid), dims))


def enough_wraps(covariance: Callable[[Tensor], Tensor], period: float, *, most: int = 100) -> int:
    """The least number of wraps w <= ``most`` with k(w period) < 1e-12 k(0), at least one.

    Args:
        covariance: lags (r, 1) -> values (r,), one axis.
        period: grid points times spacing.
    """
    lags = period * torch.arange(most + 1, dtype=torch.float64).unsqueeze(-1)
    values = covariance(lags).abs()
    small = (values[1:] < 1e-12 * values[0]).nonzero()
    return int(small[0, 0]) + 1 if small.numel() else most


_KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "strang": strang,
    "chan": chan,
    "tyrtyshnikov": tyrtyshnikov,
}


def circulant_approximation(column: Tensor, kind: Kind, levels: int = 1) -> Tensor:
    """``strang``, ``chan`` or ``tyrtyshnikov`` of column (..., m), by name.

    With several levels, of the lags (..., n_1, ..., n_D) of a grid: applied to every axis in turn.

    Raises:
        ConfigError: no such approximation; Tyrtyshnikov's of several axes.
    """
    check_one_of(_KINDS, kind=kind)
    if levels > 1 and kind == "tyrtyshnikov":
        raise ConfigError("tyrtyshnikov's approximation has one axis only; use chan or whittle")
    for axis in range(-levels, 0):
        column = _KINDS[kind](column.movedim(axis, -1)).movedim(-1, axis)
    return column


def circulant_logdet(column: Tensor, noise_variance: Tensor | float, levels: int = 1) -> Tensor:
    """sum log(max(eigenvalue, 0) + noise) of the circulant with first column (..., *grid): (...).

    For users of the package: SKI sums over the products of its axes.

    An approximation of log |T + noise I|, neither an upper nor a lower bound; clipped eigenvalues
    have no gradient. O(m log m).
    """
    dims = tuple(range(-levels, 0))
    values = torch.fft.fftn(column, dim=dims).real.flatten(-levels)
    noise = torch.as_tensor(noise_variance, dtype=values.dtype, device=values.device)
    return (values.clamp(min=0.0) + noise.unsqueeze(-1)).log().sum(-1)


def _reflected(column: Tensor) -> Tensor:
    """(k_0, k_{m-1}, ..., k_1)."""
    return column.flip(-1).roll(1, -1)


def _real_spectrum(column: Tensor) -> Tensor:
    return torch.fft.rfft(column).real
