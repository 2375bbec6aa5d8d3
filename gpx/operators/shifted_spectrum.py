"""Eigendecomposition of a Kronecker product plus a constant, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite
from gpx.linalg.kronecker import kronecker_matmul, kronecker_vector
from gpx.linalg.preconditioners.base import Preconditioner


@dataclass(frozen=True)
class ShiftedSpectrum:
    """Eigendecomposition Q (T + s I) Q^T of a Kronecker product plus a constant.

    Attributes:
        vectors (..., m_l, m_l): Q_l, in the operator's dtype.
        wide (..., m_l, m_l): Q_l, float64.
        values (..., m_l): eigenvalues of the factors, float64.
        shifted (..., M): prod_l values + s in the order of the grid, float64, all positive.
    """

    vectors: tuple[Tensor, ...]
    wide: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    shifted: Tensor

    @classmethod
    def of(cls, factors: Sequence[Tensor], shift: Tensor) -> ShiftedSpectrum:
        """Decompose symmetric factors in float64 (they are small); shift (..., 1)."""
        pairs = [torch.linalg.eigh(f.double()) for f in factors]
        values = tuple(v for v, _ in pairs)
        shifted = kronecker_vector(values)
        batch = torch.broadcast_shapes(shifted.shape[:-1], shift.shape[:-1])
        grows = batch != shifted.shape[:-1]
        # a grid of doubles is large: shift it in place where it need not grow
        shifted = shifted + shift.double() if grows else shifted.add_(shift.double())
        if not bool(((shifted > 0) & (shifted < torch.inf)).all()):
            raise NotPositiveDefinite(
                f"Kronecker product of sizes {[f.shape[-1] for f in factors]} plus a constant "
                f"diagonal is not positive definite, or not finite: eigenvalues from "
                f"{float(shifted.min()):.2e} to {float(shifted.max()):.2e} "
                f"with the diagonal at {float(shift.min()):.2e}. Try: raise the noise variance; "
                "check that every factor is positive semi-definite."
            )
        dtype = factors[0].dtype
        wide = tuple(q for _, q in pairs)
        return cls(tuple(q.to(dtype) for q in wide), wide, values, shifted)

    def inverse_product(self, right: Tensor) -> Tensor:
        """Q (T + s I)^{-1} Q^T right, worked out in float64 and rounded once.

        In float32 the rotation of a smooth ``right`` leaves rounding where its components vanish,
        and 1 / s lifts that by the condition number: on three factors of 100 with s = 0.1, 1.7e-4
        of a constant's solution instead of 3e-8.
        """
        return self._through(self.wide, right.double()).to(right.dtype)

    def preconditioning_product(self, right: Tensor) -> Tensor:
        """The same in the dtype of ``right``, good enough between two steps of an iteration."""
        return self._through(self.vectors, right)

    def _through(self, vectors: Sequence[Tensor], right: Tensor) -> Tensor:
        rotated = kronecker_matmul([q.mT for q in vectors], right)
        spectrum = self.shifted.unsqueeze(-1)
        if torch.broadcast_shapes(rotated.shape, spectrum.shape) == rotated.shape:
            scaled = rotated.div_(spectrum)  # fresh memory, rotated from ``right`` just now
        else:
            scaled = (rotated / spectrum).to(right.dtype)
        return kronecker_matmul(vectors, scaled)

    def logdet(self) -> Tensor:
        """sum_i log(shifted_i), float64."""
        return self.shifted.log().sum(-1)

    def logdet_gradients(self) -> tuple[list[Tensor], Tensor]:
        """d logdet / d A_l (..., m_l, m_l) and d logdet / d s (..., 1), float64.

        Q_l diag(g_l) Q_l^T with g_l the sum, over the other axes, of their eigenvalues divided by
        ``shifted``. No difference of eigenvalues is divided by, so repeated ones do no harm.
        Cost: O(d M + sum m_l^3).
        """
        reciprocal = self.shifted.reciprocal()
        one = reciprocal.new_ones(1)
        found = []
        for at, q in enumerate(self.wide):
            before = kronecker_vector([one, *self.values[:at]])
            after = kronecker_vector([one, *self.values[at + 1 :]])
            m = q.shape[-1]
            grid = reciprocal.reshape(*reciprocal.shape[:-1], -1, after.shape[-1])
            grid = (grid @ after.unsqueeze(-1)).squeeze(-1)
            grid = grid.reshape(*grid.shape[:-1], before.shape[-1], m)
            weights = (before.unsqueeze(-2) @ grid).squeeze(-2)
            found.append((q * weights.unsqueeze(-2)) @ q.mT)
        return found, reciprocal.sum(-1, keepdim=True)


class KroneckerPreconditioner(Preconditioner):
    """K + s I for a Kronecker product K, exactly, through its eigendecomposition Q (T + s I) Q^T.

    For K + D with any diagonal D and s its geometric mean, the preconditioned spectrum lies between
    min D / s and max D / s: ``node`` for Gauss-Radau quadrature is min D / s.

    Args:
        spectrum: of K + s I, without batch.
        dtype: of the vectors.

    Cost: two Kronecker products for ``matmul`` and ``solve``, one for a root,
    R = Q (T + s I)^{1/2}.
    """

    def __init__(self, spectrum: ShiftedSpectrum, dtype: torch.dtype) -> None:
        self._spectrum = spectrum
        self._vectors = spectrum.vectors
        self._transposed = [q.mT for q in spectrum.vectors]
        self._values = spectrum.shifted.to(dtype).unsqueeze(-1)

    @property
    def shape(self) -> torch.Size:
        """(M, M)."""
        return torch.Size((self._values.shape[0],) * 2)

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """Of the vectors."""
        return self._values.device

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q (T + s I) Q^T times vectors."""
        return self._through(vectors, self._transposed, self._values, self._vectors)

    def solve(self, vectors: Tensor) -> Tensor:
        """Q (T + s I)^{-1} Q^T times vectors."""
        return self._through(vectors, self._transposed, 1.0 / self._values, self._vectors)

    def logdet(self) -> Tensor:
        """sum_i log(t_i + s)."""
        return self._spectrum.logdet().to(self.dtype)

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """Q (T + s I)^{1/2} times vectors."""
        return self._through(vectors, None, self._values.sqrt(), self._vectors)

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """(T + s I)^{-1/2} Q^T times vectors, or Q (T + s I)^{-1/2} with ``transpose``."""
        scale = self._values.rsqrt()
        if transpose:
            return self._through(vectors, None, scale, self._vectors)
        return self._through(vectors, self._transposed, scale, None)

    def _through(
        self,
        vectors: Tensor,
        first: Sequence[Tensor] | None,
        scale: Tensor,
        last: Sequence[Tensor] | None,
    ) -> Tensor:
        block = vectors.unsqueeze(-1) if vectors.ndim == 1 else vectors
        block = block if first is None else kronecker_matmul(first, block)
        block = block * scale
        block = block if last is None else kronecker_matmul(last, block)
        return block.squeeze(-1) if vectors.ndim == 1 else block
