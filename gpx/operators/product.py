"""Products of operators that pass on what their factors can do."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    IdentityLinearOperator,
    ZeroLinearOperator,
)
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.errors import ShapeError
from gpx.operators.algebra import Index, combine, rule
from gpx.operators.indexing import common_batch
from gpx.operators.structured import Structured


class Product(Structured):
    """A_1 A_2 ... A_k of any operators that fit, applied one after another.

    Cost: product the sum of the factors'. Solve: A_k^{-1} ... A_1^{-1} b by the factors' own solves
    where all are square, symmetric or not as these allow; logdet the sum of theirs. Diagonal
    O(N n) for rows and columns of the inner width n, in blocks of rows; selections of rows or
    columns are those of the first or last factor.
    Elements and solves of a product of rectangular factors: see ``Structured``.

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

    def _all_square(self) -> bool:
        return all(f.shape[-1] == f.shape[-2] for f in self.factors)

    def _solution(self, right: Tensor) -> Tensor:
        if not self._all_square():
            return super()._solution(right)
        return reduce(lambda found, factor: factor.solve(found), self.factors, right)

    def _inverse_product(self, right: Tensor) -> Tensor:
        return self._solution(right) if self._all_square() else super()._inverse_product(right)

    def _logdet(self) -> Tensor:
        if not self._all_square():
            return super()._logdet()
        found = reduce(torch.add, [f.logdet() for f in self.factors])
        return found.expand(self.batch_shape)

    def _diagonal(self) -> Tensor:
        """Row i of the first factor against column i of the rest, some rows at a time."""
        rest = self.factors[1] if len(self.factors) == 2 else Product(*self.factors[1:])
        if len(self.factors) == 1:
            return self.factors[0]._diagonal()
        n, inner = min(self.shape[-2:]), self.factors[0].shape[-1]
        width = 2 * inner * max(self.batch_shape.numel(), 1) * self.dtype.itemsize
        parts = []
        for rows in row_chunks(n, width, DEFAULT_BUDGET):
            where = torch.arange(rows.start, rows.stop, device=self.device)
            left = _chosen(self.factors[0], Index(where, None)).to_dense()
            right = _chosen(rest, Index(None, where)).to_dense()
            parts.append((left * right.mT).sum(-1))
        return torch.cat(parts, -1).expand(*self.batch_shape, n)


def _chosen(operator: LinearOperator, index: Index) -> Any:
    found = combine("select", operator, index)
    assert found is not None
    return found


@rule("matmul", Structured, LinearOperator)
def _matmul(left: Structured, right: LinearOperator) -> Product:
    """Neighbours that have a rule join; the others stand beside each other."""
    return Product(left, *(right.factors if isinstance(right, Product) else (right,)))


@rule("matmul", Product, LinearOperator)
def _extend(left: Product, right: LinearOperator) -> Product | None:
    if isinstance(right, ZeroLinearOperator):
        return None
    factors = list(left.factors)
    for new in right.factors if isinstance(right, Product) else (right,):
        found = combine("matmul", factors[-1], new)
        if found is None or isinstance(found, Product):
            factors.append(new)
        else:
            factors[-1] = found
    return Product(*factors)


@rule("matmul", Structured, ConstantDiagLinearOperator)
def _constant(left: Structured, right: ConstantDiagLinearOperator) -> LinearOperator:
    """A (c I) = c A."""
    if isinstance(right, IdentityLinearOperator):
        return left
    return left._mul_constant(right.diag_values.squeeze(-1))


@rule("matmul", Structured, ZeroLinearOperator)
def _zero(left: Structured, right: ZeroLinearOperator) -> LinearOperator:
    batch = common_batch(left.shape[:-2], right.shape[:-2], what="a product's factors")
    shape = (*batch, left.shape[-2], right.shape[-1])
    return ZeroLinearOperator(*shape, dtype=left.dtype, device=left.device)


@rule("select", Product, Index)
def _select(base: Product, index: Index) -> Product:
    """Rows of the first factor, columns of the last."""
    factors = list(base.factors)
    if index.rows is not None:
        factors[0] = _chosen(factors[0], Index(index.rows, None))
    if index.columns is not None:
        factors[-1] = _chosen(factors[-1], Index(None, index.columns))
    return Product(*factors)


@rule("scale", Product, Tensor)
def _scale(base: Product, scale: Tensor) -> Product:
    """c (A B) = (c A) B, where A may keep its structure."""
    return Product(base.factors[0] * scale[..., None, None], *base.factors[1:])
