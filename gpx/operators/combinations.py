"""Sums, multiples and products of operators, applied part by part."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    DiagLinearOperator,
    TriangularLinearOperator,
    ZeroLinearOperator,
)
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.operators.algebra import Index, combine, combined, rule
from gpx.operators.indexing import common_batch
from gpx.operators.structured import Structured
from gpx.operators.symmetry import require_symmetric
from gpx.tensor_checks import check_alike

EXACT = (Structured, DiagLinearOperator, TriangularLinearOperator)
"""Operators whose own solve and logdet are exact, or an error. Others of linear_operator's read one
triangle of a matrix that need not be symmetric, add jitter, or stop at a loose tolerance."""


class Scaled(Structured):
    """c A, (..., n, m), for a scalar c of the batch shape.

    Cost: A's, plus one pass over the result. Solve: A^{-1} b / c; logdet: log|A| + n log c.

    Raises:
        DTypeError: a scale of another dtype or device. ShapeError: batches that do not fit.
        NotPositiveDefinite: a solve with c = 0, a logdet with c <= 0 (one host synchronisation).
    """

    def __init__(self, base: LinearOperator, scale: Tensor) -> None:
        super().__init__(base, scale)
        check_alike("an operator and its scale", base, scale)
        self.base, self.scale = base, scale

    def _dims(self) -> tuple[int, ...]:
        return (2, 0)

    def _size(self) -> torch.Size:
        *batch, rows, columns = self.base.shape
        shapes = (torch.Size(batch), self.scale.shape)
        return torch.Size((*common_batch(*shapes, what="an operator and its scale"), rows, columns))

    def _transpose_nonbatch(self) -> Scaled:
        return Scaled(self.base.mT, self.scale)

    def _product(self, right: Tensor) -> Tensor:
        return self.scale[..., None, None] * self.base.matmul(right)

    def _solution(self, right: Tensor) -> Tensor:
        if bool((self.scale == 0).any()):
            raise NotPositiveDefinite(f"{self._name()} is zero times an operator: no solve")
        self._require_symmetric_base("solve")
        return self.base.solve(right) / self.scale[..., None, None]

    def _logdet(self) -> Tensor:
        if not bool((self.scale > 0).all()):
            raise NotPositiveDefinite(
                f"the log-determinant of {self._name()} needs a positive scale; found "
                f"{float(self.scale.min()):.2e}"
            )
        self._require_symmetric_base("logdet")
        return self.base.logdet() + self.shape[-1] * self.scale.log()

    def _require_symmetric_base(self, what: str) -> None:
        """Refuse an unsymmetric base that is not ``EXACT``: it would read one triangle of it."""
        if not isinstance(self.base, EXACT):
            require_symmetric(self.base, what)

    def _diagonal(self) -> Tensor:
        return self.scale[..., None] * self.base._diagonal()

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        base, scale = self._broadcast_args()
        found = base._get_indices(row_index, col_index, *batch_indices)
        return found * (scale[batch_indices] if batch_indices else scale)


class Sum(Structured):
    """A_1 + ... + A_k of any operators of one shape.

    A new term joins the first term that has a rule for it (a diagonal joins a Kronecker product).
    Cost: the sum of the parts' for products, diagonal and entries. No closed-form solve or
    logdet: see ``Structured``.
    """

    def __init__(self, *terms: LinearOperator) -> None:
        super().__init__(*terms)
        if len({t.shape[-2:] for t in terms}) != 1:
            raise ShapeError(
                f"a sum needs terms of one shape, got {[tuple(t.shape) for t in terms]}"
            )
        check_alike("the terms of a sum", *terms)
        self.terms = terms

    def _size(self) -> torch.Size:
        batch = common_batch(*[t.shape[:-2] for t in self.terms], what="the terms of a sum")
        return torch.Size((*batch, *self.terms[0].shape[-2:]))

    def _transpose_nonbatch(self) -> Sum:
        return Sum(*[t.mT for t in self.terms])

    def _product(self, right: Tensor) -> Tensor:
        return reduce(torch.add, [t.matmul(right) for t in self.terms])

    def _diagonal(self) -> Tensor:
        return reduce(torch.add, [t._diagonal() for t in self.terms])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        terms = self._broadcast_args()
        return reduce(
            torch.add, [t._get_indices(row_index, col_index, *batch_indices) for t in terms]
        )


class Product(Structured):
    """A_1 A_2 ... A_k of any operators that fit, applied one after another.

    Cost: product the sum of the factors'. Where all are square and ``EXACT``: solve A_k^{-1} ...
    A_1^{-1} b by the factors' own solves, logdet the sum of theirs; else the defaults of
    ``Structured``, for a symmetric product. Entries and rows: a product each; diagonal: products
    with all unit vectors, in blocks.

    Raises:
        ShapeError: fewer than one factor, or neighbours that do not fit.
    """

    def __init__(self, *factors: LinearOperator) -> None:
        super().__init__(*factors)
        if not factors or any(a.shape[-1] != b.shape[-2] for a, b in pairwise(factors)):
            raise ShapeError(
                "a product needs at least one factor and columns that meet the next rows, got "
                f"{[tuple(f.shape) for f in factors]}"
            )
        self.factors = factors

    def _size(self) -> torch.Size:
        batch = common_batch(*[f.shape[:-2] for f in self.factors], what="a product's factors")
        return torch.Size((*batch, self.factors[0].shape[-2], self.factors[-1].shape[-1]))

    def _transpose_nonbatch(self) -> Product:
        return Product(*[f.mT for f in reversed(self.factors)])

    def _product(self, right: Tensor) -> Tensor:
        return reduce(lambda found, factor: factor.matmul(found), reversed(self.factors), right)

    def _all_exact(self) -> bool:
        return all(f.shape[-1] == f.shape[-2] and isinstance(f, EXACT) for f in self.factors)

    def _solution(self, right: Tensor) -> Tensor:
        if not self._all_exact():
            return super()._solution(right)
        return reduce(lambda found, factor: factor.solve(found), self.factors, right)

    def _logdet(self) -> Tensor:
        if not self._all_exact():
            return super()._logdet()
        found = reduce(torch.add, [f.logdet() for f in self.factors])
        return found.expand(self.batch_shape)

    def _diagonal(self) -> Tensor:
        n, columns = min(self.shape[-2:]), self.shape[-1]
        if n == 0:
            return torch.zeros(*self.batch_shape, 0, dtype=self.dtype, device=self.device)
        widest = max(max(f.shape[-2:]) for f in self.factors)
        bytes_each = 2 * widest * max(self.batch_shape.numel(), 1) * self.dtype.itemsize
        parts = []
        for rows in row_chunks(n, bytes_each, DEFAULT_BUDGET):
            units = torch.zeros(
                columns, rows.stop - rows.start, dtype=self.dtype, device=self.device
            )
            units[rows].fill_diagonal_(1.0)
            parts.append(self._product(units)[..., rows, :].diagonal(dim1=-2, dim2=-1))
        return torch.cat(parts, -1).expand(*self.batch_shape, n)


@rule("scale", Structured, Tensor)
def _scale(base: Structured, scale: Tensor) -> Scaled:
    return Scaled(base, scale)


@rule("add", Structured, LinearOperator)
def _add(left: Structured, right: LinearOperator) -> Sum:
    return Sum(left, right)


@rule("add", Sum, LinearOperator)
def _extend(left: Sum, right: LinearOperator) -> Sum:
    """Merge the new term with one that has a rule for the pair, else append it."""
    for new in right.terms if isinstance(right, Sum) else (right,):
        left = Sum(*_joined(left.terms, new))
    return left


def _joined(terms: tuple[Any, ...], new: LinearOperator) -> tuple[Any, ...]:
    for at, term in enumerate(terms):
        found = combine("add", term, new)
        if found is not None and not isinstance(found, Sum):
            return (*terms[:at], found, *terms[at + 1 :])
    return (*terms, new)


@rule("add", Scaled, DiagLinearOperator)
def _scaled_plus_diagonal(left: Scaled, right: DiagLinearOperator) -> Scaled | None:
    """c A + D = c (A + D / c), where A keeps its structure with a diagonal.

    For positive c only: for c <= 0 the sum may be positive definite where A + D / c is not. One
    host synchronisation.
    """
    if not bool((left.scale > 0).all()):
        return None
    constant = getattr(right, "diag_values", None)
    scale = left.scale[..., None]
    if constant is None:
        divided: LinearOperator = DiagLinearOperator(right.diagonal() / scale)
    else:
        divided = ConstantDiagLinearOperator(constant / scale, diag_shape=left.shape[-1])
    found = combine("add", left.base, divided)
    if found is None or isinstance(found, Sum):
        return None
    return Scaled(found, left.scale)


@rule("matmul", Structured, LinearOperator)
def _matmul(left: Structured, right: LinearOperator) -> Product:
    return Product(left, right)


@rule("matmul", Structured, ZeroLinearOperator)
def _empty_product(left: Structured, right: ZeroLinearOperator) -> LinearOperator:
    batch = common_batch(left.shape[:-2], right.shape[:-2], what="a product's factors")
    shape = (*batch, left.shape[-2], right.shape[-1])
    return ZeroLinearOperator(*shape, dtype=left.dtype, device=left.device)


@rule("select", Sum, Index)
def _select_terms(base: Sum, index: Index) -> Sum:
    """A selection of a sum is the sum of the selections, each with its own structure."""
    return Sum(*[combined("select", t, index) for t in base.terms])


@rule("select", Product, Index)
def _select_factors(base: Product, index: Index) -> Product:
    """Rows of the first factor, columns of the last."""
    factors = list(base.factors)
    if index.rows is not None:
        factors[0] = combined("select", factors[0], Index(index.rows, None))
    if index.columns is not None:
        factors[-1] = combined("select", factors[-1], Index(None, index.columns))
    return Product(*factors)
