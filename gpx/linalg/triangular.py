"""Products with triangular matrices that skip the zero half, and triangular inverses.

BLAS has these (trmm, syrk) but torch does not expose them, and its triangular solves run at a
fraction of the speed of a product. Cutting the rows into panels recovers most of the saving with
ordinary products: with four panels a triangular product costs 5/8 of a full one, a lower-triangular
result of a product of two triangular matrices 5/16.

On CUDA devices, and for matrices below two panels, the plain product is used: there a kernel launch
costs more than the zeros. Batches are not supported; callers flatten them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.cholesky import cholesky

PANEL = 128
"""Rows per panel: small enough to skip most zeros, large enough to run at full speed."""


def _panels(n: int) -> list[tuple[int, int]]:
    return [(start, min(start + PANEL, n)) for start in range(0, n, PANEL)]


def _plain(matrix: Tensor) -> bool:
    return matrix.is_cuda or matrix.shape[0] < 2 * PANEL


def lower_matmul(lower: Tensor, right: Tensor) -> Tensor:
    """``lower @ right`` for lower-triangular (m, m) and dense (m, n); the upper half must be zero.

    Cost: about 5/8 of 2 m^2 n operations. Not differentiable (for use inside hand-written rules).
    """
    if _plain(lower):
        return lower @ right
    out = right.new_empty(right.shape)
    for start, stop in _panels(lower.shape[0]):
        torch.mm(lower[start:stop, :stop], right[:stop], out=out[start:stop])
    return out


def lower_transpose_matmul(lower: Tensor, right: Tensor) -> Tensor:
    """``lower.T @ right`` for lower-triangular (m, m) and dense (m, n); same cost."""
    if _plain(lower):
        return lower.mT @ right
    out = right.new_empty(right.shape)
    for start, stop in _panels(lower.shape[0]):
        torch.mm(lower[start:, start:stop].mT, right[start:], out=out[start:stop])
    return out


def lower_of_product(left: Tensor, right: Tensor, factor: float = 1.0) -> Tensor:
    """``factor * tril(left @ right.T)`` for dense (m, n) and (m, n); (m, m).

    Cost: about 5/8 of 2 m^2 n operations; a factor costs none.
    """
    m = left.shape[0]
    out = left.new_empty(m, m)
    if _plain(left):
        return torch.addmm(out, left, right.mT, beta=0.0, alpha=factor, out=out).tril_()
    for start, stop in _panels(m):
        part = out[start:stop, :stop]
        torch.addmm(part, left[start:stop], right[:stop].mT, beta=0.0, alpha=factor, out=part)
        out[start:stop, start:stop].tril_()
        out[start:stop, stop:] = 0.0
    return out


def lower_lower_matmul(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for two lower-triangular (m, m); lower triangular.

    Cost: about 1/2 of 2 m^3 operations.
    """
    if _plain(left):
        return left @ right
    m = left.shape[0]
    out = left.new_empty(m, m)
    for start, stop in _panels(m):
        torch.mm(left[start:stop, :stop], right[:stop, :stop], out=out[start:stop, :stop])
        out[start:stop, stop:] = 0.0
    return out


def inverse_lower(lower: Tensor) -> Tensor:
    """Inverse of a non-singular lower-triangular (m, m); lower triangular.

    Halves recursively: [[A, 0], [C, D]]^-1 = [[A^-1, 0], [-D^-1 C A^-1, D^-1]], so that nearly all
    of the m^3/3 multiply-adds are products. The error is of the order of the condition number of
    ``lower`` times the rounding unit, as for a triangular solve.

    Raises:
        ShapeError: not a square matrix.
    """
    if lower.ndim != 2 or lower.shape[0] != lower.shape[1]:
        raise ShapeError(f"expected one square triangular matrix, got {tuple(lower.shape)}")
    m = lower.shape[0]
    if m <= PANEL // 2 or (lower.is_cuda and m <= 1024):
        identity = torch.eye(m, dtype=lower.dtype, device=lower.device)
        return torch.linalg.solve_triangular(lower, identity, upper=False)
    half = m // 2
    first, last = inverse_lower(lower[:half, :half]), inverse_lower(lower[half:, half:])
    out = lower.new_zeros(m, m)
    out[:half, :half] = first
    out[half:, half:] = last
    torch.mm(last @ lower[half:, :half], first, out=out[half:, :half])
    out[half:, :half].neg_()
    return out


def inverse_root(precision: Tensor, *, name: str, **options: Any) -> Tensor:
    """S (m, m), lower triangular with a positive diagonal, of P^{-1} = S S^T.

    Args:
        precision (m, m): P, symmetric positive definite.
        name, options: as for ``cholesky``.

    Raises:
        NotPositiveDefinite: P has no factor.
    """
    # S lower needs P = U U^T with U = S^{-T} upper: P is factorised from its last row upwards
    lower, _ = cholesky(precision.flip(0, 1), name=name, **options)
    return inverse_lower(lower).flip(0, 1).mT


def add_lower_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the lower triangle of left right, (m, k) times (k, m), to ``total`` (m, m), in place.

    For symmetric products: entries above the diagonal are not meaningful afterwards.
    """
    m = len(total)
    panel = PANEL if left.is_cpu else m
    for start in range(0, m, panel):
        stop = min(start + panel, m)
        total[start:stop, :stop].addmm_(left[start:stop], right[:, :stop])
