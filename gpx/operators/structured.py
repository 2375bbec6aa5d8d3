"""The base class of gpx's structured operators, whose results are exact or an error.

``linear_operator`` runs products and solves on a rebuilt copy of an operator inside an autograd
function, which costs about 20 microseconds per call and loses factorisations stored on the
operator. Here the public methods run on the operator itself, through plain differentiable tensor
operations, so that a factorisation is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator import LinearOperator
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpx.errors import ConfigError, DTypeError, ShapeError
from gpx.linalg.conjugate_gradients import conjugate_gradients
from gpx.linalg.known_gradient import first_derivative_only
from gpx.linalg.kronecker_workspace import KroneckerWorkspace
from gpx.linalg.stopping import RelativeResidual
from gpx.operators.algebra import combined
from gpx.operators.arithmetic import Arithmetic
from gpx.operators.dense_factorisations import DENSE_ROWS
from gpx.operators.indexing import common_batch
from gpx.operators.symmetry import require_symmetric

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Relative residual to which systems of more than ``DENSE_ROWS`` rows are solved by iteration. A
solve that does not reach it raises DidNotConverge."""


class Structured(Arithmetic):
    """A linear operator whose subclasses define its product; everything else has exact defaults.

    A subclass defines ``_size``, ``_transpose_nonbatch`` and either ``_product`` (differentiable)
    or ``_multiply`` with its gradient (``_t_multiply``, ``_bilinear_derivative``). Optional are
    ``_solution`` (a differentiable solve) or ``_inverse_product`` (a solve of a symmetric matrix
    without gradient), ``_logdet``, ``_diagonal``, ``_get_indices``, ``_root``. Constructors take
    tensors and operators by position and do no work.

    Defaults: solve and logdet by dense Cholesky without jitter up to ``DENSE_ROWS`` rows; beyond, a
    solve runs conjugate gradients to ``TOLERANCE`` or raises DidNotConverge, and a logdet raises
    ConfigError. Solves assume a symmetric positive definite matrix unless the class says otherwise.
    """

    _preconditioner_hint = ""
    """Further argument of ``gpx.linalg.logdet_quadrature`` in the error message of ``_logdet``."""

    workspace: KroneckerWorkspace | None = None
    """Buffers in which products of a matrix over a grid's cells run; used in inner loops."""

    def _rows_plan(self) -> Callable[[Tensor], Tensor]:
        """The product with each row of (c, N) in ``workspace``: valid until its next use."""
        raise NotImplementedError

    def _inverse_rows_plan(self) -> Callable[[Tensor], Tensor]:
        """The solve for each row of (c, N) in ``workspace``: valid until its next use."""
        raise NotImplementedError

    def unchecked_product(self) -> Callable[[Tensor], Tensor]:
        """The product with tensors (N,) or (N, c) as a function without checks, for inner loops.

        Prepared once: later changes of the operator's tensors are not noticed.
        """
        return self._matmul

    def _product(self, right: Tensor) -> Tensor:
        """self @ right for right (..., N, c), differentiable in the operator and in right.

        By default ``_multiply``, differentiable once in closed form.
        """
        if torch.is_grad_enabled():
            tensors = self.representation()
            if right.requires_grad or any(t.requires_grad for t in tensors):
                out = _Product.apply(self, right, *tensors)
                assert isinstance(out, Tensor)
                return out
        return self._multiply(right)

    def _multiply(self, right: Tensor) -> Tensor:
        """self @ right for right (..., N, c), without gradients."""
        raise NotImplementedError

    def _t_multiply(self, right: Tensor) -> Tensor:
        """self^T @ right for right (..., M, c), without gradients."""
        raise NotImplementedError

    def _inverse_product(self, right: Tensor) -> Tensor:
        """self^{-1} @ right for symmetric self and right (..., N, c), without gradients."""
        require_symmetric(self, "solve")
        if self._fits_dense:
            return torch.cholesky_solve(right, self._dense_cholesky())
        stop = RelativeResidual(TOLERANCE.get(self.dtype, 1e-5))
        return conjugate_gradients(self._product, right, stop=stop).solution

    def _solution(self, right: Tensor) -> Tensor:
        """self^{-1} @ right, differentiable; by default ``_inverse_product``, once more for the
        gradient."""
        out = _Inverse.apply(self, right, *self.representation())
        assert isinstance(out, Tensor)
        return out

    def _logdet(self) -> Tensor:
        if not self._fits_dense:
            raise ConfigError(
                f"{self._name()} has no closed-form log-determinant and {self.shape[-1]} rows are "
                f"too many for a dense one (at most {DENSE_ROWS}). Estimate it with an error bar, "
                "by stochastic Lanczos quadrature: gpx.linalg.logdet_quadrature(operator.matmul, "
                f"probes{self._preconditioner_hint})"
            )
        require_symmetric(self, "logdet")
        lower = self._dense_cholesky()
        return 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    # --- products --------------------------------------------------------------------------------

    def matmul(self, other: Tensor | LinearOperator) -> Any:
        """self @ other for a tensor (N,) or (..., N, c), or an operator.

        Raises:
            ShapeError, DTypeError: the operands do not fit, or differ in dtype or device.
        """
        if isinstance(other, Tensor):
            self._check(other, self.shape[-1])
            return self._matmul(other)
        if not isinstance(other, LinearOperator):
            raise DTypeError(
                f"{self._name()} multiplies tensors and operators, got {type(other).__name__}"
            )
        if self.shape[-1] != other.shape[-2]:
            raise ShapeError(
                f"{self._name()} cannot be multiplied with {type(other).__name__} of shape "
                f"{tuple(other.shape)}: {self.shape[-1]} columns against {other.shape[-2]} rows"
            )
        self._require_same_dtype(other)
        return combined("matmul", self, other)

    def _matmul(self, rhs: Tensor) -> Tensor:
        if rhs.numel() == 0:  # FFTs refuse such sizes
            return self._empty_product(rhs)
        if rhs.ndim == 1:
            return self._product(rhs.unsqueeze(-1)).squeeze(-1)
        return self._product(rhs)

    def _empty_product(self, rhs: Tensor) -> Tensor:
        """Zeros of the product's shape, attached to the graphs of the operator and of ``rhs``."""
        tensors = [rhs, *(t for t in self.representation() if t.is_floating_point())]
        zero = torch.stack([t.reshape(-1)[:0].sum() for t in tensors]).sum()
        *batch, rows, _ = self.shape
        if rhs.ndim == 1:
            return zero.expand(*batch, rows).clone()
        batch = torch.broadcast_shapes(self.batch_shape, rhs.shape[:-2])
        return zero.expand(*batch, rows, rhs.shape[-1]).clone()

    def _check(self, other: Tensor, rows: int) -> None:
        found = other.shape[0] if other.ndim == 1 else other.shape[-2] if other.ndim else -1
        if found != rows:
            raise ShapeError(
                f"{self._name()} cannot meet a right-hand side of shape {tuple(other.shape)}: "
                f"expected ({rows},) or (..., {rows}, c)"
            )
        if other.ndim > 2 and len(self.batch_shape):
            common_batch(
                self.batch_shape, other.shape[:-2], what=f"{self._name()} and a right-hand side"
            )
        if other.dtype != self.dtype or other.device != self.device:
            raise DTypeError(
                f"{self._name()} is {self.dtype} on {self.device}, the right-hand side is "
                f"{other.dtype} on {other.device}; convert one of them"
            )

    def to_dense(self) -> Tensor:
        """The matrix itself, (..., N, M); computed anew at each call, never kept."""
        rows, columns = self.shape[-2:]
        eye = torch.eye(min(rows, columns), dtype=self.dtype, device=self.device)
        if rows < columns:
            return self._transpose_nonbatch()._matmul(eye).mT.contiguous()
        return self._matmul(eye).contiguous()

    # --- solves and determinants -----------------------------------------------------------------

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        """self^{-1} @ right for right (N,) or (..., N, c); with ``left``, left @ that.

        Raises:
            ShapeError, DTypeError: not square, or operands that do not fit.
            NotPositiveDefinite, DidNotConverge: no solution to the stated accuracy.
        """
        self._square("solve")
        self._check(right_tensor, self.shape[-1])
        if left_tensor is not None and left_tensor.shape[-1] != self.shape[-1]:
            raise ShapeError(
                f"{self._name()} cannot meet a left-hand side of shape {tuple(left_tensor.shape)}: "
                f"expected (..., c, {self.shape[-1]})"
            )
        vector = right_tensor.ndim == 1
        right = right_tensor.unsqueeze(-1) if vector else right_tensor
        batch = torch.broadcast_shapes(self.batch_shape, right.shape[:-2])
        right = right.expand(*batch, *right.shape[-2:])
        out = self._solution(right) if right.numel() else right.clone()
        out = out.squeeze(-1) if vector else out
        return out if left_tensor is None else left_tensor @ out

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
        if num_tridiag:  # Lanczos matrices are a by-product of linear_operator's own CG alone
            return super()._solve(rhs, preconditioner, num_tridiag)
        return self._solution(rhs)

    def inv_quad_logdet(
        self,
        inv_quad_rhs: Tensor | None = None,
        logdet: bool | None = False,
        reduce_inv_quad: bool | None = True,
    ) -> tuple[Tensor, Tensor]:
        """sum_c b_c^T self^{-1} b_c (each c apart without ``reduce_inv_quad``) and log|self|.

        A term that was not asked for is zero.
        """
        self._square("inv_quad_logdet")
        zero = torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device)
        quad = zero
        if inv_quad_rhs is not None:
            vector = inv_quad_rhs.ndim == 1
            right = inv_quad_rhs.unsqueeze(-1) if vector else inv_quad_rhs
            quad = (right * self.solve(right)).sum(-2)
            if reduce_inv_quad:
                quad = quad.sum(-1)
        return quad, (self._logdet() if logdet else zero)

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        """sum_c b_c^T self^{-1} b_c, or each c apart."""
        return self.inv_quad_logdet(inv_quad_rhs, False, reduce_inv_quad)[0]

    def logdet(self) -> Tensor:
        """log|self|, (...)."""
        self._square("logdet")
        return self._logdet()


def in_chunks(
    step: Callable[[slice, Tensor], Tensor], chunks: list[slice], right: Tensor
) -> list[Tensor]:
    """``step(rows, right)`` of every chunk, recomputed for the gradient instead of stored."""
    if len(chunks) < 2 or not torch.is_grad_enabled():
        return [step(rows, right) for rows in chunks or [slice(0, 0)]]
    return [checkpoint(step, rows, right, use_reentrant=False) for rows in chunks]


def as_columns(*vectors: Tensor) -> tuple[Tensor, ...]:
    """Vectors (N,) as (N, 1); blocks (..., N, c) as they are."""
    return tuple(v.unsqueeze(-1) if v.ndim == 1 else v for v in vectors)


class _Product(torch.autograd.Function):
    """y = A b by ``_multiply``; gradients by ``_bilinear_derivative`` and ``_t_multiply``."""

    @staticmethod
    def forward(ctx: Any, operator: Structured, right: Tensor, *tensors: Tensor) -> Tensor:
        ctx.operator = operator
        ctx.save_for_backward(right, *tensors)  # the tensors so that in-place changes are noticed
        return operator._multiply(right)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        right = ctx.saved_tensors[0]
        back: Tensor | None = None
        found: tuple[Any, ...] = (None,) * (len(ctx.needs_input_grad) - 2)
        if ctx.needs_input_grad[1]:
            back = ctx.operator._t_multiply(grad).sum_to_size(right.shape)
        if any(ctx.needs_input_grad[2:]):
            found = ctx.operator._bilinear_derivative(grad, right)
        return (None, back, *found)


class _Inverse(torch.autograd.Function):
    """x = A^{-1} b for symmetric A; the operator's stored factors serve both passes."""

    @staticmethod
    def forward(ctx: Any, operator: Structured, right: Tensor, *tensors: Tensor) -> Tensor:
        out = operator._inverse_product(right)
        ctx.operator = operator
        ctx.save_for_backward(out, *tensors)  # the tensors so that in-place changes are noticed
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        solution = ctx.saved_tensors[0]
        weights = ctx.operator._inverse_product(grad.contiguous())  # A is symmetric
        found: tuple[Any, ...] = (None,) * (len(ctx.needs_input_grad) - 2)
        if any(ctx.needs_input_grad[2:]):
            found = ctx.operator._bilinear_derivative(-weights, solution)
        return (None, weights, *found)
