"""Sums, differences, multiples and appended rows of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator import LinearOperator, to_dense
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    DiagLinearOperator,
    RootLinearOperator,
    ZeroLinearOperator,
    to_linear_operator,
)
from torch import Tensor

from gpx.errors import DTypeError, ShapeError
from gpx.operators.algebra import combine, combined
from gpx.operators.dense_factorisations import DenseFactorisations
from gpx.operators.indexing import common_batch
from gpx.operators.symmetry import require_symmetric


class Arithmetic(DenseFactorisations):
    """Combinations of operators by the rules of ``gpx.operators.algebra``.

    Where no rule keeps structure the result is a ``DenseMatrix``, or refused beyond ``DENSE_ROWS``
    rows.
    """

    def _require_same_dtype(self, other: LinearOperator) -> None:
        elsewhere = other.device is not None and other.device != self.device  # identities have None
        if other.dtype != self.dtype or elsewhere:
            raise DTypeError(
                f"{self._name()} is {self.dtype} on {self.device}, {type(other).__name__} is "
                f"{other.dtype} on {other.device}; convert one of them"
            )

    def _operand(self, other: Any) -> LinearOperator:
        """A matrix or operator to combine with this one, as an operator."""
        if not isinstance(other, (Tensor, LinearOperator)):
            raise DTypeError(
                f"{self._name()} and {type(other).__name__} cannot be added or subtracted: take a "
                "matrix or an operator; add_jitter(c) adds c to the diagonal"
            )
        if len(other.shape) < 2:
            raise ShapeError(
                f"{self._name()} and a tensor of shape {tuple(other.shape)} cannot be combined: "
                "take a matrix; add_diagonal(d) adds to the diagonal"
            )
        return to_linear_operator(other)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, ZeroLinearOperator) or (
            isinstance(other, (int, float)) and other == 0
        ):
            return self
        other = self._operand(other)
        if other.shape[-2:] != self.shape[-2:]:
            raise ShapeError(
                f"{self._name()} cannot be added to {type(other).__name__} of shape "
                f"{tuple(other.shape)}"
            )
        self._require_same_dtype(other)
        return combined("add", self, other)

    def __neg__(self) -> LinearOperator:
        return self._mul_constant(-1.0)

    def __sub__(self, other: Any) -> LinearOperator:
        if isinstance(other, ZeroLinearOperator):
            return self
        return self + self._operand(other).mul(-1.0)

    def add_diagonal(self, diag: Tensor | float) -> LinearOperator:
        """self + diag(d) for d (..., N), or constant: a number, (..., 1) or ().

        Raises:
            ShapeError: not square, or a diagonal of another length.
        """
        self._square("add_diagonal")
        diag = torch.as_tensor(diag, dtype=self.dtype, device=self.device)
        if diag.ndim and diag.shape[-1] not in (1, self.shape[-1]):
            raise ShapeError(
                f"a diagonal of shape {tuple(diag.shape)} cannot be added to {self._name()}"
            )
        if diag.ndim == 0 or (diag.shape[-1] == 1 and self.shape[-1] != 1):
            values = diag.reshape(1) if diag.ndim == 0 else diag
            return self + ConstantDiagLinearOperator(values, diag_shape=self.shape[-1])
        return self + DiagLinearOperator(diag)

    def add_low_rank(
        self,
        low_rank_mat: Tensor | LinearOperator,
        root_decomp_method: str | None = None,
        root_inv_decomp_method: str | None = None,
        generate_roots: bool | None = True,
        **root_decomp_kwargs: Any,
    ) -> LinearOperator:
        """self + B B^T for B (..., N, k), with the structure that the sum keeps.

        Roots are computed on demand and exact; the arguments about roots have no effect.
        """
        self._square("add_low_rank")
        return self + RootLinearOperator(to_linear_operator(low_rank_mat))

    def cat_rows(
        self,
        cross_mat: Tensor | LinearOperator,
        new_mat: Tensor | LinearOperator,
        generate_roots: bool = True,
        generate_inv_roots: bool = True,
        **root_decomp_kwargs: Any,
    ) -> LinearOperator:
        """[self B^T; B D], (..., N + k, N + k), for B (..., k, N) and D (..., k, k), dense.

        The roots are exact and cached where GPyTorch looks for them: computed at once as in
        linear_operator, or on demand without ``generate_roots``.

        Raises:
            ShapeError, DTypeError: blocks that do not fit.
            NotPositiveDefinite: self or D is not symmetric; the matrix has no root.
            ConfigError: more than ``DENSE_ROWS`` rows.
        """
        self._factorisable("cat_rows")
        cross, corner = to_dense(cross_mat), to_dense(new_mat)
        n, k = self.shape[-1], corner.shape[-1] if corner.ndim else 0
        if cross.ndim < 2 or cross.shape[-2:] != (k, n) or corner.shape[-2:] != (k, k):
            raise ShapeError(
                f"{tuple(cross.shape)} and {tuple(corner.shape)} cannot be appended to "
                f"{self._name()}; expected (..., k, {n}) and (..., k, k)"
            )
        self._require_same_dtype(to_linear_operator(cross))
        self._require_same_dtype(to_linear_operator(corner))
        blocks = (self.to_dense(), cross, corner)
        batch = common_batch(*[t.shape[:-2] for t in blocks], what="a matrix and its new rows")
        old, cross, corner = (t.expand(*batch, *t.shape[-2:]) for t in blocks)
        rows = (torch.cat([old, cross.mT], -1), torch.cat([cross, corner], -1))
        found = self._dense_operator(torch.cat(rows, -2))
        require_symmetric(found, "cat_rows")
        if generate_roots:
            found.root_decomposition()
            if generate_inv_roots:
                found.root_inv_decomposition()
        return found

    def mul(self, other: float | Tensor | LinearOperator) -> Any:
        """Times a number (or one per batch member), or elementwise with another matrix.

        Raises:
            ShapeError: shapes that do not broadcast.
        """
        if isinstance(other, (Tensor, LinearOperator)):
            if other.shape.numel() != 1:
                self._operand(other)
            common_batch(self.shape, other.shape, what="factors of an elementwise product")
        return super().mul(other)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        return combined("scale", self, torch.as_tensor(other, dtype=self.dtype, device=self.device))

    def _mul_matrix(self, other: Any) -> LinearOperator:
        if other.shape[-2:] != self.shape[-2:] and 1 in other.shape[-2:]:
            return self._mul_broadcast(other.to_dense())
        if other.shape[-2:] != self.shape[-2:]:
            raise ShapeError(
                f"{self._name()} cannot be multiplied elementwise with {type(other).__name__} of "
                f"shape {tuple(other.shape)}"
            )
        self._require_same_dtype(other)
        if isinstance(other, ZeroLinearOperator):
            return other
        if isinstance(other, DiagLinearOperator):
            return DiagLinearOperator(self._diagonal() * other.diagonal())
        found = combine("mul", self, other)
        if found is None:
            self._dense_size("an elementwise product")
            found = self._dense_operator(self.to_dense() * dense(other))
        return found

    def _mul_broadcast(self, other: Tensor) -> LinearOperator:
        """Times one number (..., 1, 1), one per column (..., 1, M) or one per row (..., N, 1)."""
        if other.shape[-2:] == (1, 1):
            return self._mul_constant(other[..., 0, 0])
        if other.shape[-2:] == (1, self.shape[-1]):
            return self @ DiagLinearOperator(other.squeeze(-2))
        if other.shape[-2:] == (self.shape[-2], 1):
            return (self.mT @ DiagLinearOperator(other.squeeze(-1))).mT
        raise ShapeError(
            f"{self._name()} cannot be multiplied elementwise with {tuple(other.shape)}"
        )

    def sum(self, dim: int | None = None) -> Any:
        """Sum over rows (-2), columns (-1), a batch dimension, or everything (None)."""
        return self.sum(-1).sum() if dim is None else super().sum(dim)

    def _sum_batch(self, dim: int) -> LinearOperator:
        return self._as_dense("a sum over a batch dimension", lambda dense: dense.sum(dim))

    def prod(self, dim: int) -> Any:
        """Elementwise product along a batch dimension.

        Raises:
            ShapeError: a dimension of the matrix, or none, or an empty one.
        """
        if not isinstance(dim, int) or not 0 <= dim % self.ndim < len(self.batch_shape):
            raise ShapeError(
                f"prod is along batch dimensions; {dim} is none of {self._name()} (for rows or "
                "columns take it of to_dense())"
            )
        if self.shape[dim] == 0:
            raise ShapeError(f"the product over the empty dimension {dim} of {self._name()}")
        at = dim % self.ndim
        return self._as_dense("a product over a batch dimension", lambda dense: dense.prod(at))

    def _dense_operator(self, matrix: Tensor) -> LinearOperator:
        return combined("dense", self, matrix)

    def _as_dense(self, what: str, function: Callable[[Tensor], Tensor]) -> LinearOperator:
        self._dense_size(what)
        return self._dense_operator(function(self.to_dense()))


def dense(operator: Tensor | LinearOperator) -> Tensor:
    """As a tensor with a new graph; linear_operator's ``to_dense`` would cache the old one."""
    if isinstance(operator, Tensor):
        return operator
    if isinstance(operator, Arithmetic):
        return operator.to_dense()
    eye = torch.eye(operator.shape[-1], dtype=operator.dtype, device=operator.device)
    found = operator.matmul(eye)
    assert isinstance(found, Tensor)
    return found
