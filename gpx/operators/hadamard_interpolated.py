"""Interpolated kernel matrices in many dimensions: elementwise products of one per dimension."""

from __future__ import annotations

from functools import reduce

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.errors import ShapeError
from gpx.linalg.khatri_rao import khatri_rao_gram
from gpx.operators.algebra import Index, rule
from gpx.operators.structured import Structured, in_chunks
from gpx.tensor_checks import check_alike


class HadamardInterpolated(Structured):
    """(R_1 E_1^T) o ... o (R_d E_d^T), (..., n, n'), o elementwise: W K W'^T on a product grid.

    With E_l (n', m_l) the interpolation rows along axis l and R_l = W_l K_l (n, m_l) those of the
    other inputs times the axis' covariance, this is the matrix of structured kernel interpolation
    on the product of the axes, with every entry in O(sum_l m_l): linear in d where the grid has
    prod_l m_l points, and quadratic in n.

    Args:
        factors: R_1, ..., R_d, E_1, ..., E_d, tensors (..., n, m_l) and (..., n', m_l).
        memory_budget: bytes of the tile of entries that is formed at a time.

    Cost: product 2 n n' (sum_l m_l + c) operations, memory of one tile; nothing n x n' is kept,
    with gradients neither. Diagonal and entries O(sum_l m_l) each; rows and columns by index stay
    lazy.

    Raises:
        ShapeError, DTypeError: factors that do not pair, or differ in dtype or device.
    Source: Evans thesis, section 4.3.4.
    """

    def __init__(self, *factors: Tensor, memory_budget: int = DEFAULT_BUDGET) -> None:
        super().__init__(*factors, memory_budget=memory_budget)
        half = len(factors) // 2
        self.left, self.right = factors[:half], factors[half:]
        shapes = [tuple(f.shape) for f in factors]
        if half < 1 or len(factors) % 2 or any(f.ndim < 2 for f in factors):
            raise ShapeError(
                f"expected d factors (..., n, m_l) and as many (..., n', m_l), got {shapes}"
            )
        pairs = zip(self.left, self.right, strict=True)
        rows = {f.shape[-2] for f in self.left}, {f.shape[-2] for f in self.right}
        if any(a.shape[-1] != b.shape[-1] for a, b in pairs) or max(map(len, rows)) > 1:
            raise ShapeError(
                "factors must have equal numbers of columns pairwise and of rows on either side, "
                f"got {shapes}"
            )
        check_alike("the factors", *factors)
        self.memory_budget = memory_budget

    def _size(self) -> torch.Size:
        batch = torch.broadcast_shapes(*[f.shape[:-2] for f in self._args])
        return torch.Size((*batch, self.left[0].shape[-2], self.right[0].shape[-2]))

    def _transpose_nonbatch(self) -> HadamardInterpolated:
        return HadamardInterpolated(*self.right, *self.left, memory_budget=self.memory_budget)

    def _product(self, right: Tensor) -> Tensor:
        n, m = self.shape[-2:]
        batch = torch.broadcast_shapes(self.batch_shape, right.shape[:-2])
        row = 3 * max(batch.numel(), 1) * m * self.left[0].element_size()
        chunks = list(row_chunks(n, row, self.memory_budget))
        return torch.cat(in_chunks(self._tile, chunks, right), dim=-2)

    def _tile(self, rows: slice, right: Tensor) -> Tensor:
        return khatri_rao_gram([f[..., rows, :] for f in self.left], self.right) @ right

    def to_dense(self) -> Tensor:
        """The matrix itself: O(n n' sum_l m_l)."""
        dense = khatri_rao_gram(self.left, self.right)
        return dense.expand(self.shape)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        whole = self._broadcast_args()
        half = len(whole) // 2
        rows, columns = (*batch_indices, row_index), (*batch_indices, col_index)
        entries = [
            (a[rows] * b[columns]).sum(-1) for a, b in zip(whole[:half], whole[half:], strict=True)
        ]
        return reduce(torch.mul, entries)

    def _diagonal(self) -> Tensor:
        size = min(self.shape[-2:])
        pairs = zip(self.left, self.right, strict=True)
        entries = [(a[..., :size, :] * b[..., :size, :]).sum(-1) for a, b in pairs]
        return reduce(torch.mul, entries).expand(*self.batch_shape, size)


@rule("select", HadamardInterpolated, Index)
def _select(base: HadamardInterpolated, index: Index) -> LinearOperator:
    """Rows and columns slice the factors of their side."""
    left = base.left if index.rows is None else [f[..., index.rows, :] for f in base.left]
    right = base.right if index.columns is None else [f[..., index.columns, :] for f in base.right]
    return HadamardInterpolated(*left, *right, memory_budget=base.memory_budget)
