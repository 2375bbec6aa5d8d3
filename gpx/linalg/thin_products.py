"""Products of a matrix with a few vectors, in the layout in which BLAS multiplies them fastest.

The vectors are stored as rows and padded to a multiple of four: MKL multiplies a remainder of four
columns one by one, so that on one thread a matrix of 2,000 x 2,000 meets 12 rows in two thirds of
the time of 11.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLAS_COLUMNS = 4
"""Columns that the innermost loops of BLAS process at once, in both precisions."""


def thin_product(matrix: Tensor, vectors: Tensor, *, symmetric: bool = False) -> Tensor:
    """A matrix (m, n) times vectors (n, c): (m, c), by columns.

    Args:
        symmetric: the matrix equals its transpose, so that either may be read.
    """
    if vectors.shape[1] == 1:  # a matrix-vector product, whose layout does not matter
        return matrix @ vectors
    columns = matrix if symmetric and matrix.is_contiguous() else matrix.mT
    return (as_rows(vectors) @ columns)[: vectors.shape[1]].mT


def as_rows(vectors: Tensor) -> Tensor:
    """Vectors (n, c) as contiguous rows (r, n), r >= c: on a CPU padded with rows of zeros."""
    count = row_count(vectors)
    if count == vectors.shape[1]:
        return vectors.mT.contiguous()
    rows = vectors.new_empty(count, vectors.shape[0])
    rows[: vectors.shape[1]] = vectors.mT
    rows[vectors.shape[1] :] = 0.0
    return rows


def row_count(vectors: Tensor) -> int:
    """Number of rows of ``as_rows``; no padding for a GPU, or for one or two vectors."""
    count = vectors.shape[1]
    whole = not vectors.is_cpu or count < BLAS_COLUMNS - 1
    return count if whole else -(-count // BLAS_COLUMNS) * BLAS_COLUMNS


class DenseProduct:
    """Products with a symmetric matrix (..., n, n), written into one buffer.

    For users of the package, who may give a matrix to ``conjugate_gradients``.

    Args:
        matrix: symmetric.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.detach()
        self._cast: dict[torch.dtype, Tensor] = {self.matrix.dtype: self.matrix}
        self._rows: Tensor | None = None
        self._buffer: Tensor | None = None

    def __call__(self, vectors: Tensor) -> Tensor:
        """K times vectors (n,) or (..., n, c), in their dtype; valid until the next call."""
        matrix = self._cast.get(vectors.dtype)
        if matrix is None:
            matrix = self._cast[vectors.dtype] = self.matrix.to(vectors.dtype)
        if matrix.ndim > 2 or vectors.ndim != 2:
            return matrix @ vectors
        columns = vectors.shape[1]
        shape = (row_count(vectors), len(matrix))
        if self._buffer is None or self._buffer.dtype != vectors.dtype:
            self._buffer = vectors.new_empty(shape)
            self._rows = None
        rows = vectors.mT
        if shape[0] != columns or not rows.is_contiguous():
            if self._rows is None:
                self._rows = vectors.new_zeros(shape)
            self._rows[:columns] = rows
            rows = self._rows
        # K^T = K: the contiguous one of the two is read
        straight = matrix if matrix.is_contiguous() else matrix.mT
        torch.mm(rows, straight, out=self._buffer)
        return self._buffer[:columns].mT
