"""A low-rank matrix plus a diagonal: Woodbury's identity, with gradients in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import DiagLinearOperator, RootLinearOperator
from torch import Tensor

from gpx.backends import row_chunks
from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.known_gradient import first_derivative_only
from gpx.linalg.preconditioners import Capacitance
from gpx.linalg.prepared import Prepared
from gpx.linalg.triangular import lower_of_product
from gpx.operators.algebra import rule
from gpx.operators.indexing import common_batch
from gpx.operators.kronecker_plus_diagonal import diagonal_values
from gpx.operators.structured import Structured, as_columns
from gpx.tensor_checks import check_alike

CHUNK_BYTES = 1 << 28
"""Bytes of scaled rows held at once while the capacitance matrix is summed."""


def _capacitance(factor: Tensor, diagonal: Tensor) -> tuple[Capacitance, Tensor]:
    """I + A A^T of A = (D^{-1/2} Phi)^T, and log|Phi Phi^T + D| (...) in float64.

    Summed over rows in chunks, in float64 across chunks; diagonal (..., n) or (..., 1).
    """
    n, k = factor.shape[-2:]
    _check_diagonal(diagonal, n)
    batch = torch.broadcast_shapes(factor.shape[:-2], diagonal.shape[:-1])
    gram = torch.zeros(*batch, k, k, dtype=torch.float64, device=factor.device)
    constant = diagonal.shape[-1] == 1
    scale = diagonal.rsqrt().unsqueeze(-1)
    for rows in _chunks(factor):
        part = factor[..., rows, :]
        part = part if constant else part * scale[..., rows, :]
        # only the lower triangle is read by the factorisation
        part = lower_of_product(part.mT, part.mT) if part.ndim == 2 else part.mT @ part
        gram += part
    if constant:
        gram /= diagonal.double().unsqueeze(-1)
    found = Capacitance(
        gram,
        name=f"I + Phi^T D^-1 Phi of {k} columns",
        hint="check Phi for very large entries relative to the noise",
    )
    logs = diagonal.double().log()
    return found, found.logdet() + (n * logs.squeeze(-1) if constant else logs.sum(-1))


def _check_diagonal(diagonal: Tensor, rows: int, *, zero: bool = False) -> None:
    least = diagonal >= 0 if zero else diagonal > 0
    if not bool((least & diagonal.isfinite()).all()):
        low, high = float(diagonal.min()), float(diagonal.max())
        raise NotPositiveDefinite(
            f"the diagonal of a low-rank-plus-diagonal matrix of {rows} rows has entries from "
            f"{low:.2e} to {high:.2e}; expected positive, finite. Raise the noise variance."
        )


def _chunks(factor: Tensor) -> Iterator[slice]:
    row = factor.shape[-1] * factor.element_size() * max(factor.shape[:-2].numel(), 1)
    return row_chunks(factor.shape[-2], row, CHUNK_BYTES)


class LowRankPlusDiagonal(Structured):
    """Phi Phi^T + D, (..., n, n), with Phi (..., n, k) and D = s I or any positive diagonal.

    Woodbury: A^{-1} b = D^{-1} (b - Phi C^{-1} Phi^T D^{-1} b) with C = I + Phi^T D^{-1} Phi, and
    log|A| = log|C| + log|D|. The Cholesky factor of C is computed at the first use, summed and
    factorised in float64, and kept until a tensor changes. Gradients are closed forms.

    Cost: product 4 n k c operations; first solve or logdet about 5/8 of 2 n k^2, and k^3 / 3; then
    4 n k c per solve and nothing per logdet; gradient of a solve one more solve, of a logdet
    2 n k^2; diagonal O(n k); a row O(n k); samples and root O(n k). Memory k^2 beside Phi, and one
    Phi for its gradient.

    Args:
        factor (..., n, k): Phi.
        diagonal (..., 1) or (..., n): positive.

    Raises:
        ShapeError, DTypeError: the diagonal does not fit the factor.
        NotPositiveDefinite: at the first solve or logdet, or at a root or sample, a diagonal that
            is not positive (a root and samples allow zeros).
    Source: Burt thesis, section 2.3 (Woodbury's identity, matrix determinant lemma).
    """

    def __init__(self, factor: Tensor, diagonal: Tensor) -> None:
        diagonal = diagonal.reshape(1) if diagonal.ndim == 0 else diagonal
        super().__init__(factor, diagonal)
        if factor.ndim < 2 or diagonal.shape[-1] not in (1, factor.shape[-2]):
            raise ShapeError(
                f"the factor is {tuple(factor.shape)} and the diagonal {tuple(diagonal.shape)}; "
                "expected (..., n, k) with (..., 1) or (..., n)"
            )
        check_alike("a factor and a diagonal", factor, diagonal)
        self.factor, self.diagonal_values = factor, diagonal
        self._kept = Prepared()

    def _dims(self) -> tuple[int, ...]:
        return (2, 1)

    def _size(self) -> torch.Size:
        n = self.factor.shape[-2]
        shapes = (self.factor.shape[:-2], self.diagonal_values.shape[:-1])
        return torch.Size((*common_batch(*shapes, what="a factor and a diagonal"), n, n))

    def _transpose_nonbatch(self) -> LowRankPlusDiagonal:
        return self  # symmetric for every value of its tensors

    def _product(self, right: Tensor) -> Tensor:
        low = self.factor @ (self.factor.mT @ right)
        return low + self.diagonal_values.unsqueeze(-1) * right

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        """Of sum_c u_c^T A v_c: u (v^T Phi) + v (u^T Phi), and u o v summed over columns."""
        left, right = as_columns(left_vecs, right_vecs)
        by_factor = by_diagonal = None
        if self.factor.requires_grad:
            by_factor = left @ (right.mT @ self.factor) + right @ (left.mT @ self.factor)
            by_factor = by_factor.sum_to_size(self.factor.shape)
        if self.diagonal_values.requires_grad:
            by_diagonal = (left * right).sum(-1).sum_to_size(self.diagonal_values.shape)
        return by_factor, by_diagonal

    def _diagonal(self) -> Tensor:
        return self.factor.square().sum(-1) + self.diagonal_values

    def to_dense(self) -> Tensor:
        """The matrix itself: O(n^2 k)."""
        diagonal = torch.diag_embed(self.diagonal_values.expand(self.shape[:-1]))
        return self.factor @ self.factor.mT + diagonal

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        factor, diagonal = self._broadcast_args()
        left, right = (*batch_indices, row_index), (*batch_indices, col_index)
        found = factor[left] * factor[right]
        at = row_index if diagonal.shape[-1] != 1 else torch.zeros_like(row_index)
        where = (*batch_indices, at)
        noise = torch.where(row_index == col_index, diagonal[where], 0.0)
        return found.sum(-1) + noise

    def capacitance(self) -> tuple[Capacitance, Tensor]:
        """C with its factor, and log|A| (...); kept."""
        with torch.no_grad():
            return self._kept.get(
                "capacitance",
                (self.factor, self.diagonal_values),
                lambda: _capacitance(self.factor, self.diagonal_values),
            )

    def _inverse_product(self, right: Tensor) -> Tensor:
        diagonal = self.diagonal_values.unsqueeze(-1)
        scaled = right / diagonal
        inner = self.capacitance()[0].solve(self.factor.mT @ scaled)
        return scaled - (self.factor @ inner) / diagonal

    def _logdet(self) -> Tensor:
        out = _LowRankLogDet.apply(self, self.factor, self.diagonal_values)
        assert isinstance(out, Tensor)
        return out

    def _root(self) -> LinearOperator:
        """[Phi, D^{1/2}], (..., n, k + n): no factorisation, differentiable everywhere."""
        _check_diagonal(self.diagonal_values, self.shape[-1], zero=True)
        return _Root(self.factor, self.diagonal_values)


class _Root(Structured):
    """[Phi, D^{1/2}], (..., n, k + n)."""

    def __init__(self, factor: Tensor, diagonal: Tensor, transposed: bool = False) -> None:
        super().__init__(factor, diagonal, transposed=transposed)
        self.factor, self.diagonal_values, self.transposed = factor, diagonal, transposed

    def _dims(self) -> tuple[int, ...]:
        return (2, 1)

    def _size(self) -> torch.Size:
        n, k = self.factor.shape[-2:]
        batch = torch.broadcast_shapes(self.factor.shape[:-2], self.diagonal_values.shape[:-1])
        return torch.Size((*batch, k + n, n) if self.transposed else (*batch, n, k + n))

    def _transpose_nonbatch(self) -> _Root:
        return _Root(self.factor, self.diagonal_values, not self.transposed)

    def _product(self, right: Tensor) -> Tensor:
        scale = self.diagonal_values.sqrt().unsqueeze(-1)
        if self.transposed:
            parts = [self.factor.mT @ right, scale * right]
            batch = torch.broadcast_shapes(*[p.shape[:-2] for p in parts])
            return torch.cat([p.expand(*batch, *p.shape[-2:]) for p in parts], dim=-2)
        k = self.factor.shape[-1]
        return self.factor @ right[..., :k, :] + scale * right[..., k:, :]


class _LowRankLogDet(torch.autograd.Function):
    """log|A|, with d/dPhi = 2 A^{-1} Phi = 2 D^{-1} Phi C^{-1} and d/dD = diag(A^{-1})."""

    @staticmethod
    def forward(
        ctx: Any, operator: LowRankPlusDiagonal, factor: Tensor, diagonal: Tensor
    ) -> Tensor:
        found, logdet = operator.capacitance()
        ctx.lower = found.factor
        ctx.save_for_backward(factor, diagonal)
        return logdet.to(factor.dtype)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor, diagonal = ctx.saved_tensors
        inverse = torch.cholesky_inverse(ctx.lower).to(factor.dtype)
        solved = (factor @ inverse) / diagonal.unsqueeze(-1)  # A^{-1} Phi
        by_diagonal = None
        if ctx.needs_input_grad[2]:
            # diag(A^{-1}) = (1 - diag(Phi A^{-1} Phi^T restricted to its own row)) / d
            entries = (1.0 - (solved * factor).sum(-1)) / diagonal
            by_diagonal = (grad.unsqueeze(-1) * entries).sum_to_size(diagonal.shape)
        by_factor = (2.0 * grad[..., None, None] * solved).sum_to_size(factor.shape)
        return None, by_factor, by_diagonal


@rule("add", LowRankPlusDiagonal, DiagLinearOperator)
def _plus(left: LowRankPlusDiagonal, right: DiagLinearOperator) -> LowRankPlusDiagonal:
    return LowRankPlusDiagonal(left.factor, left.diagonal_values + diagonal_values(right))


@rule("add", LowRankPlusDiagonal, LowRankPlusDiagonal)
def _join(left: LowRankPlusDiagonal, right: LowRankPlusDiagonal) -> LowRankPlusDiagonal:
    """The sum of two has the columns of both."""
    diagonal = left.diagonal_values + right.diagonal_values
    return LowRankPlusDiagonal(_columns_of_both(left.factor, right.factor), diagonal)


@rule("add", LowRankPlusDiagonal, RootLinearOperator)
def _extend(left: LowRankPlusDiagonal, right: RootLinearOperator) -> LowRankPlusDiagonal:
    factor = _columns_of_both(left.factor, right.root.to_dense())
    return LowRankPlusDiagonal(factor, left.diagonal_values)


def _columns_of_both(left: Tensor, right: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return torch.cat([f.expand(*batch, *f.shape[-2:]) for f in (left, right)], dim=-1)
