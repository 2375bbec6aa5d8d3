"""A symmetric operator with a few rows and columns appended."""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from linear_operator.operators import RootLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

from gpx.errors import DTypeError, ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.operators.algebra import Border, rule
from gpx.operators.indexing import common_batch
from gpx.operators.structured import Structured
from gpx.operators.symmetry import require_symmetric


class Bordered(Structured):
    """[A B^T; B D], (..., n + k, n + k), for a symmetric positive definite A that can solve.

    What ``cat_rows`` gives: a covariance matrix with k new points, as in GPyTorch's fantasies.

    Cost: product A's and 4 n k c operations. Solve, logdet and roots by the Schur complement
    S = D - B A^{-1} B^T: one solve of A with k more columns, n k^2 and k^3 / 3 operations; roots
    also hold A's root as a dense matrix (at most ``DENSE_ROWS`` rows). Roots are kept, in the
    package's own store, where GPyTorch looks for them.

    Args:
        base (..., n, n): A, symmetric.
        cross (..., k, n): B. corner (..., k, k): D, symmetric.

    Raises:
        ShapeError, DTypeError: blocks that do not fit.
        NotPositiveDefinite: at a solve, logdet or root, S is not positive definite.
    Source: Jiang et al. 2020 (roots of fantasies), with the root F = B A^{-1} L of any L L^T = A.
    """

    def __init__(self, base: LinearOperator, cross: Tensor, corner: Tensor) -> None:
        super().__init__(base, cross, corner)
        n, k = base.shape[-1], corner.shape[-1] if corner.ndim else 0
        fits = cross.ndim >= 2 and corner.ndim >= 2 and cross.shape[-2:] == (k, n)
        if not fits or corner.shape[-2] != k or base.shape[-2] != n:
            raise ShapeError(
                f"{tuple(cross.shape)} and {tuple(corner.shape)} cannot be appended to an operator "
                f"of shape {tuple(base.shape)}; expected (..., k, {n}) and (..., k, k)"
            )
        if {(t.dtype, t.device) for t in (cross, corner)} != {(base.dtype, base.device)}:
            raise DTypeError(
                f"rows and corner are {cross.dtype} and {corner.dtype} on {cross.device} and "
                f"{corner.device}, the operator {base.dtype} on {base.device}; convert them to one"
            )
        self.base, self.cross, self.corner = base, cross, corner

    def _size(self) -> torch.Size:
        shapes = [t.shape[:-2] for t in (self.base, self.cross, self.corner)]
        size = self.base.shape[-1] + self.corner.shape[-1]
        return torch.Size((*common_batch(*shapes, what="an operator and its border"), size, size))

    def _transpose_nonbatch(self) -> Bordered:
        return Bordered(self.base.mT, self.cross, self.corner.mT)

    def _parts(self, right: Tensor) -> tuple[Tensor, Tensor]:
        n = self.base.shape[-1]
        return right[..., :n, :], right[..., n:, :]

    def _product(self, right: Tensor) -> Tensor:
        old, new = self._parts(right)
        top = self.base.matmul(old) + self.cross.mT @ new
        return _stack(top, self.cross @ old + self.corner @ new)

    def _diagonal(self) -> Tensor:
        parts = (self.base.diagonal(), self.corner.diagonal(dim1=-2, dim2=-1))
        return torch.cat([p.expand(*self.batch_shape, p.shape[-1]) for p in parts], -1)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        base, cross, corner = self._broadcast_args()
        n, k = self.base.shape[-1], self.corner.shape[-1]
        (old_row, new_row), (old_col, new_col) = (
            (i.clamp(max=n - 1), (i - n).clamp(min=0, max=k - 1)) for i in (row_index, col_index)
        )
        found = base._get_indices(old_row, old_col, *batch_indices)
        if k == 0:
            return found
        below, right = row_index >= n, col_index >= n
        where = (*batch_indices, new_row, old_col)
        found = torch.where(below & ~right, cross[where], found)
        where = (*batch_indices, new_col, old_row)
        found = torch.where(~below & right, cross[where], found)
        where = (*batch_indices, new_row, new_col)
        return torch.where(below & right, corner[where], found)

    # --- the Schur complement --------------------------------------------------------------------

    def _eliminated(self, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A^{-1} B^T, A^{-1} right and the Cholesky factor of S; one solve of A for both."""
        k = self.corner.shape[-1]
        if k == 0:
            raise ShapeError(f"{self._name()} has no appended rows; use the operator itself")
        batch = torch.broadcast_shapes(self.batch_shape, right.shape[:-2])
        both = torch.cat([t.expand(*batch, *t.shape[-2:]) for t in (self.cross.mT, right)], dim=-1)
        solved = self.base.solve(both)
        weights = solved[..., :k]
        schur = self.corner - self.cross @ weights
        name = f"the Schur complement of the {k} rows appended to {type(self.base).__name__}"
        lower, _ = cholesky(schur, name=name, ladder=(0.0,))
        return weights, solved[..., k:], lower

    def _solution(self, right: Tensor) -> Tensor:
        old, new = self._parts(right)
        weights, solved, lower = self._eliminated(old)
        second = torch.cholesky_solve(new - self.cross @ solved, lower)
        return _stack(solved - weights @ second, second)

    def _inverse_product(self, right: Tensor) -> Tensor:
        return self._solution(right)

    def _nothing_to_solve(self) -> Tensor:
        shape = (*self.batch_shape, self.base.shape[-1], 0)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _logdet(self) -> Tensor:
        *_, lower = self._eliminated(self._nothing_to_solve())
        return self.base.logdet() + 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """[L 0; B A^{-1} L, G] with L the root of A and G G^T = S."""
        if method is not None:
            return super().root_decomposition(method=method)
        self._dense_size("root_decomposition")
        weights, _, lower = self._eliminated(self._nothing_to_solve())
        root = self.base.root_decomposition().root.to_dense()
        return RootLinearOperator(_blocks(root, None, weights.mT @ root, lower))

    @cached(name="root_inv_decomposition")
    def root_inv_decomposition(
        self,
        initial_vectors: Tensor | None = None,
        test_vectors: Tensor | None = None,
        method: str | None = None,
    ) -> LinearOperator:
        """[R, -A^{-1} B^T G^{-T}; 0, G^{-T}] with R R^T = A^{-1} and G G^T = S."""
        if method is not None:
            return super().root_inv_decomposition(initial_vectors, test_vectors, method)
        self._dense_size("root_inv_decomposition")
        weights, _, lower = self._eliminated(self._nothing_to_solve())
        eye = torch.eye(lower.shape[-1], dtype=self.dtype, device=self.device)
        inner = torch.linalg.solve_triangular(lower, eye, upper=False).mT
        root = self.base.root_inv_decomposition().root.to_dense()
        return RootLinearOperator(_blocks(root, -weights @ inner, None, inner))


def _stack(top: Tensor, bottom: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(top.shape[:-2], bottom.shape[:-2])
    return torch.cat([t.expand(*batch, *t.shape[-2:]) for t in (top, bottom)], dim=-2)


def _blocks(first: Tensor, above: Tensor | None, below: Tensor | None, last: Tensor) -> Tensor:
    """[first above; below last], zeros for None; batches broadcast."""
    given = [t for t in (first, above, below, last) if t is not None]
    batch = torch.broadcast_shapes(*[t.shape[:-2] for t in given])
    above = first.new_zeros(first.shape[-2], last.shape[-1]) if above is None else above
    below = first.new_zeros(last.shape[-2], first.shape[-1]) if below is None else below
    rows = [
        torch.cat([t.expand(*batch, *t.shape[-2:]) for t in row], dim=-1)
        for row in ((first, above), (below, last))
    ]
    return torch.cat(rows, dim=-2)


@rule("border", LinearOperator, Border)
def _border(base: LinearOperator, border: Border) -> Bordered:
    found = Bordered(base, border.cross, border.corner)
    if border.corner.numel():
        require_symmetric(found, "cat_rows")
    return found
