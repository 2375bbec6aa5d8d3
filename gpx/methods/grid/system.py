"""The operators of a grid with gaps: K + sigma^2 I over all cells, observed cells and gaps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.errors import NotPositiveDefinite
from gpx.linalg import cholesky, kronecker_vector, split_index
from gpx.linalg.kronecker_workspace import KroneckerWorkspace
from gpx.linalg.preconditioners import Preconditioner
from gpx.methods.grid.axes import GriddedRows
from gpx.operators import Circulant, Inverse, Kronecker, KroneckerPlusDiagonal, Selection
from gpx.operators.shifted_spectrum import ShiftedSpectrum

DENSE_POINTS = 1500
"""Most observed cells whose covariance matrix "auto" factorises."""

DENSE_WORK = 10**7
"""Largest product of gaps and cells for which "auto" factorises F = C[Z, Z]."""

BLOCK_NUMBERS = 2**24
"""Most entries in a block of columns over the grid."""


class GridSystem:
    """K = K_1 x ... x K_d on the whole grid and its restrictions to observed cells X and gaps Z.

    All tensors are detached; products use the buffers of ``workspace``. Vectors are (k,) or (k, c).

    Args:
        factors (m_l, m_l): K_l, symmetric positive semi-definite; or (m_l,), the first column of
            the circulant K_l of an axis that is a circle.
        noise (): sigma^2 > 0.
        rows: cells and gaps.
        workspace: buffers to use; systems at other hyperparameters may share them.

    Attributes:
        kronecker (M, M): K, a ``Kronecker``.
        matrix (M, M): K + sigma^2 I, a ``KroneckerPlusDiagonal``.
        spectrum: eigenvalues and eigenvectors of both.
        last_preconditioner: that of ``ignore_preconditioner``, and its rank and form.

    Raises:
        NotPositiveDefinite: a factor is not finite, or has a negative eigenvalue beyond rounding.

    Cost: sum_l 9 m_l^3 once, circulant factors m_l log m_l; memory sum_l 2 m_l^2 + M.
    Source: Evans thesis, sections 2.3 and 3.3.
    """

    def __init__(
        self,
        factors: Sequence[Tensor],
        noise: Tensor,
        rows: GriddedRows,
        workspace: KroneckerWorkspace | None = None,
    ) -> None:
        self.noise = noise.detach()
        self.rows = rows
        self.last_preconditioner: tuple[tuple[int, str], Preconditioner] | None = None
        workspace = KroneckerWorkspace(rows.grid.shape) if workspace is None else workspace
        detached = [f.detach().contiguous() for f in factors]
        self.kronecker = Kronecker(
            *[Circulant(f) if f.ndim == 1 else f for f in detached], workspace=workspace
        )
        for axis, f in enumerate(self.kronecker.factors):
            if isinstance(f, Circulant):
                _require_definite(f, axis)
        self.matrix = KroneckerPlusDiagonal(self.kronecker, self.noise, covariances=True)
        self.spectrum: ShiftedSpectrum = self.matrix.spectrum()

    @property
    def num_observed(self) -> int:
        """N."""
        return self.rows.cells.shape[0]

    @property
    def num_gaps(self) -> int:
        """L."""
        return self.rows.gaps.shape[0]

    @property
    def size(self) -> int:
        """M."""
        return self.rows.grid.size

    @property
    def circular(self) -> bool:
        """Whether any axis is a circle."""
        return any(isinstance(f, Circulant) for f in self.kronecker.factors)

    @property
    def factors(self) -> list[Tensor]:
        """K_l (m_l, m_l), or the first column (m_l,) of a circulant K_l."""
        return [f.column if isinstance(f, Circulant) else f for f in self.kronecker.factors]

    @property
    def largest(self) -> Tensor:
        """Largest eigenvalue of K, ()."""
        return kronecker_vector([v.max().reshape(1) for v in self.spectrum.values]).squeeze(0)

    def double(self) -> GridSystem:
        """The same in float64, for dense matrices over the gaps; without circles.

        Eigenvalues of K_l that rounding to float32 made negative are raised to zero.
        Cost: two eigendecompositions, in buffers of its own; nothing if it is float64.
        """
        if self.noise.dtype == torch.float64:
            return self
        factors = []
        for factor in self.factors:
            values, vectors = torch.linalg.eigh(factor.double())
            factors.append(vectors * values.clamp_(min=0.0) @ vectors.mT)
        return GridSystem(factors, self.noise.double(), self.rows)

    # -- products between lists of cells ----------------------------------------------------------

    def covariance(self, source: Tensor | None, target: Tensor | None, vectors: Tensor) -> Tensor:
        """K[target, source] times vectors; None is the whole grid. Cost: one Kronecker product."""
        return Selection(self.kronecker, rows=target, columns=source).unchecked_product()(vectors)

    def inverse(self, source: Tensor | None, target: Tensor | None, vectors: Tensor) -> Tensor:
        """C[target, source] times vectors, C = (K + sigma^2 I)^{-1}; None is the whole grid.

        Cost: two Kronecker products.
        """
        return Selection(self._inverse, rows=target, columns=source).unchecked_product()(vectors)

    def inverse_root(self, target: Tensor | None, vectors: Tensor) -> Tensor:
        """(Q (T + sigma^2)^{-1/2})[target] times vectors over the eigenvalue grid."""
        scaled = _scale_entries(vectors, self.spectrum.shifted.rsqrt())
        return Selection(self.eigenvectors, rows=target).unchecked_product()(scaled)

    def root(self, vectors: Tensor) -> Tensor:
        """Q T^{1/2} times vectors over the eigenvalue grid: draws of N(0, K) from normals."""
        weights = (self.spectrum.shifted - self.noise).clamp_(min=0.0).sqrt_()
        return self.eigenvectors.unchecked_product()(_scale_entries(vectors, weights))

    @cached_property
    def eigenvectors(self) -> Kronecker:
        """Q (M, M)."""
        return Kronecker(*self.spectrum.vectors, workspace=self.kronecker.workspace)

    @cached_property
    def _inverse(self) -> Inverse:
        return self.matrix.inverse()

    @cached_property
    def _observed(self) -> Callable[[Tensor], Tensor]:
        cells = self.rows.cells
        return Selection(self.kronecker, rows=cells, columns=cells).unchecked_product()

    @cached_property
    def missing(self) -> Callable[[Tensor], Tensor]:
        """F times (L,) or (L, c), F = C[Z, Z], for "fill": two Kronecker products."""
        gaps = self.rows.gaps
        return Selection(self._inverse, rows=gaps, columns=gaps).unchecked_product()

    def observed(self, vectors: Tensor) -> Tensor:
        """(K_XX + sigma^2 I) times (N,) or (N, c), for "ignore": one Kronecker product."""
        return self._observed(vectors).add_(vectors * self.noise)

    def on_grid(self, vectors: Tensor) -> Tensor:
        """Values at the observed cells (N, ...) placed on the whole grid (M, ...), zero at gaps."""
        out = vectors.new_zeros(self.size, *vectors.shape[1:])
        out[self.rows.cells] = vectors
        return out

    # -- derivatives ------------------------------------------------------------------------------

    def bilinear_gradient(self, left: Tensor, right: Tensor) -> FactorGradient:
        """Gradient of sum_j left_j^T (K + sigma^2 I) right_j for left, right (M,) or (M, c).

        Not symmetrised. Cost: (3 d - 2) / d Kronecker products per column; memory d vectors over
        the grid.
        """
        *factors, noise = self.matrix._bilinear_derivative(left, right)
        return FactorGradient(factors, noise.squeeze(0))

    def spectral_sum(
        self,
        function: Callable[[Tensor], Tensor],
        slope: Callable[[Tensor], Tensor],
        count: int | None = None,
    ) -> tuple[Tensor, FactorGradient]:
        """Sum of a function of eigenvalues, with gradient; see ``ShiftedSpectrum.function_sum``."""
        value, factors, noise = self.spectrum.function_sum(function, slope, count)
        return value, FactorGradient(factors, noise.squeeze(0))


@dataclass(frozen=True)
class FactorGradient:
    """Derivative of a scalar with respect to K_1 ... K_d and to the noise variance.

    Attributes:
        factors (m_l, m_l): d / d K_l, with entries of K_l as independent variables; (m_l,) for the
            first column of a circulant K_l.
        noise (): d / d sigma^2.
    """

    factors: list[Tensor]
    noise: Tensor

    def __add__(self, other: FactorGradient) -> FactorGradient:
        """Gradient of the sum of two scalars."""
        pairs = zip(self.factors, other.factors, strict=True)
        return FactorGradient([a + b for a, b in pairs], self.noise + other.noise)

    def __mul__(self, scale: float | Tensor) -> FactorGradient:
        """Gradient of a multiple."""
        return FactorGradient([scale * f for f in self.factors], scale * self.noise)

    __rmul__ = __mul__

    def to(self, like: Tensor) -> FactorGradient:
        """The same in the dtype of ``like``."""
        return FactorGradient([f.to(like) for f in self.factors], self.noise.to(like))


def _scale_entries(vectors: Tensor, weights: Tensor) -> Tensor:
    return vectors * (weights if vectors.ndim == 1 else weights.unsqueeze(1))


def _require_definite(factor: Circulant, axis: int) -> None:
    if factor.definite:
        return
    least = float(factor.half_eigenvalues().min())
    raise NotPositiveDefinite(
        f"the covariance of grid axis {axis} cannot be closed to a circle for products by FFT "
        f"({factor.shape[-1]:,} points, an eigenvalue of {least:.1e}): it extends over the "
        "whole length of the axis, or is periodic; start at a shorter lengthscale, take a "
        "kernel that decays, thin the axis or put two columns in its place (such as day and "
        "hour), or set fft_points=None if eigenvectors fit into memory"
    )


# -- dense matrices of small systems --------------------------------------------------------------


def dense_is_cheap(num_observed: int, num_gaps: int) -> bool:
    """Whether a Cholesky factor over the observed cells or over the gaps is cheap."""
    return num_observed <= DENSE_POINTS or num_gaps * (num_gaps + num_observed) <= DENSE_WORK


def factorises_observed(num_observed: int, num_gaps: int) -> bool:
    """Whether a dense route factorises K_XX itself rather than F."""
    return num_observed <= max(num_gaps, 1) or num_observed <= DENSE_POINTS


def observed_covariance(factors: Sequence[Tensor], rows: GriddedRows) -> Tensor:
    """K_XX (N, N) between observed cells, differentiable in the factors.

    Args:
        factors (m_l, m_l), or (m_l,): the first column of a circulant one.

    Cost: d N^2 operations, and d N^2 numbers for a gradient.
    """
    return reduce(
        operator.mul, map(_entries_between, factors, split_index(rows.cells, rows.grid.shape))
    )


def _entries_between(factor: Tensor, index: Tensor) -> Tensor:
    """Entries of a factor, or of the circulant with that first column, between points."""
    if factor.ndim == 2:
        return factor[index][:, index]
    return factor[(index.unsqueeze(1) - index).remainder_(factor.shape[0])]


def observed_factor(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor of K_XX + sigma^2 I (N, N)."""
    name = "the covariance of the observed cells plus noise"
    return cholesky(matrix, name=name, ladder=(0.0,))[0]


def gap_columns(system: GridSystem) -> tuple[Tensor, Iterator[Tensor]]:
    """Lower factor (L, L) of F = C[Z, Z], and C[:, Z] R (M, c) by columns of R, R R^T = F^{-1}.

    Cost: 4 L Kronecker products, L^2 numbers.
    """
    like, columns = system.spectrum.shifted, blocks(system.num_gaps, system.size)
    eye = torch.eye(system.num_gaps, dtype=like.dtype, device=like.device)
    whole = torch.cat([system.missing(eye[:, block]) for block in columns], 1)
    lower, _ = cholesky(0.5 * (whole + whole.mT), name="C at the gaps", ladder=(0.0,))
    root = torch.linalg.solve_triangular(lower.mT, eye, upper=True)
    return lower, (system.inverse(system.rows.gaps, None, root[:, block]) for block in columns)


def blocks(count: int, size: int) -> list[slice]:
    """``count`` columns over ``size`` cells in blocks of at most ``BLOCK_NUMBERS`` entries."""
    return list(row_slices(count, max(1, BLOCK_NUMBERS // size)))
