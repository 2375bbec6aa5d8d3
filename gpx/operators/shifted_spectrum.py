"""Eigendecomposition of a Kronecker product plus a constant diagonal; solves and determinants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite
from gpx.linalg import kth_smallest
from gpx.linalg.kronecker import kronecker_matmul, kronecker_vector
from gpx.linalg.kronecker_workspace import KroneckerWorkspace
from gpx.operators.circulant import Circulant, FourierVectors


@dataclass(frozen=True)
class ShiftedSpectrum:
    """Eigendecomposition Q (T + s I) Q^T of a Kronecker product plus a constant.

    Attributes:
        vectors (..., m_l, m_l): Q_l; of a circulant factor ``FourierVectors``.
        transposed: Q_l^T, contiguous.
        values (..., m_l): eigenvalues of the factors.
        shift (..., 1): s.
        shifted (..., M): prod_l values + s in the order of the grid, all positive.
        workspace: where products run, if there is one.
    """

    vectors: tuple[Tensor | FourierVectors, ...]
    transposed: tuple[Tensor | FourierVectors, ...]
    values: tuple[Tensor, ...]
    shift: Tensor
    shifted: Tensor
    workspace: KroneckerWorkspace | None = None

    @classmethod
    def of(
        cls,
        factors: Sequence[Tensor | Circulant],
        shift: Tensor,
        dtype: torch.dtype,
        workspace: KroneckerWorkspace | None = None,
        *,
        covariances: bool = False,
    ) -> ShiftedSpectrum:
        """Decompose symmetric factors in float64 and store the result in ``dtype``.

        Args:
            covariances: whether every factor is positive semi-definite: eigenvalues that rounding
                made negative are raised to zero, and others refused.

        Raises:
            NotPositiveDefinite: the sum has an eigenvalue that is not positive, or a covariance one
                below zero that rounding does not explain, or entries that are not finite.
        """
        pairs = [_eigh(f) for f in factors]
        if covariances:
            for axis, (f, (each, _)) in enumerate(zip(factors, pairs, strict=True)):
                _require_covariance(each, f, axis)
                each.clamp_(min=0.0)
        values = tuple(v.to(dtype) for v, _ in pairs)
        vectors = tuple(q.to(dtype) for _, q in pairs)
        shift = shift.to(dtype)
        shifted = kronecker_vector(values)
        # the array is large: shift it in place, unless it is one factor's own values or the shift
        # broadcasts it to a larger batch
        in_place = len(values) > 1 and shift.shape[:-1] in (torch.Size(), shifted.shape[:-1])
        shifted = shifted.add_(shift) if in_place else shifted + shift
        # for covariances the sum is positive wherever the shift is
        checked = shift if covariances else shifted
        if not bool(((checked > 0) & (checked < torch.inf)).all()):
            raise NotPositiveDefinite(
                f"Kronecker product of sizes {[f.shape[-1] for f in factors]} plus a constant "
                f"diagonal is not positive definite, or not finite: eigenvalues from "
                f"{float(shifted.min()):.2e} to {float(shifted.max()):.2e} "
                f"with the diagonal at {float(shift.min()):.2e}. Try: raise the noise variance; "
                "check that every factor is positive semi-definite."
            )
        transposed = tuple(q.mT.contiguous() if isinstance(q, Tensor) else q.mT for q in vectors)
        return cls(vectors, transposed, values, shift, shifted, workspace)

    def eigenvalues(self) -> Tensor:
        """Those of the Kronecker product alone, (..., M), in the order of the grid."""
        return kronecker_vector(self.values)

    def inverse_product(self, right: Tensor) -> Tensor:
        """Q (T + s I)^{-1} Q^T right for (..., M, c), computed in the dtype of the spectrum.

        In float32 the rotation of a smooth ``right`` leaves rounding errors in components that
        should vanish, which 1 / s amplifies by the condition number: good enough inside an
        iteration that checks its residual.
        """
        if self.workspace is not None and right.ndim == 2:
            return self.inverse_rows(right.mT).clone().mT
        rotated = kronecker_matmul(self.transposed, right.to(self.shifted.dtype))
        spectrum = self.shifted.unsqueeze(-1)
        if torch.broadcast_shapes(rotated.shape, spectrum.shape) == rotated.shape:
            scaled = rotated.div_(spectrum)
        else:
            scaled = rotated / spectrum
        return kronecker_matmul(self.vectors, scaled).to(right.dtype)

    def inverse_rows(self, rows: Tensor) -> Tensor:
        """The same for each row of (c, M), in the workspace: valid until its next use."""
        assert self.workspace is not None
        rotated = self.workspace.product(self.transposed, rows)
        return self.workspace.product(self.vectors, rotated.div_(self.shifted))

    def logdet(self) -> Tensor:
        """sum_i log(shifted_i), float64."""
        return self.shifted.log().sum(-1, dtype=torch.float64)

    def function_sum(
        self,
        function: Callable[[Tensor], Tensor],
        slope: Callable[[Tensor], Tensor],
        count: int | None = None,
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """sum over the ``count`` largest lambda_i of f(count / M lambda_i + s), with gradient.

        With all M of them and f = log this is the log-determinant. For fewer it estimates the
        log-determinant of a submatrix of ``count`` rows (Nystrom), for f(t) = 1 / t the trace of
        its inverse. Eigenvalues that tie at the threshold share the remaining places equally.

        Args:
            function, slope: f and its derivative, elementwise.
            count: at most M, no batch; None: M.

        Returns:
            (...) in float64; d / d A_l (..., m_l, m_l), for a circulant factor d / d column
            (..., m_l); d / d s (..., 1). d lambda_j = q_j^T dA_l q_j divides by no difference of
            eigenvalues, so repeated ones do no harm.

        Cost: a few passes over M numbers (and a selection among them), sum_l m_l^3; memory 4 M.
        Source: Evans thesis, section 3.4.
        """
        size = self.shifted.shape[-1]
        share = 1.0 if count is None else count / size
        shifted = self.shifted if share == 1.0 else self.eigenvalues() * share + self.shift
        terms, slopes = function(shifted), slope(shifted)
        if share < 1.0:
            assert count is not None
            spectrum = self.eigenvalues()
            threshold = kth_smallest(spectrum, size - count + 1)
            above, ties = spectrum > threshold, spectrum == threshold
            left = (count - above.sum()) / ties.sum()
            chosen = above.to(spectrum.dtype).add_(ties.to(spectrum.dtype) * left)
            terms, slopes = terms.mul_(chosen), slopes.mul_(chosen)
        by_shift = slopes.sum(-1, keepdim=True)
        value = terms.sum(-1, dtype=torch.float64)
        return value, self.by_factors(self._marginal(slopes, share)), by_shift

    def by_factors(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Derivative of sum_j weights_lj values_lj by A_l, or a circulant factor's column."""
        return [
            (q * w.unsqueeze(-2)) @ q.mT if isinstance(q, Tensor) else q.eigenvalue_gradient(w)
            for q, w in zip(self.vectors, weights, strict=True)
        ]

    def _marginal(self, slopes: Tensor, share: float) -> list[Tensor]:
        """d / d values_lj: slopes times the other factors' eigenvalues, summed over them."""
        batch = slopes.shape[:-1]
        contracted = [slopes if share == 1.0 else slopes * share]  # axes after l, for l = d ... 1
        for v in reversed(self.values[1:]):
            rest = contracted[-1].reshape(*batch, -1, v.shape[-1])
            contracted.append((rest @ v.unsqueeze(-1)).squeeze(-1))
        found = []
        for axis, v in enumerate(self.values):
            rest = contracted.pop().reshape(*batch, -1, v.shape[-1])
            if axis:
                before = kronecker_vector(self.values[:axis])
                found.append((before.unsqueeze(-2) @ rest).squeeze(-2))
            else:
                found.append(rest.sum(-2))
        return found


def _eigh(factor: Tensor | Circulant) -> tuple[Tensor, Any]:
    """Eigenvalues and eigenvectors, in float64."""
    if isinstance(factor, Circulant):
        return factor.to(torch.float64)._symeig(eigenvectors=True)
    if not bool(torch.isfinite(factor).all()):  # the factorisation would not report it
        unknown = factor.new_full(factor.shape[:-1], torch.nan, dtype=torch.float64)
        return unknown, factor.double()
    return torch.linalg.eigh(factor.double())


def _require_covariance(values: Tensor, factor: Tensor | Circulant, axis: int) -> None:
    """Refuse eigenvalues (m,) below zero by more than the rounding of the factor's dtype."""
    if isinstance(factor, Circulant):
        accepted = factor.definite
    else:
        rounding = 100.0 * torch.finfo(factor.dtype).eps * factor.shape[-1]
        accepted = bool((values >= -rounding * values[..., -1:]).all())
    if not accepted:
        raise NotPositiveDefinite(
            f"the covariance of grid axis {axis} ({factor.shape[-1]} points), a factor of a "
            f"Kronecker product, has eigenvalues from {float(values.min()):.2e} to "
            f"{float(values.max()):.2e}; expected none below zero. Are its lengthscales finite and "
            "its kernel positive definite?"
        )
