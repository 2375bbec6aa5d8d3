"""The elementwise product of two operators, exact, by blocks of rows."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import DiagLinearOperator, ZeroLinearOperator
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.errors import ShapeError
from gpx.operators.algebra import Index, combine, rule
from gpx.operators.closed_form import closed_form_product
from gpx.operators.indexing import common_batch
from gpx.operators.structured import Structured


class Elementwise(Structured):
    """A o B with entries A_ij B_ij, (..., N, M), for any two operators of one shape.

    Pairs with a closed form never come here: Kronecker products with equal factor shapes, Toeplitz
    and circulant matrices of one kind, Khatri-Rao products, anything with a diagonal matrix.

    Cost: product 2 N M c operations and what both ask for all their rows, in blocks of rows under
    1 GiB, forward and backward (blocks are recomputed for the gradient); no N x M array. Diagonal
    and entries as the operands'. Selections are taken from both. Solve, logdet: ``Structured``.

    Raises:
        ShapeError: operands of different shape.
    """

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        super().__init__(left, right)
        if left.shape[-2:] != right.shape[-2:]:
            raise ShapeError(
                f"an elementwise product needs operands of one shape, got {tuple(left.shape)} and "
                f"{tuple(right.shape)}"
            )
        self.left, self.right = left, right

    def _size(self) -> torch.Size:
        shapes = (self.left.shape[:-2], self.right.shape[:-2])
        batch = common_batch(*shapes, what="an elementwise product's operands")
        return torch.Size((*batch, *self.left.shape[-2:]))

    def _transpose_nonbatch(self) -> Elementwise:
        return Elementwise(self.left.mT, self.right.mT)

    def _rows(self, rows: slice) -> Tensor:
        n = self.shape[-2]
        where = None if rows == slice(0, n) else torch.arange(n, device=self.device)[rows]
        left, right = (_dense_rows(part, where) for part in (self.left, self.right))
        return left * right

    def _chunks(self) -> list[slice]:
        width = 3 * self.shape[-1] * max(self.batch_shape.numel(), 1) * self.dtype.itemsize
        return list(row_chunks(self.shape[-2], width, DEFAULT_BUDGET)) or [slice(0, 0)]

    def _product(self, right: Tensor) -> Tensor:
        return closed_form_product(self, right)

    def _multiply(self, right: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self._rows(rows) @ right for rows in self._chunks()], -2)

    def _t_multiply(self, right: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [self._rows(rows).mT @ right[..., rows, :] for rows in self._chunks()]
            return reduce(torch.add, parts)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        """Every block of rows builds and frees its own graph."""
        left, right = (v.unsqueeze(-1) if v.ndim == 1 else v for v in (left_vecs, right_vecs))
        tensors = self.representation()
        leaves = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        again = self.representation_tree()(*leaves)
        totals: list[Tensor | None] = [None] * len(wanted)
        for rows in self._chunks():
            with torch.enable_grad():
                block = again._rows(rows)
            weight = (left[..., rows, :] @ right.mT).sum_to_size(block.shape)
            found = torch.autograd.grad(block, wanted, weight, allow_unused=True)
            for at, grad in enumerate(found):
                before = totals[at]
                totals[at] = grad if before is None or grad is None else before + grad
        each = iter(totals)
        return tuple(next(each) if leaf.requires_grad else None for leaf in leaves)

    def to_dense(self) -> Tensor:
        """The matrix itself, (..., N, M)."""
        return self._rows(slice(0, self.shape[-2]))

    def _diagonal(self) -> Tensor:
        return self.left._diagonal() * self.right._diagonal()

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        left, right = (
            part._get_indices(row_index, col_index, *batch_indices)
            for part in self._broadcast_args()
        )
        return left * right


def _dense_rows(operator: LinearOperator, where: Tensor | None) -> Tensor:
    """Rows of an operator as a tensor, with a graph of their own at each call."""
    if where is not None:
        found = combine("select", operator, Index(where, None))
        assert found is not None
        operator = found
    if isinstance(operator, Structured):
        return operator.to_dense()
    eye = torch.eye(operator.shape[-1], dtype=operator.dtype, device=operator.device)
    dense: Any = operator.matmul(eye)  # the package's ``to_dense`` keeps a stale graph
    assert isinstance(dense, Tensor)
    return dense


@rule("mul", Structured, LinearOperator)
def _mul(left: Structured, right: LinearOperator) -> Elementwise:
    return Elementwise(left, right)


@rule("mul", Structured, DiagLinearOperator)
def _diagonal(left: Structured, right: DiagLinearOperator) -> DiagLinearOperator:
    """Only the diagonal is left."""
    return DiagLinearOperator(left._diagonal() * right.diagonal())


@rule("mul", Structured, ZeroLinearOperator)
def _zero(left: Structured, right: ZeroLinearOperator) -> ZeroLinearOperator:
    return right


@rule("select", Elementwise, Index)
def _select(base: Elementwise, index: Index) -> Elementwise:
    """Rows and columns of both operands."""
    left, right = (combine("select", part, index) for part in (base.left, base.right))
    assert left is not None
    assert right is not None
    return Elementwise(left, right)


@rule("scale", Elementwise, Tensor)
def _scale(base: Elementwise, scale: Tensor) -> Elementwise:
    """c (A o B) = (c A) o B."""
    return Elementwise(base.left * scale[..., None, None], base.right)
