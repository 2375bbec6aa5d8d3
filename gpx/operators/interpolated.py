"""Structured kernel interpolation: a grid's kernel matrix interpolated to scattered inputs."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import LinearOperator, to_linear_operator
from torch import Tensor

from gpx.errors import ConfigError, ShapeError
from gpx.operators.algebra import Index, combine, rule
from gpx.operators.arithmetic import dense
from gpx.operators.dense_factorisations import DENSE_ROWS
from gpx.operators.dense_matrix import DenseMatrix
from gpx.operators.indexing import common_batch
from gpx.operators.interpolation import Interpolation
from gpx.operators.structured import Structured, as_columns
from gpx.tensor_checks import check_alike

DIAGONAL_ENTRIES = 1 << 22
"""Entries of the grid's matrix looked up at a time to compute a diagonal."""


class Interpolated(Structured):
    """W_1 K W_2^T (SKI): K on a grid, interpolated to the inputs of rows and of columns.

    Args:
        left: W_1 (..., n1, m).
        base: K (..., m, m'), any operator or tensor; on a grid Toeplitz, BlockToeplitz, Kronecker.
        right: W_2 (..., n2, m'); left out, it is W_1 and the matrix is symmetric where K is.

    Cost: product O(n q + matmul of K) time, O(n q + m) memory; diagonal and single entries O(q^2)
    look-ups in K each. Rows and columns by index stay interpolated and cost nothing. Gradients to
    the tensors of K and to the weights (and from there to the inputs) in closed form. Solve and
    logdet: see ``Structured``. The diagonal is the interpolated one, not the kernel's.

    Source: Hultin thesis, section 3.2.
    """

    def __init__(
        self,
        left: Interpolation,
        base: LinearOperator | Tensor,
        right: Interpolation | None = None,
    ) -> None:
        base = to_linear_operator(base)
        super().__init__(*((left, base) if right is None else (left, base, right)))
        self.left, self.base, self.right = left, base, left if right is None else right
        self.symmetric = right is None
        shape = base.matrix_shape
        if (self.left.num_columns, self.right.num_columns) != tuple(shape):
            raise ShapeError(
                f"weights over {self.left.num_columns} and {self.right.num_columns} grid points do "
                f"not fit a grid matrix of shape {tuple(shape)}; the grids of weights and kernel "
                "must be the same"
            )
        check_alike("weights and grid matrix", self.left, base, self.right)

    # --- the contract of linear_operator -----------------------------------------------------

    def _size(self) -> torch.Size:
        left, right = self.left._size(), self.right._size()
        batch = common_batch(
            left[:-2], self.base.batch_shape, right[:-2], what="weights and grid matrix"
        )
        return torch.Size((*batch, left[-2], right[-2]))

    def _transpose_nonbatch(self) -> Interpolated:
        if self.symmetric:
            return Interpolated(self.left, self.base.mT)
        return Interpolated(self.right, self.base.mT, self.left)

    def _multiply(self, right: Tensor) -> Tensor:
        with torch.no_grad():
            return self.left._multiply(self.base._matmul(self.right._t_multiply(right)))

    def _t_multiply(self, right: Tensor) -> Tensor:
        with torch.no_grad():
            return self.right._multiply(self.base._t_matmul(self.left._t_multiply(right)))

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        """The grid's own derivative at W_1^T left and W_2^T right, and the weights'."""
        left, right = as_columns(left_vecs, right_vecs)
        on_left, on_right = self.left._t_multiply(left), self.right._t_multiply(right)
        none = (None, None)
        base: tuple[Any, ...] = (None,) * len(self.base.representation())
        if self.base.requires_grad:
            tensors = self.base.representation()
            base = tuple(
                None if g is None else g.sum_to_size(t.shape)  # a base may serve a whole batch
                for g, t in zip(
                    self.base._bilinear_derivative(on_left, on_right), tensors, strict=True
                )
            )
        from_left: tuple[Any, ...] = none
        from_right: tuple[Any, ...] = none
        if self.left.requires_grad:
            from_left = self.left._bilinear_derivative(left, self.base._matmul(on_right))
        if self.right.requires_grad:
            from_right = self.right._bilinear_derivative(right, self.base._t_matmul(on_left))
        if not self.symmetric:
            return (*from_left, *base, *from_right)
        if from_left[0] is None:
            return (*none, *base)
        return (from_left[0] + from_right[0], None, *base)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        def place(part: LinearOperator) -> tuple[Tensor, ...]:
            count = len(part.batch_shape)
            chosen = batch_indices[len(batch_indices) - count :]
            return tuple(
                torch.zeros_like(b) if size == 1 else b
                for b, size in zip(chosen, part.batch_shape, strict=True)
            )

        rows = (*place(self.left), row_index)
        columns = (*place(self.right), col_index)
        pairs = torch.broadcast_tensors(
            self.left.indices[rows].unsqueeze(-1),
            self.right.indices[columns].unsqueeze(-2),
            *(b.unsqueeze(-1).unsqueeze(-1) for b in place(self.base)),
        )
        inner = self.base._get_indices(*pairs)
        half = (inner * self.right.values[columns].unsqueeze(-2)).sum(-1)
        return (half * self.left.values[rows]).sum(-1)

    def _diagonal(self) -> Tensor:
        """Exact, by q^2 look-ups per entry, some entries at a time."""
        shape = self._size()
        batch, n = shape[:-2], min(shape[-2:])
        looked_up = self.left.values.shape[-1] * self.right.values.shape[-1]
        step = max(1, DIAGONAL_ENTRIES // (looked_up * max(batch.numel(), 1)))
        device = self.left.values.device
        index = [
            torch.arange(size, device=device).view(-1, *(1,) * (len(batch) - i))
            for i, size in enumerate(batch)
        ]
        parts = []
        for start in range(0, n, step):
            place = torch.arange(start, min(start + step, n), device=device)
            full = torch.broadcast_tensors(place, *index)
            parts.append(self._get_indices(full[0], full[0], *full[1:]))
        return torch.cat(parts, -1) if parts else self.left.values.new_zeros(*batch, 0)

    def zero_mean_mvn_samples(
        self, num_samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws (num_samples, ..., n) of N(0, W K W^T): W times draws of the grid's matrix.

        Raises:
            ShapeError: two different W. ConfigError: a K of another package, or a tensor, of more
                than ``DENSE_ROWS`` rows, whose root would be dense.
        """
        if not self.symmetric:
            raise ShapeError("samples need a symmetric matrix, W K W^T with one W")
        base = self.base
        if not isinstance(base, Structured):  # whose draws take no generator
            if base.shape[-1] > DENSE_ROWS:
                raise ConfigError(
                    f"samples of a {type(base).__name__} of {base.shape[-1]:,} rows would take a "
                    f"dense root (at most {DENSE_ROWS:,}); interpolate from one of gpx's operators"
                )
            base = DenseMatrix(dense(base))
        drawn = base.zero_mean_mvn_samples(num_samples, generator)
        return self.left.matmul(drawn.movedim(0, -1)).movedim(-1, 0)


@rule("scale", Interpolated, Tensor)
def _(operator: Interpolated, factor: Tensor) -> LinearOperator:
    """A multiple stays interpolated: the grid's matrix takes the factor."""
    left, _, *right = operator._args
    return Interpolated(left, operator.base._mul_constant(factor), *right)


@rule("select", Interpolated, Index)
def _(operator: Interpolated, index: Index) -> LinearOperator:
    """Rows and columns stay interpolated: only weights are picked."""
    left: Any = operator.left
    if operator.symmetric and index.rows is not None and index.rows is index.columns:
        kept: Any = combine("select", left, Index(index.rows, None))
        return Interpolated(kept, operator.base)
    right: Any = operator.right
    if index.rows is not None:
        left = combine("select", left, Index(index.rows, None))
    if index.columns is not None:
        right = combine("select", right, Index(index.columns, None))
    return Interpolated(left, operator.base, right)
