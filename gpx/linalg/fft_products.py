"""Products with Toeplitz and circulant structure on plain tensors, by real FFTs.

A (multilevel) Toeplitz matrix is a piece of a (multilevel) circulant one: pad the vector to the
circular lengths, convolve with the generator, crop. The generator c (..., a_1, ..., a_d) holds the
value at lag l in position l mod a, level by level.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from scipy.fft import next_fast_len
from torch import Tensor

COLUMN_BYTES = 1 << 28
"""Largest number of bytes of one transform of several columns; columns that do not fit are
transformed in turns."""


@lru_cache(maxsize=1024)
def fast_length(minimum: int) -> int:
    """The shortest even length of at least ``minimum`` with no prime factor above five."""
    return 2 * int(next_fast_len((minimum + 1) // 2, real=True))


def embed_symmetric(column: Tensor, length: int) -> Tensor:
    """Generator [k_0 .. k_{m-1}, 0 .. 0, k_{m-1} .. k_1] (..., length) of toep(k), k (..., m).

    ``length`` is at least 2 m - 1, or 2 m - 2 with m >= 2 (then k_{m-1} appears once).
    """
    m = column.shape[-1]
    tail = column[..., 1 : length - m + 1].flip(-1)
    gap = column.new_zeros(*column.shape[:-1], length - m - tail.shape[-1])
    return torch.cat([column, gap, tail], -1)


def embed_general(column: Tensor, row: Tensor, length: int) -> Tensor:
    """Generator (..., length) with first column (..., m1) and first row (..., m2); row[0] unused.

    ``length`` is at least m1 + m2 - 1.
    """
    batch = torch.broadcast_shapes(column.shape[:-1], row.shape[:-1])
    column, row = column.expand(*batch, -1), row.expand(*batch, -1)
    tail = row[..., 1:].flip(-1)
    gap = column.new_zeros(*column.shape[:-1], length - column.shape[-1] - tail.shape[-1])
    return torch.cat([column, gap, tail], -1)


def spectrum(generator: Tensor, levels: int = 1) -> Tensor:
    """Eigenvalues of the circulant, (..., a_1, ..., a_d / 2 + 1): the half a real FFT keeps."""
    return torch.fft.rfftn(generator, dim=tuple(range(-levels, 0)))


def pad_and_transform(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Real FFT of values (..., n_1, ..., n_d) padded with zeros to ``lengths``.

    Each axis is padded when its turn comes, so that rows of zeros are never transformed: 3/4 of the
    work of a padded two-dimensional FFT, 7/12 of a three-dimensional one.
    """
    out = torch.fft.rfft(values, n=lengths[-1])
    for axis in range(len(lengths) - 2, -1, -1):
        out = torch.fft.fft(out, n=lengths[axis], dim=axis - len(lengths))
    return out


def transform_and_crop(values: Tensor, lengths: Sequence[int], keep: Sequence[int]) -> Tensor:
    """Inverse of ``pad_and_transform``, cropped to the first ``keep`` entries of each level."""
    for axis in range(len(lengths) - 1):
        dim = axis - len(lengths)
        values = torch.fft.ifft(values, dim=dim).narrow(dim, 0, keep[axis])
    return torch.fft.irfft(values, n=lengths[-1])[..., : keep[-1]]


def convolve(
    eigenvalues: Tensor,
    right: Tensor,
    lengths: Sequence[int],
    columns_grid: Sequence[int],
    rows_grid: Sequence[int],
) -> Tensor:
    """Toeplitz product: crop(circulant(pad(right))), (..., prod rows_grid, c).

    Args:
        eigenvalues (..., a_1, ..., a_d / 2 + 1): ``spectrum`` of the generator.
        right (..., prod columns_grid, c): real.
        lengths: a_l >= rows_grid[l] + columns_grid[l] - 1 for a Toeplitz matrix.

    Cost: two FFTs per column, O(a log a) for a = prod lengths; memory 2 a per column, at most
    ``COLUMN_BYTES`` (or one column) at a time.
    """
    step = columns_at_once(lengths, right)
    c = right.shape[-1]
    if c == 0:
        batch = torch.broadcast_shapes(eigenvalues.shape[: -len(lengths)], right.shape[:-2])
        return right.new_zeros(*batch, torch.Size(rows_grid).numel(), 0)
    if c <= step:
        return _convolve(eigenvalues, right, lengths, columns_grid, rows_grid)
    out: Tensor | None = None
    parts = []
    for start in range(0, c, step):
        block = right[..., start : start + step]
        part = _convolve(eigenvalues, block, lengths, columns_grid, rows_grid).mT
        if part.requires_grad:
            parts.append(part)
            continue
        out = part.new_empty(*part.shape[:-2], c, part.shape[-1]) if out is None else out
        out[..., start : start + step, :] = part
    return (torch.cat(parts, -2) if out is None else out).mT


def _convolve(
    eigenvalues: Tensor,
    right: Tensor,
    lengths: Sequence[int],
    columns_grid: Sequence[int],
    rows_grid: Sequence[int],
) -> Tensor:
    levels = len(lengths)
    transformed = pad_and_transform(_on_grid(right, columns_grid), lengths)
    factor = eigenvalues.unsqueeze(-levels - 1)
    batched = factor.ndim > transformed.ndim or factor.shape[: -levels - 1].numel() > 1
    if batched or transformed.requires_grad or factor.requires_grad:
        transformed = transformed * factor
    else:
        transformed *= factor
    out = transform_and_crop(transformed, lengths, rows_grid)
    return out.flatten(-levels).mT


def correlate(
    left: Tensor,
    right: Tensor,
    lengths: Sequence[int],
    rows_grid: Sequence[int],
    columns_grid: Sequence[int],
) -> Tensor:
    """Sum over columns and pairs (p, q) with p - q = l mod a of left_p right_q, (..., *lengths).

    This is the gradient of sum_c left_c^T T right_c with respect to the generator of T.

    Cost: two FFTs per column and one more; memory as ``convolve``.
    """
    c, step = right.shape[-1], columns_at_once(lengths, right)
    total: Tensor | None = None
    for start in range(0, c, step):
        stop = min(start + step, c)
        a = pad_and_transform(_on_grid(left[..., start:stop], rows_grid), lengths)
        b = a  # of a quadratic form
        if left is not right:
            b = pad_and_transform(_on_grid(right[..., start:stop], columns_grid), lengths)
        part = (a * b.conj()).sum(-len(lengths) - 1)
        total = part if total is None else total + part
    if total is None:  # no columns, of which the FFT of some libraries makes an error
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        return right.new_zeros(*batch, *lengths)
    return transform_and_crop(total, lengths, lengths)


def columns_at_once(lengths: Sequence[int], values: Tensor) -> int:
    """How many columns are transformed in one go."""
    batch = values.shape[:-2].numel()
    bytes_per_column = 2 * values.element_size() * torch.Size(lengths).numel() * max(batch, 1)
    return max(1, COLUMN_BYTES // bytes_per_column)


def _on_grid(values: Tensor, grid: Sequence[int]) -> Tensor:
    """(..., prod grid, c) -> (..., c, *grid), the grid contiguous for the transform."""
    moved = values.mT
    return moved if len(grid) == 1 else moved.reshape(*moved.shape[:-1], *grid)
