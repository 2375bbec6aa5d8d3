"""A matrix held as a tensor, as an operator."""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

from gpx.operators.algebra import Index, rule
from gpx.operators.structured import Structured


class DenseMatrix(Structured):
    """A matrix (..., N, M) held as a tensor: the result of operations that keep no structure.

    These are appended rows, elementwise products, and sums and products over a batch dimension, of
    operands of at most ``DENSE_ROWS`` rows. Costs are those of dense algebra.
    """

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(matrix)
        self.matrix = matrix

    def _size(self) -> torch.Size:
        return self.matrix.shape

    def _transpose_nonbatch(self) -> DenseMatrix:
        return DenseMatrix(self.matrix.mT)

    def _product(self, right: Tensor) -> Tensor:
        return self.matrix @ right

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        where = (*batch_indices, row_index, col_index)
        return self.matrix[where]

    def to_dense(self) -> Tensor:
        """The tensor itself."""
        return self.matrix

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """As in ``DenseFactorisations``, and kept."""
        return super().root_decomposition(method)

    @cached(name="root_inv_decomposition")
    def root_inv_decomposition(
        self,
        initial_vectors: Tensor | None = None,
        test_vectors: Tensor | None = None,
        method: str | None = None,
    ) -> LinearOperator:
        """As in ``DenseFactorisations``, and kept."""
        return super().root_inv_decomposition(initial_vectors, test_vectors, method)


@rule("dense", Structured, Tensor)
def _dense(like: Structured, matrix: Tensor) -> DenseMatrix:
    return DenseMatrix(matrix)


@rule("select", DenseMatrix, Index)
def _select(base: DenseMatrix, index: Index) -> DenseMatrix:
    chosen = base.matrix if index.rows is None else base.matrix[..., index.rows, :]
    return DenseMatrix(chosen if index.columns is None else chosen[..., index.columns])
