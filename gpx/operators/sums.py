"""Sums and scalar multiples that keep what their parts can do."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    DiagLinearOperator,
    RootLinearOperator,
)
from torch import Tensor

from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.operators.algebra import Index, combine, rule
from gpx.operators.indexing import common_batch
from gpx.operators.structured import Structured


class Scaled(Structured):
    """c A, (..., n, m), for a scalar c of the batch shape; what A solves, c A solves.

    Cost: A's, plus O(n c) for the multiplication. Solve: A^{-1} b / c; logdet: log|A| + n log c.

    Raises:
        DTypeError: a scale of another dtype or device. ShapeError: batches that do not fit.
        NotPositiveDefinite: a solve with c = 0, a logdet or root with c <= 0 (one host
            synchronisation).
    """

    def __init__(self, base: LinearOperator, scale: Tensor) -> None:
        super().__init__(base, scale)
        if scale.dtype != base.dtype or scale.device != base.device:
            raise DTypeError(
                f"the scale is {scale.dtype} on {scale.device}, the operator {base.dtype} on "
                f"{base.device}; convert one of them"
            )
        self.base, self.scale = base, scale

    def _dims(self) -> tuple[int, ...]:
        return (2, 0)

    def _size(self) -> torch.Size:
        shape = self.base.shape
        return torch.Size(
            (
                *common_batch(shape[:-2], self.scale.shape, what="an operator and its scale"),
                *shape[-2:],
            )
        )

    def _transpose_nonbatch(self) -> Scaled:
        return Scaled(self.base.mT, self.scale)

    def _product(self, right: Tensor) -> Tensor:
        return self.scale[..., None, None] * self.base.matmul(right)

    def _solution(self, right: Tensor) -> Tensor:
        if bool((self.scale == 0).any()):
            raise NotPositiveDefinite(f"{self._name()} is zero times an operator: no solve")
        return self.base.solve(right) / self.scale[..., None, None]

    def _inverse_product(self, right: Tensor) -> Tensor:
        return self._solution(right)

    def _logdet(self) -> Tensor:
        self._positive("log-determinant")
        return self.base.logdet() + self.shape[-1] * self.scale.log()

    def _positive(self, what: str) -> None:
        if not bool((self.scale > 0).all()):
            raise NotPositiveDefinite(
                f"the {what} of {self._name()} needs a positive scale; found "
                f"{float(self.scale.min()):.2e}"
            )

    def _diagonal(self) -> Tensor:
        return self.scale[..., None] * self.base._diagonal()

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        base, scale = self._broadcast_args()
        found = base._get_indices(row_index, col_index, *batch_indices)
        return found * (scale[batch_indices] if batch_indices else scale)

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """sqrt(c) R."""
        self._positive("root")
        root = self.base.root_decomposition(method).root
        return RootLinearOperator(root * self.scale.sqrt()[..., None, None])


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
        if len({(t.dtype, t.device) for t in terms}) != 1:
            raise DTypeError(
                f"a sum needs terms of one dtype and device, got "
                f"{[(t.dtype, str(t.device)) for t in terms]}; convert them to one"
            )
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

    def to_dense(self) -> Tensor:
        """The matrix itself: the sum of the dense terms."""
        return reduce(torch.add, [t.to_dense() for t in self.terms])


@rule("add", Structured, LinearOperator)
def _add(left: Structured, right: LinearOperator) -> Sum:
    return Sum(left, right)


@rule("add", Sum, LinearOperator)
def _extend(left: Sum, right: LinearOperator) -> Sum:
    """Let the new term join one that has structure for it, else stand beside the others."""
    for new in right.terms if isinstance(right, Sum) else (right,):
        left = Sum(*_joined(left.terms, new))
    return left


def _joined(terms: tuple[Any, ...], new: LinearOperator) -> tuple[Any, ...]:
    for at, term in enumerate(terms):
        found = combine("add", term, new)
        if found is not None and not isinstance(found, Sum):
            return (*terms[:at], found, *terms[at + 1 :])
    return (*terms, new)


@rule("scale", Sum, Tensor)
def _scale_terms(base: Sum, scale: Tensor) -> Sum:
    return Sum(*[t * scale[..., None, None] for t in base.terms])


@rule("select", Sum, Index)
def _select_terms(base: Sum, index: Index) -> Sum:
    """A selection of a sum is the sum of the selections, each with its own structure."""
    found = [combine("select", t, index) for t in base.terms]
    assert all(f is not None for f in found)
    return Sum(*[f for f in found if f is not None])


@rule("scale", Structured, Tensor)
def _scale(base: Structured, scale: Tensor) -> Scaled:
    return Scaled(base, scale)


@rule("scale", Scaled, Tensor)
def _scale_again(base: Scaled, scale: Tensor) -> Scaled:
    return Scaled(base.base, base.scale * scale)


@rule("add", Scaled, DiagLinearOperator)
def _scaled_plus_diagonal(left: Scaled, right: DiagLinearOperator) -> Scaled | None:
    """c A + D = c (A + D / c), where A keeps its structure with a diagonal."""
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


@rule("matmul", Scaled, LinearOperator)
def _scaled_matmul(left: Scaled, right: LinearOperator) -> LinearOperator:
    """(c A) B = c (A B)."""
    return (left.base @ right) * left.scale[..., None, None]
