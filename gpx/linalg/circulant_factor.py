"""A symmetric circulant matrix as a factor of a Kronecker product: by FFT, never an array.

A stationary covariance on a regular axis of m points is a piece of a circulant one on a circle of
a >= 2 m points. Kept as its first column it costs O(a log a) where a dense factor costs m^2 numbers
and m^3 operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from gpx.linalg.fft_products import correlate

NEGLIGIBLE = 1e-10
"""Size of a negative eigenvalue, in units of the diagonal, that is taken for zero."""

BLOCK_BYTES = 1 << 27
"""Most bytes of one transform; longer lists of rows are taken in turns."""


class FourierVectors:
    """Q (a, a), orthonormal real eigenvectors of every symmetric circulant, or its transpose.

    Columns are cosines of frequency 0 ... floor(a / 2), then sines of 1 ... ceil(a / 2) - 1.

    Args:
        size: a.
        transposed: whether this is Q^T, which takes values on the axis to coefficients.

    Cost: ``along`` one real FFT per row.
    """

    def __init__(self, size: int, transposed: bool = False) -> None:
        self.size, self.transposed = size, transposed
        self.shape = torch.Size((size, size))
        self.cosines, self.sines = size // 2 + 1, (size + 1) // 2 - 1

    @property
    def mT(self) -> FourierVectors:
        """The transpose."""
        return FourierVectors(self.size, not self.transposed)

    def along(self, rows: Tensor) -> Tensor:
        """The matrix times every row of (..., a)."""
        return _in_turns(self._analyse if self.transposed else self._synthesise, rows)

    def _analyse(self, rows: Tensor) -> Tensor:
        found = torch.fft.rfft(rows, norm="ortho")
        out = torch.empty_like(rows)
        scale = 2.0**0.5
        torch.mul(found.real, scale, out=out[..., : self.cosines])
        torch.mul(found.imag[..., 1 : self.sines + 1], -scale, out=out[..., self.cosines :])
        self._ends(out).div_(scale)
        return out

    def _synthesise(self, rows: Tensor) -> Tensor:
        spectrum = torch.zeros(
            *rows.shape[:-1],
            self.cosines,
            dtype=torch.complex128 if rows.dtype == torch.float64 else torch.complex64,
            device=rows.device,
        )
        scale = 0.5**0.5
        torch.mul(rows[..., : self.cosines], scale, out=spectrum.real)
        torch.mul(rows[..., self.cosines :], -scale, out=spectrum.imag[..., 1 : self.sines + 1])
        self._ends(spectrum).mul_(2.0**0.5)
        return torch.fft.irfft(spectrum, n=self.size, norm="ortho")

    def _ends(self, out: Tensor) -> Tensor:
        """Coefficients whose frequency has a cosine only: 0, and a / 2 where a is even."""
        step = self.cosines - 1 if self.size % 2 == 0 else self.cosines
        return out[..., : self.cosines : max(step, 1)]

    def doubled(self, half: Tensor) -> Tensor:
        """One number per frequency (..., floor(a / 2) + 1) put on cosines and sines, (..., a)."""
        return torch.cat([half, half[..., 1 : self.sines + 1]], -1)

    def value_gradient(self, weights: Tensor) -> Tensor:
        """d / d column (a,) of sum_k weights_k lambda_k, with lambda the circulant's eigenvalues.

        Every entry of the column is its own variable.
        """
        half = weights[: self.cosines].clone()
        half[1 : self.sines + 1] += weights[self.cosines :]
        half[1 : self.sines + 1] *= 0.5  # a real inverse FFT counts these frequencies twice
        return torch.fft.irfft(half + 0j, n=self.size) * self.size


class CirculantFactor:
    """C (a, a) with C_ij = column[(i - j) mod a], symmetric.

    Args:
        column (a,): first column, column[j] = column[a - j].

    Cost: two FFTs per row; memory O(a).
    """

    def __init__(self, column: Tensor) -> None:
        self.column = column
        self.shape = torch.Size((column.shape[0], column.shape[0]))
        self.dtype, self.device = column.dtype, column.device
        self._spectrum = torch.fft.rfft(column.double()).real.to(column.dtype)

    @property
    def values(self) -> Tensor:
        """Eigenvalues (a,), in the order of ``FourierVectors``."""
        return FourierVectors(self.shape[0]).doubled(self._spectrum)

    @property
    def definite(self) -> bool:
        """Whether no eigenvalue is below zero by more than rounding or ``NEGLIGIBLE``; not for NaN.

        Raised to zero, such eigenvalues change the matrix by no more than themselves.
        """
        rounding = 100.0 * torch.finfo(self.dtype).eps * float(self.column.double().abs().sum())
        allowed = max(rounding, NEGLIGIBLE * float(self.column[0]))
        return float(self._spectrum.min()) >= -allowed

    def along(self, rows: Tensor) -> Tensor:
        """C times every row of (..., a)."""
        size = self.shape[0]
        return _in_turns(
            lambda part: torch.fft.irfft(torch.fft.rfft(part) * self._spectrum, n=size), rows
        )

    def diagonal(self) -> Tensor:
        """The diagonal (a,), all its entries equal."""
        return self.column[:1].expand(self.shape[0])

    def gradient(self, left: Tensor, right: Tensor) -> Tensor:
        """d / d column (a,) of sum_r left_r^T C right_r for (a, r): one circular correlation."""
        lengths = (self.shape[0],)
        return correlate(left, right, lengths, lengths, lengths)


GridFactor: TypeAlias = Tensor | CirculantFactor | FourierVectors
"""What multiplies along one axis of a grid: a small matrix, or one that goes by FFT."""


def _in_turns(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    size = rows.shape[-1]
    count = rows.numel() // max(size, 1)
    step = max(1, BLOCK_BYTES // (16 * size))
    if count <= step:
        return function(rows)
    flat = rows.reshape(count, size)
    out = torch.empty_like(flat)
    for start in range(0, count, step):
        out[start : start + step] = function(flat[start : start + step])
    return out.view(rows.shape)
