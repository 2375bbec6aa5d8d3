"""Kronecker algebra on plain tensors: products, rows, determinants without forming the product.

A vector over a grid is flattened row-major, first factor slowest, which is ``torch.reshape`` and
the order of ``torch.kron``: index = (... (i_1 n_2 + i_2) n_3 + ...) + i_d. Factors carry their own
batch dimensions, which broadcast. Everything here is made of differentiable torch operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.cholesky import cholesky

T = TypeVar("T")
F = TypeVar("F", bound="Factor")


class Factor(Protocol):
    """What a Kronecker product asks of a factor: a tensor, or any operator with a product."""

    @property
    def shape(self) -> torch.Size:
        """(..., k, n)."""

    def matmul(self, other: Any) -> Any:
        """The product with (..., n, c)."""


def kronecker_matmul(factors: Sequence[Factor], right: Tensor) -> Tensor:
    """(A_1 x ... x A_d) @ right, one matrix product per factor, without the Kronecker product.

    Each product contracts the axis at one end of the grid and leaves the new axis at the other end,
    so that a factor costs one large matrix product and no permutation. The grid is walked from the
    end that needs fewer operations (rectangular factors), else from the last factor: A @ x^T runs
    at twice the rate of x^T @ A^T on CPUs.

    Args:
        factors (..., k_l, n_l): tensors, or operators with ``matmul``; at least one.
        right (..., n_1 ... n_d, c).

    Returns:
        (..., k_1 ... k_d, c); for c > 1 it may be a transposed view.

    Raises:
        ShapeError: no factor, or the rows of ``right`` are not n_1 ... n_d.

    Cost: 2 c M sum_l m_l operations for square factors (M = prod_l m_l); memory two buffers of
    c M, plus c M per factor when gradients of the factors are wanted.
    Source: Evans thesis, appendix A (contraction order corrected).
    """
    columns = math.prod(f.shape[-1] for f in factors)
    if not factors or right.ndim < 2 or right.shape[-2] != columns:
        raise ShapeError(
            f"a Kronecker product of {len(factors)} factors with {columns} columns cannot be "
            f"multiplied with {tuple(right.shape)}; expected ({columns}, c)"
        )
    forward, backward = matmul_operations(factors)
    return _from_first(factors, right) if forward < backward else _from_last(factors, right)


def matmul_operations(factors: Sequence[Factor]) -> tuple[int, int]:
    """Multiply-adds per column when the first, or the last, factor is applied first."""
    totals = []
    for order in (factors, list(reversed(factors))):
        size, total = math.prod(f.shape[-1] for f in factors), 0
        for f in order:
            total += size * f.shape[-2]
            size = size // max(f.shape[-1], 1) * f.shape[-2]
        totals.append(total)
    return totals[0], totals[1]


def _from_first(factors: Sequence[Factor], right: Tensor) -> Tensor:
    count = right.shape[-1]
    x = right.reshape(*right.shape[:-2], right.shape[-2] * count)
    for f in factors:
        n = f.shape[-1]
        x = x.reshape(*x.shape[:-1], n, x.shape[-1] // n)
        # (rest, n) @ (n, k): the product itself moves the new axis to the end
        x = torch.matmul(x.mT, f.mT) if isinstance(f, Tensor) else f.matmul(x).mT
        x = x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
    return x.reshape(*x.shape[:-1], count, math.prod(f.shape[-2] for f in factors)).mT


def _from_last(factors: Sequence[Factor], right: Tensor) -> Tensor:
    count = right.shape[-1]
    x = right.mT.reshape(*right.shape[:-2], right.shape[-2] * count)
    for f in reversed(factors):
        n = f.shape[-1]
        x = x.reshape(*x.shape[:-1], x.shape[-1] // n, n)
        x = f.matmul(x.mT)  # (k, rest): the new axis comes first
        x = x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
    return x.reshape(*x.shape[:-1], math.prod(f.shape[-2] for f in factors), count)


def kronecker_derivatives(
    factors: Sequence[F],
    left: Tensor,
    right: Tensor,
    derivative: Callable[[F, Tensor, Tensor], T],
) -> list[T]:
    """Derivative of left^T (A_1 x ... x A_d) right by every factor: no product is taken twice.

    With the factors before l applied (transposed) to the left vector and those after l to the right
    one, the derivative is the product of the two unfoldings along axis l.

    Args:
        factors (k_l, n_l): no batch; tensors or operators, which have a transpose ``mT``.
        left (prod k_l,), right (prod n_l,).
        derivative: (factor, a (k_l, r), b (n_l, r)) -> derivative of the trace of a^T A_l b; for a
            dense factor that is a b^T.

    Cost: (3 d - 2) / d Kronecker products with the a b^T; memory d vectors over the grid.
    Source: derived; Evans thesis, section 3.4, for the product rule over factors.
    """
    rows, columns = [f.shape[-2] for f in factors], [f.shape[-1] for f in factors]
    suffixes = [right]
    for axis in range(len(factors) - 1, 0, -1):
        sizes = [*columns[: axis + 1], *rows[axis + 1 :]]
        suffixes.append(_along(factors[axis], suffixes[-1], sizes, axis))
    prefix, found = left, []
    for axis, f in enumerate(factors):
        of_left = [*columns[:axis], *rows[axis:]]
        of_right = [*columns[: axis + 1], *rows[axis + 1 :]]
        found.append(
            derivative(
                f, _unfolding(prefix, of_left, axis), _unfolding(suffixes.pop(), of_right, axis)
            )
        )
        if axis + 1 < len(factors):
            prefix = _along(f.mT, prefix, of_left, axis)  # type: ignore[attr-defined]
    return found


def _along(factor: Factor, vector: Tensor, sizes: Sequence[int], axis: int) -> Tensor:
    """A factor applied along one axis of a vector over the grid of ``sizes``."""
    before, m, after = _split(sizes, axis)
    if not isinstance(factor, Tensor):
        rows = vector.reshape(before, m, after).mT.contiguous()
        return factor.matmul(rows.mT).reshape(-1)
    if after == 1:
        return (vector.reshape(before, m) @ factor.mT).reshape(-1)
    return torch.matmul(factor, vector.reshape(before, m, after)).reshape(-1)


def _unfolding(vector: Tensor, sizes: Sequence[int], axis: int) -> Tensor:
    """The matrix (m_l, M / m_l) of a vector over the grid."""
    before, m, after = _split(sizes, axis)
    if after == 1:
        return vector.reshape(before, m).mT
    return vector.reshape(before, m, after).transpose(0, 1).reshape(m, -1)


def _split(sizes: Sequence[int], axis: int) -> tuple[int, int, int]:
    return math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])


def kronecker_product(factors: Sequence[Tensor]) -> Tensor:
    """The dense product (..., prod k_l, prod n_l), batches broadcast.

    Cost: time and memory of the result.
    """
    return reduce(_pair, factors)


def _pair(a: Tensor, b: Tensor) -> Tensor:
    both = a[..., :, None, :, None] * b[..., None, :, None, :]
    return both.reshape(*both.shape[:-4], a.shape[-2] * b.shape[-2], a.shape[-1] * b.shape[-1])


def kronecker_vector(vectors: Sequence[Tensor]) -> Tensor:
    """The Kronecker product of vectors (..., n_l), expanded: (..., n_1 ... n_d).

    Cost: O(M) time and memory. For eigenvalues and diagonals (diag(A x B) = diag A x diag B).
    """
    return reduce(lambda a, b: (a[..., :, None] * b[..., None, :]).flatten(-2), vectors)


def split_index(index: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Flat grid index (...) -> one index per axis; inverse of the row-major flattening."""
    parts: list[Tensor] = []
    for size in reversed(sizes):
        parts.append(index % size)
        index = torch.div(index, size, rounding_mode="floor")
    return tuple(reversed(parts))


def flatten_index(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """One index per axis (...) -> flat grid index (...), row-major; inverse of ``split_index``.

    For grids an int64 can count.
    """
    flat = torch.zeros_like(parts[0])
    for part, size in zip(parts, sizes, strict=True):
        flat = flat * size + part
    return flat


def kronecker_logdet(factors: Sequence[Tensor]) -> Tensor:
    """log|A_1 x ... x A_d| = sum_l (M / m_l) log|A_l|, (...), for positive definite factors.

    Exact: Cholesky factorisations of the factors without jitter. The eigenvalues are never
    multiplied with each other, so that none can underflow or be clamped.

    Raises:
        NotPositiveDefinite: a factor is not, to rounding; the message names it.
        ShapeError: a factor is not square.

    Cost: sum_l m_l^3 / 3 operations; one host synchronisation per factor.
    """
    sizes = [f.shape[-1] for f in factors]
    terms = []
    for position, f in enumerate(factors):
        lower, _ = cholesky(
            f,
            name=f"factor {position + 1} of {len(factors)} of a Kronecker product",
            ladder=(0.0,),
            hint="add a noise variance (KroneckerPlusDiagonal)",
        )
        log_diagonal = lower.diagonal(dim1=-2, dim2=-1).log()
        others = math.prod(sizes[:position] + sizes[position + 1 :])
        terms.append(2.0 * float(others) * log_diagonal.sum(-1))
    return reduce(torch.add, terms)


def kronecker_solve(factors: Sequence[Tensor], right: Tensor) -> Tensor:
    """(A_1 x ... x A_d)^{-1} right (..., M, c) for square non-singular factors (LU).

    The factors need not be symmetric. Cost: 2/3 sum_l m_l^3 operations, then one Kronecker
    product per call; a triangular solve per factor, so no inverse is formed.

    Raises:
        NotPositiveDefinite: a factor is singular to working precision.
        ShapeError: a factor is not square, or ``right`` has the wrong number of rows.
    """
    solvers: list[Factor] = []
    for position, f in enumerate(factors):
        if f.shape[-1] != f.shape[-2]:
            raise ShapeError(
                f"factor {position + 1} of {len(factors)} is {tuple(f.shape)}; a Kronecker solve "
                "needs square factors"
            )
        lu, pivots, info = torch.linalg.lu_factor_ex(f)
        pivot = lu.detach().diagonal(dim1=-2, dim2=-1).abs()
        if bool((info != 0).any()) or not bool((pivot > _rounding(f.detach(), lu, pivots)).all()):
            raise NotPositiveDefinite(
                f"factor {position + 1} of {len(factors)} of a Kronecker product "
                f"({f.shape[-1]} x {f.shape[-1]}) is singular or not finite: a pivot of its "
                f"factorisation is {float(pivot.min()):.1e}, zero to rounding. Try: remove "
                "duplicate grid points; add a noise variance (KroneckerPlusDiagonal)."
            )
        solvers.append(_Inverse(lu, pivots))
    return kronecker_matmul(solvers, right)


def _rounding(matrix: Tensor, lu: Tensor, pivots: Tensor) -> Tensor:
    """What a pivot (..., m) is worth no more than, whatever the scales of its row and column."""
    size = matrix.abs()
    order = torch.lu_unpack(lu.detach(), pivots, unpack_data=False)[0]
    rows = (order.mT @ size.sum(-1, keepdim=True)).squeeze(-1)
    return torch.finfo(matrix.dtype).eps * torch.minimum(size.sum(-2), rows)


class _Inverse:
    """An inverse that is applied and never formed."""

    def __init__(self, lu: Tensor, pivots: Tensor) -> None:
        self.lu, self.pivots = lu, pivots
        self.shape = lu.shape

    def matmul(self, other: Tensor) -> Tensor:
        batch = torch.broadcast_shapes(self.lu.shape[:-2], other.shape[:-2])
        if not batch:
            return torch.linalg.lu_solve(self.lu, self.pivots, other)
        return torch.linalg.lu_solve(
            self.lu.expand(*batch, *self.lu.shape[-2:]),
            self.pivots.expand(*batch, *self.pivots.shape[-1:]),
            other.expand(*batch, *other.shape[-2:]),
        )
