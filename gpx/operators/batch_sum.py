"""The sum of the members of a batch of operators."""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.errors import ShapeError
from gpx.operators.algebra import Index, combine, rule
from gpx.operators.structured import Structured


class BatchSum(Structured):
    """sum_k A_k over the last batch dimension of A (..., K, n, m): what ``sum`` over a batch gives.

    Cost: the batch's for products, diagonal and entries; all members at once. Rows, columns and
    multiples are those of the members. Solve and logdet: see ``Structured``.

    Raises:
        ShapeError: no batch dimension.
    """

    def __init__(self, base: LinearOperator) -> None:
        super().__init__(base)
        if len(base.shape) < 3:
            raise ShapeError(f"a sum over members needs a batch, got shape {tuple(base.shape)}")
        self.base = base

    def _dims(self) -> tuple[int, ...]:
        return (3,)

    def _size(self) -> torch.Size:
        *batch, _, rows, columns = self.base.shape
        return torch.Size((*batch, rows, columns))

    def _transpose_nonbatch(self) -> BatchSum:
        return BatchSum(self.base.mT)

    def _product(self, right: Tensor) -> Tensor:
        found: Tensor = self.base.matmul(right.unsqueeze(-3))
        return found.sum(-3)

    def _diagonal(self) -> Tensor:
        found = self.base._diagonal()
        return found.expand(*self.base.shape[:-2], found.shape[-1]).sum(-2)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, columns, *batch = torch.broadcast_tensors(row_index, col_index, *batch_indices)
        size = self.base.shape[-3]
        member = torch.arange(size, device=rows.device).view(-1, *(1,) * rows.ndim)
        every = torch.broadcast_tensors(*(i.unsqueeze(0) for i in (rows, columns, *batch)), member)
        found: Tensor = self.base._get_indices(*every)
        return found.sum(0)

    def to_dense(self) -> Tensor:
        """The matrix itself: the sum of the dense members."""
        dense: Tensor = self.base.to_dense()
        return dense.sum(-3)


@rule("select", BatchSum, Index)
def _select(base: BatchSum, index: Index) -> BatchSum:
    """Rows and columns of every member."""
    found = combine("select", base.base, index)
    assert found is not None
    return BatchSum(found)


@rule("scale", BatchSum, Tensor)
def _scale(base: BatchSum, scale: Tensor) -> BatchSum:
    return BatchSum(base.base * scale[..., None, None, None])


@rule("sum", Structured, int)
def _sum(base: Structured, dim: int) -> BatchSum:
    """Over a batch dimension, which is moved behind the others first."""
    batch = [at for at in range(len(base.batch_shape)) if at != dim]
    last = len(base.batch_shape)
    return BatchSum(base.permute(*batch, dim, last, last + 1))
