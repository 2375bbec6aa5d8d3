"""The inverse of a matrix from its Cholesky factor, written over the factor."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_BLOCK = 4096
"""Largest number of columns of a block; the temporaries are two arrays of this size squared."""
NUM_BLOCKS = 16
"""A matrix of at most NUM_BLOCKS * MAX_BLOCK rows is cut into this many blocks."""
MIN_BLOCK = 256
"""Smallest number of columns of a block: below, launches cost more than arithmetic."""


def inverse_from_factor(upper: Tensor) -> Tensor:
    """K^{-1} from U with U^T U = K, in U's own memory.

    On a CPU LAPACK's potri works in place. On CUDA ``blocked_inverse`` is used, and for a batch
    L^{-T} L^{-1} with one batched solve and one product: ``torch.cholesky_inverse`` would solve for
    the columns of the identity, one matrix after the other, with 2 n^2 numbers of memory and four
    times the operations, and wait for its error code.

    Args:
        upper (..., n, n): as ``cholesky_in_place`` returns it, a transposed view of a contiguous
            array; destroyed.

    Returns:
        (..., n, n), symmetric.
    """
    if upper.is_cpu:
        found: Tensor = torch.cholesky_inverse(upper, upper=True, out=upper).mT
        return found
    if upper.ndim > 2:
        ones = torch.eye(upper.shape[-1], dtype=upper.dtype, device=upper.device)
        half = torch.linalg.solve_triangular(upper.mT, ones.expand_as(upper), upper=False)
        return torch.matmul(half.mT, half, out=upper.mT)
    return blocked_inverse(upper.mT)


def inverse_of_factor(lower: Tensor) -> Tensor:
    """K^{-1} (..., n, n) from L (..., n, n) with L L^T = K, as a new array; L stays as it is.

    Cost and method: as of ``inverse_from_factor``.
    """
    if lower.is_cpu:
        return torch.cholesky_inverse(lower)
    return inverse_from_factor(lower.clone(memory_format=torch.contiguous_format).mT)


def blocked_inverse(lower: Tensor, block: int | None = None) -> Tensor:
    """(L L^T)^{-1}, written over L (n, n) block by block. For a GPU only.

    First L^{-1}, from the last block of columns to the first: with the trailing part already
    inverted, the column below the diagonal block becomes -(L_22)^{-1} L_21 (L_11)^{-1}. Then
    L^{-T} L^{-1}, from the first block of rows to the last. Everything outside the diagonal blocks
    is matrix products that read no block above the diagonal; those blocks are copied at the end.

    Args:
        lower (n, n): lower triangular with a positive diagonal; replaced and returned.
        block: columns of a block; None: n / NUM_BLOCKS, between MIN_BLOCK and MAX_BLOCK.

    Cost: n^3 / 6 multiply-adds for each half and (n / block) b^2 n more; temporaries of two blocks.
    Source: the algorithms of LAPACK's trtri and lauum, by blocks.
    """
    n = lower.shape[0]
    size = block or min(MAX_BLOCK, max(MIN_BLOCK, -(-n // NUM_BLOCKS)))
    starts = list(range(0, n, size))
    parts = [slice(start, min(start + size, n)) for start in starts]
    for k in reversed(range(len(parts))):
        own = parts[k]
        ones = torch.eye(own.stop - own.start, dtype=lower.dtype, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower[own, own], ones, upper=False)
        # from the bottom up: a block is overwritten once no block below still needs it
        for below in reversed(parts[k + 1 :]):
            reach = slice(own.stop, below.stop)
            # within its diagonal block the factor's inverse is zero above the diagonal
            lower[below, own] = torch.mm(lower[below, reach], lower[reach, own]).neg_() @ inverse
        lower[own, own] = inverse
    for own in parts:
        left = lower[own.start :, own].mT
        for column in parts:
            if column.start > own.start:
                break
            product = left @ lower[own.start :, column]
            if column.start == own.start:
                diagonal = product
            else:
                lower[own, column] = product
        lower[own, own] = diagonal
    for own in parts:
        lower[: own.start, own] = lower[own, : own.start].mT
    return lower
