"""Khatri-Rao products: rows (or columns) that are Kronecker products of factor rows."""

from __future__ import annotations

import math
from functools import reduce

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.errors import ShapeError
from gpx.linalg.kronecker import kronecker_vector, split_index
from gpx.operators.algebra import Index, rule
from gpx.operators.dense_matrix import DenseMatrix
from gpx.operators.indexing import common_batch
from gpx.operators.structured import Structured, in_chunks
from gpx.tensor_checks import check_alike

MAX_COLUMNS = 2**63 - 1
"""Largest number of columns that a tensor's shape can hold."""


class KhatriRao(Structured):
    """R_1 * ... * R_d, (..., n, m) with m = prod_l m_l: row r is R_1[r] x ... x R_d[r].

    With ``columnwise=True`` the transpose, (..., m, n): column r is that Kronecker product. The
    factors are tensors (..., n, m_l) either way.

    Cost: product with (m, c) and transposed product with (n, c): 2 n m c operations, most of them
    in one matrix product with the row-wise products of the first factors, whose memory is about
    n sqrt(m) c, in chunks of rows under ``memory_budget``. A row m; a column O(d n); an
    entry O(d). Columns of products of any size: ``gpx.linalg.khatri_rao_columns``.

    Raises:
        ShapeError, DTypeError: no factor, factors of different n, dtype or device.
    Source: Evans thesis, theorem 4.2 and section 4.3.2 (Evans and Nair 2018).
    """

    def __init__(
        self, *factors: Tensor, columnwise: bool = False, memory_budget: int = DEFAULT_BUDGET
    ) -> None:
        super().__init__(*factors, columnwise=columnwise, memory_budget=memory_budget)
        if not factors or any(f.ndim < 2 for f in factors):
            raise ShapeError(
                "a Khatri-Rao product needs at least one factor (..., n, m_l), got "
                f"{[tuple(f.shape) for f in factors]}"
            )
        if len({f.shape[-2] for f in factors}) > 1:
            raise ShapeError(
                "the factors of a row-partitioned Khatri-Rao product need equal numbers of rows, "
                f"got {[tuple(f.shape) for f in factors]}"
            )
        check_alike("the factors of a Khatri-Rao product", *factors)
        self.factors, self.columnwise = factors, columnwise
        self.memory_budget = memory_budget

    @property
    def grid_size(self) -> int:
        """m = prod_l m_l as a Python integer, of any size."""
        return math.prod(f.shape[-1] for f in self.factors)

    def _size(self) -> torch.Size:
        n, m = self.factors[0].shape[-2], self.grid_size
        if m > MAX_COLUMNS:
            raise ShapeError(
                f"a Khatri-Rao product of {len(self.factors)} factors has about "
                f"10^{len(str(m)) - 1} columns, more than a shape can hold; take "
                "some of them by gpx.linalg.khatri_rao_columns"
            )
        batch = common_batch(*[f.shape[:-2] for f in self.factors], what="the Khatri-Rao factors")
        return torch.Size((*batch, m, n) if self.columnwise else (*batch, n, m))

    def _transpose_nonbatch(self) -> KhatriRao:
        return self._with(self.factors, not self.columnwise)

    def _with(self, factors: tuple[Tensor, ...] | list[Tensor], columnwise: bool) -> KhatriRao:
        return KhatriRao(*factors, columnwise=columnwise, memory_budget=self.memory_budget)

    # --- products --------------------------------------------------------------------------------

    def _halves(self, rows: slice, like: Tensor) -> tuple[Tensor, Tensor]:
        """Row-wise products of the first and of the last factors, of about equal width."""
        parts = [f[..., rows, :] for f in self.factors]
        at = self._cut()
        ones = like.new_ones(parts[0].shape[-2], 1)
        left = kronecker_vector(parts[:at]) if at else ones
        return left, kronecker_vector(parts[at:])

    def _cut(self) -> int:
        sizes = [f.shape[-1] for f in self.factors]
        widths = [max(math.prod(sizes[:i]), math.prod(sizes[i:])) for i in range(len(sizes))]
        return widths.index(min(widths))

    def _chunks(self, columns: int, batch: torch.Size) -> list[slice]:
        at, sizes = self._cut(), [f.shape[-1] for f in self.factors]
        width = math.prod(sizes[:at]) + 2 * columns * math.prod(sizes[at:])
        row = max(batch.numel(), 1) * width * self.factors[0].element_size()
        return list(row_chunks(self.factors[0].shape[-2], row, self.memory_budget))

    def _product(self, right: Tensor) -> Tensor:
        batch = torch.broadcast_shapes(self.batch_shape, right.shape[:-2])
        step = self._scatter if self.columnwise else self._gather
        parts = in_chunks(step, self._chunks(right.shape[-1], batch), right)
        return reduce(torch.add, parts) if self.columnwise else torch.cat(parts, dim=-2)

    def _gather(self, rows: slice, right: Tensor) -> Tensor:
        """The large product with the first factors, then the others one by one, row by row."""
        parts = [f[..., rows, :] for f in self.factors]
        at, c = max(self._cut(), 1), right.shape[-1]
        width = math.prod(f.shape[-1] for f in parts[at:])
        grid = right.reshape(*right.shape[:-2], right.shape[-2] // max(width, 1), width * c)
        partial = torch.matmul(kronecker_vector(parts[:at]), grid)
        for f in parts[at:]:
            rest = partial.shape[-1] // max(f.shape[-1], 1)
            partial = partial.reshape(*partial.shape[:-1], f.shape[-1], rest)
            partial = torch.matmul(f.unsqueeze(-2), partial).squeeze(-2)
        return partial

    def _scatter(self, rows: slice, right: Tensor) -> Tensor:
        """sum_r P[r, a] (S[r, b] u[r, c]), as one product over the rows."""
        first, last = self._halves(rows, right)
        weighted = (last.unsqueeze(-1) * right[..., rows, :].unsqueeze(-2)).flatten(-2)
        out = torch.matmul(first.mT, weighted)
        width = first.shape[-1] * last.shape[-1]
        return out.reshape(*out.shape[:-2], width, right.shape[-1])

    # --- entries, rows, columns ------------------------------------------------------------------

    def to_dense(self) -> Tensor:
        """The product itself: O(n m)."""
        dense = kronecker_vector(self.factors)
        return dense.mT if self.columnwise else dense

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, columns = (col_index, row_index) if self.columnwise else (row_index, col_index)
        parts = split_index(columns, [f.shape[-1] for f in self.factors])
        factors = zip(self._broadcast_args(), parts, strict=True)
        where = [(f, (*batch_indices, rows, j)) for f, j in factors]
        return reduce(torch.mul, [f[at] for f, at in where])

    def _diagonal(self) -> Tensor:
        where = torch.arange(min(self.shape[-2:]), device=self.device)
        parts = split_index(where, [f.shape[-1] for f in self.factors])
        rows = where.shape[0]
        entries = [
            f[..., :rows, :].gather(-1, j[:, None].expand(*f.shape[:-2], rows, 1)).squeeze(-1)
            for f, j in zip(self.factors, parts, strict=True)
        ]
        return reduce(torch.mul, entries)


@rule("select", KhatriRao, Index)
def _select(base: KhatriRao, index: Index) -> LinearOperator:
    """Rows of a row-partitioned product are Khatri-Rao; columns are dense, O(d n) each."""
    rows, columns = (index.columns, index.rows) if base.columnwise else index
    factors = base.factors if rows is None else tuple(f[..., rows, :] for f in base.factors)
    if columns is None:
        return base._with(factors, base.columnwise)
    parts = split_index(columns, [f.shape[-1] for f in factors])
    entries = [f.index_select(-1, j) for f, j in zip(factors, parts, strict=True)]
    dense = reduce(torch.mul, entries)
    return DenseMatrix(dense.mT if base.columnwise else dense)


@rule("scale", KhatriRao, Tensor)
def _scale(base: KhatriRao, scale: Tensor) -> KhatriRao:
    smallest = min(range(len(base.factors)), key=lambda i: base.factors[i].shape[-1])
    factors = list(base.factors)
    factors[smallest] = factors[smallest] * scale[..., None, None]
    return base._with(factors, base.columnwise)
