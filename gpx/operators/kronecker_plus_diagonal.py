"""A Kronecker product plus noise, solved through the eigendecomposition of its factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.conjugate_gradients import conjugate_gradients
from gpx.linalg.known_gradient import first_derivative_only
from gpx.linalg.prepared import Prepared
from gpx.linalg.stopping import RelativeResidual
from gpx.operators.algebra import rule
from gpx.operators.arithmetic import dense
from gpx.operators.circulant import Circulant
from gpx.operators.indexing import common_batch
from gpx.operators.inverse import Inverse
from gpx.operators.kronecker import Kronecker
from gpx.operators.shifted_spectrum import ShiftedSpectrum
from gpx.operators.structured import TOLERANCE, Structured
from gpx.operators.symmetry import require_symmetric_factors
from gpx.tensor_checks import check_alike


class KroneckerPlusDiagonal(Structured):
    """A_1 x ... x A_d + D, (..., M, M), symmetric, with D = s I or any positive diagonal.

    Constant diagonal (..., 1): all operations use Q (T + s I) Q^T with the eigendecompositions of
    the factors, computed at the first use in float64 and kept until a tensor changes.

    General diagonal (..., M): solves by conjugate gradients preconditioned with the same
    decomposition at the geometric mean of D (condition number at most max D / min D, whatever the
    Kronecker product), to ``structured.TOLERANCE`` or DidNotConverge; logdet as ``Structured``.

    Cost, c columns, M = prod m_l: product 2 c M sum m_l operations; first solve or logdet sum
    10 m_l^3 and O(M); a solve two Kronecker products; logdet O(M), its gradient O(d M + sum m_l^3)
    in closed form (repeated eigenvalues do no harm); diagonal O(M). Memory O(c M + sum m_l^2).
    Solves with a constant diagonal run in float64 whatever the dtype. Where the Kronecker product
    has a ``workspace`` they run in it, in the dtype of the matrix: for inner loops that check their
    own residual.

    Args:
        kronecker: symmetric positive semi-definite factors.
        diagonal (..., 1) or (..., M): noise variance(s), positive.
        covariances: see ``ShiftedSpectrum.of``; without it the sum alone must be positive definite.

    Raises:
        ShapeError, DTypeError: factors that are not square, or a diagonal that does not fit.
        NotPositiveDefinite: an eigenvalue of the sum, or an entry of a general diagonal, is not
            positive.
    Source: Evans thesis, appendix A.
    """

    def __init__(
        self, kronecker: Kronecker, diagonal: Tensor, *, covariances: bool = False
    ) -> None:
        diagonal = diagonal.reshape(1) if diagonal.ndim == 0 else diagonal
        super().__init__(kronecker, diagonal, covariances=covariances)
        self._covariances = covariances
        shape = kronecker.shape
        if any(f.shape[-1] != f.shape[-2] for f in kronecker.factors):
            raise ShapeError(
                "a Kronecker product plus a diagonal needs square factors, got "
                f"{[tuple(f.shape[-2:]) for f in kronecker.factors]}"
            )
        if diagonal.shape[-1] not in (1, shape[-1]):
            raise ShapeError(
                f"the diagonal is {tuple(diagonal.shape)}; expected (..., 1) or (..., {shape[-1]})"
            )
        check_alike("a Kronecker product and a diagonal", kronecker, diagonal)
        self.kronecker, self.diagonal_values = kronecker, diagonal
        self.workspace = kronecker.workspace
        self._kept = Prepared()

    def _dims(self) -> tuple[int, ...]:
        return (2, 1)

    @property
    def constant(self) -> bool:
        """Whether the diagonal is one number (per batch)."""
        return self.diagonal_values.shape[-1] == 1

    def _size(self) -> torch.Size:
        shape = self.kronecker.shape
        parts = (shape[:-2], self.diagonal_values.shape[:-1])
        batch = common_batch(*parts, what="a Kronecker product and a diagonal")
        return torch.Size((*batch, *shape[-2:]))

    def _transpose_nonbatch(self) -> KroneckerPlusDiagonal:
        return KroneckerPlusDiagonal(
            self.kronecker._transpose_nonbatch(),
            self.diagonal_values,
            covariances=self._covariances,
        )

    def _product(self, right: Tensor) -> Tensor:
        return self.kronecker._product(right) + self.diagonal_values.unsqueeze(-1) * right

    def _diagonal(self) -> Tensor:
        return self.kronecker._diagonal() + self.diagonal_values

    def to_dense(self) -> Tensor:
        """The matrix itself: O(M^2)."""
        dense = self.kronecker.to_dense()
        return dense + torch.diag_embed(self.diagonal_values.expand(self.shape[:-1]))

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        kronecker, diagonal = self._broadcast_args()
        found = kronecker._get_indices(row_index, col_index, *batch_indices)
        at = row_index if diagonal.shape[-1] != 1 else torch.zeros_like(row_index)
        where = (*batch_indices, at)
        return found + torch.where(row_index == col_index, diagonal[where], 0.0)

    def spectrum(self) -> ShiftedSpectrum:
        """The kept eigendecomposition; for a general diagonal, with its geometric mean."""

        def build() -> ShiftedSpectrum:
            shift = self.diagonal_values
            factors = self._leaves()
            if not self._covariances:  # those are symmetric
                tensors = [f for f in factors if isinstance(f, Tensor)]
                require_symmetric_factors(tensors, f"the decomposition of {self._name()}")
            if not self.constant:
                if not bool((shift > 0).all()):
                    raise NotPositiveDefinite(
                        f"the diagonal of {self._name()} has the entry {float(shift.min()):.2e}; "
                        "expected positive noise variances. Raise them."
                    )
                shift = shift.log().mean(-1, keepdim=True).exp()
            exact = self.constant and self.workspace is None
            dtype = torch.float64 if exact else self.dtype
            return ShiftedSpectrum.of(
                factors, shift, dtype, self.workspace, covariances=self._covariances
            )

        with torch.no_grad():
            found = self._kept.get("spectrum", self.representation(), build)
        return found

    def _leaves(self) -> list[Tensor | Circulant]:
        """The factors as tensors, except circulant ones, which stay operators."""
        return [f if isinstance(f, Circulant) else dense(f) for f in self.kronecker.factors]

    def inverse(self) -> Inverse:
        """(K + D)^{-1}, an operator."""
        return Inverse(self)

    def _inverse_product(self, right: Tensor) -> Tensor:
        spectrum = self.spectrum()
        if self.constant:
            return spectrum.inverse_product(right)
        return conjugate_gradients(
            self._product,
            right,
            preconditioner=spectrum.inverse_product,
            stop=RelativeResidual(TOLERANCE.get(self.dtype, 1e-5)),
        ).solution

    def _inverse_rows_plan(self) -> Callable[[Tensor], Tensor]:
        return self.spectrum().inverse_rows

    def _logdet(self) -> Tensor:
        if not self.constant:
            return super()._logdet()
        leaves = [f.column if isinstance(f, Circulant) else f for f in self._leaves()]
        out = _ShiftedLogDet.apply(self.spectrum(), self.dtype, self.diagonal_values, *leaves)
        assert isinstance(out, Tensor)
        return out

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        if self.batch_shape or left_vecs.ndim > 2:
            return super()._bilinear_derivative(left_vecs, right_vecs)
        of_factors = self.kronecker._bilinear_derivative(left_vecs, right_vecs)
        products = left_vecs * right_vecs
        if self.constant:
            return (*of_factors, products.sum().reshape(1))
        return (*of_factors, products if products.ndim == 1 else products.sum(-1))

    def _symeig(
        self, eigenvectors: bool = False, return_evals_as_lazy: bool | None = False
    ) -> tuple[Tensor, Any]:
        if not self.constant:
            return super()._symeig(eigenvectors, return_evals_as_lazy)
        values, vectors = self.kronecker._symeig(eigenvectors)
        return values + self.diagonal_values, vectors


class _ShiftedLogDet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        spectrum: ShiftedSpectrum,
        dtype: torch.dtype,
        diagonal: Tensor,
        *factors: Tensor,
    ) -> Tensor:
        ctx.spectrum = spectrum
        ctx.save_for_backward(diagonal, *factors)
        return spectrum.logdet().to(dtype)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, by_factor, by_shift = ctx.spectrum.function_sum(torch.log, torch.reciprocal)
        wide = grad.double()
        batch = by_shift.ndim - 1
        found = [
            wide.reshape(*wide.shape, *(1,) * (g.ndim - batch)) * g for g in (by_shift, *by_factor)
        ]
        pairs = zip(found, ctx.saved_tensors, strict=True)
        return (None, None, *(g.sum_to_size(t.shape).to(t.dtype) for g, t in pairs))


@rule("add", Kronecker, DiagLinearOperator)
def _plus(left: Kronecker, right: DiagLinearOperator) -> KroneckerPlusDiagonal | None:
    if any(f.shape[-1] != f.shape[-2] for f in left.factors):
        return None
    return KroneckerPlusDiagonal(left, diagonal_values(right))


@rule("add", KroneckerPlusDiagonal, DiagLinearOperator)
def _plus_more(left: KroneckerPlusDiagonal, right: DiagLinearOperator) -> KroneckerPlusDiagonal:
    return KroneckerPlusDiagonal(left.kronecker, left.diagonal_values + diagonal_values(right))


@rule("scale", KroneckerPlusDiagonal, Tensor)
def _scale(left: KroneckerPlusDiagonal, scale: Tensor) -> KroneckerPlusDiagonal:
    kronecker = left.kronecker._mul_constant(scale)
    assert isinstance(kronecker, Kronecker)
    return KroneckerPlusDiagonal(kronecker, left.diagonal_values * scale[..., None])


def diagonal_values(operator: DiagLinearOperator) -> Tensor:
    """(..., 1) of a constant diagonal operator, else (..., n)."""
    constant = getattr(operator, "diag_values", None)
    found = operator.diagonal() if constant is None else constant
    assert isinstance(found, Tensor)
    return found
