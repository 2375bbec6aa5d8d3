"""Rows and columns of another operator, chosen by index or mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.errors import ShapeError
from gpx.operators.algebra import Index, combined, rule
from gpx.operators.indexing import positions
from gpx.operators.structured import Structured, as_columns

FEW_ENTRIES = 16
"""Blocks of at most this many entries are looked up entry by entry instead of multiplied out."""


class Selection(Structured):
    """W A V^T, (..., N', M'): row i is row rows[i] of A, column j is column columns[j] of A.

    Build it with ``select``, which also takes masks and keeps more structure where possible (a
    selection of a selection is one selection). Repeated indices are allowed.

    Cost: one product of A and O((N + M) c) to scatter and gather; entries, diagonal as A's entries.
    Where A has a ``workspace`` the product runs in its buffers; columns must then be distinct.
    Solves and log-determinants have no closed form in general: see ``Structured``.

    Args:
        base (..., N, M): any operator.
        rows, columns: int64 vectors of non-negative positions; None for all. Not batched.
    """

    def __init__(
        self, base: LinearOperator, *, rows: Tensor | None = None, columns: Tensor | None = None
    ) -> None:
        super().__init__(base, rows=rows, columns=columns)
        for name, index in (("rows", rows), ("columns", columns)):
            if index is not None and (index.ndim != 1 or index.dtype != torch.long):
                raise ShapeError(
                    f"{name} of a selection must be an int64 vector, got {index.dtype} of shape "
                    f"{tuple(index.shape)}; for a mask use gpx.operators.select"
                )
        self.base, self.rows, self.columns = base, rows, columns
        self.workspace = getattr(base, "workspace", None)

    def _size(self) -> torch.Size:
        shape = self.base.shape
        n = shape[-2] if self.rows is None else self.rows.shape[0]
        m = shape[-1] if self.columns is None else self.columns.shape[0]
        return torch.Size((*shape[:-2], n, m))

    def _transpose_nonbatch(self) -> Selection:
        return Selection(self.base.mT, rows=self.columns, columns=self.rows)

    def _product(self, right: Tensor) -> Tensor:
        if self.workspace is not None and right.ndim == 2:
            return self.unchecked_product()(right)
        if self.columns is not None:
            shape = (*right.shape[:-2], self.base.shape[-1], right.shape[-1])
            right = right.new_zeros(shape).index_add(-2, self.columns, right)
        out = self.base.matmul(right)
        return out if self.rows is None else out.index_select(-2, self.rows)

    def unchecked_product(self) -> Callable[[Tensor], Tensor]:
        """As in ``Structured``; in the base's ``workspace`` where it has one."""
        if self.workspace is None:
            return super().unchecked_product()
        workspace, rows, columns = self.workspace, self.rows, self.columns
        product = self.base._rows_plan()

        def selected(vectors: Tensor) -> Tensor:
            block = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
            entered = block.mT if columns is None else workspace.scatter(columns, block)
            out = product(entered)
            out = out.clone() if rows is None else out.index_select(1, rows)
            return out.squeeze(0) if vectors.ndim == 1 else out.mT

        return selected

    def to_dense(self) -> Tensor:
        """The chosen block; a few entries are looked up instead of multiplied out."""
        n, m = self.shape[-2:]
        if self.batch_shape or n * m > FEW_ENTRIES:
            return super().to_dense()
        rows = torch.arange(n, device=self.device)[:, None].expand(n, m)
        columns = torch.arange(m, device=self.device).expand(n, m)
        return self._get_indices(rows.reshape(-1), columns.reshape(-1)).reshape(n, m)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows = row_index if self.rows is None else self.rows[row_index]
        columns = col_index if self.columns is None else self.columns[col_index]
        found = self.base._get_indices(rows, columns, *batch_indices)
        assert isinstance(found, Tensor)
        return found

    def _diagonal(self) -> Tensor:
        if self.rows is not None and self.rows is self.columns:
            return self.base.diagonal().index_select(-1, self.rows)
        where = torch.arange(min(self.shape[-2:]), device=self.device)
        if not self.batch_shape:
            return self._get_indices(where, where)
        return self.to_dense().diagonal(dim1=-2, dim2=-1)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        """The base's own derivative at scattered vectors; indices have none."""
        left_vecs, right_vecs = as_columns(left_vecs, right_vecs)
        left, right = (
            v
            if index is None
            else v.new_zeros(*v.shape[:-2], size, v.shape[-1]).index_add(-2, index, v)
            for v, index, size in (
                (left_vecs, self.rows, self.base.shape[-2]),
                (right_vecs, self.columns, self.base.shape[-1]),
            )
        )
        indices = sum(i is not None for i in (self.rows, self.columns))
        return (*self.base._bilinear_derivative(left, right), *(None,) * indices)


def select(
    base: LinearOperator, rows: Tensor | None = None, columns: Tensor | None = None
) -> LinearOperator:
    """The chosen rows and columns of an operator, with the structure that they keep.

    For users of the package: models index operators.

    Args:
        base (..., N, M): any operator.
        rows (N,) bool or (n,) int64: a mask, or positions (negative ones count from the end); None
            keeps all.
        columns: likewise for columns.

    Raises:
        ShapeError: a mask of the wrong length, or a position out of range.

    Cost: O(n) and one host synchronisation per index (masks, and the check of the range).
    """
    index = Index(
        _positions(rows, base.shape[-2], "rows"), _positions(columns, base.shape[-1], "columns")
    )
    if index.rows is None and index.columns is None:
        return base
    if rows is columns and base.shape[-1] == base.shape[-2]:
        index = Index(index.rows, index.rows)
    return combined("select", base, index)


def _positions(index: Tensor | None, size: int, name: str) -> Tensor | None:
    if index is None:
        return None
    if index.dtype != torch.bool and (index.ndim != 1 or index.is_floating_point()):
        raise ShapeError(
            f"{name} must be a mask ({size},) or integer positions, got {index.dtype} of shape "
            f"{tuple(index.shape)}"
        )
    return positions(index, size, name)


@rule("select", LinearOperator, Index)
def _select(base: LinearOperator, index: Index) -> Selection:
    return Selection(base, rows=index.rows, columns=index.columns)


@rule("select", Selection, Index)
def _collapse(base: Selection, index: Index) -> LinearOperator:
    """A selection of a selection selects once."""

    def compose(chosen: Tensor | None, again: Tensor | None) -> Tensor | None:
        if chosen is None or again is None:
            return again if chosen is None else chosen
        return chosen[again]

    rows = compose(base.rows, index.rows)
    if base.rows is base.columns and index.rows is index.columns:
        return Selection(base.base, rows=rows, columns=rows)
    return Selection(base.base, rows=rows, columns=compose(base.columns, index.columns))


@rule("scale", Selection, Tensor)
def _scale(base: Selection, scale: Tensor) -> Selection:
    """c (W A V^T) = W (c A) V^T, where the base may keep its structure."""
    scaled = base.base * scale[..., None, None]
    return Selection(scaled, rows=base.rows, columns=base.columns)
