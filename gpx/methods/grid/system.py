"""K + sigma^2 I over a grid and over its observed cells, through small factors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite
from gpx.linalg import kronecker_vector
from gpx.linalg.circulant_factor import CirculantFactor, FourierVectors
from gpx.linalg.kronecker_workspace import KroneckerWorkspace
from gpx.methods.grid.axes import GriddedRows


class GridSystem:
    """K = K_1 x ... x K_d on the whole grid and its restrictions to observed cells X and gaps Z.

    A factor of an axis closed to a circle is circulant: it and its eigenvectors go by FFT.

    With K_l = Q_l diag(lambda_l) Q_l^T: C = (K + sigma^2 I)^{-1} = Q (T + sigma^2 I)^{-1} Q^T costs
    two Kronecker products. All vectors are (k,) or (k, c).

    Args:
        factors (m_l, m_l): K_l, symmetric positive semi-definite; or (m_l,), the first column of a
            circulant one. Detached.
        noise (): sigma^2 > 0.
        rows: cells and gaps.
        workspace: buffers to use; systems at other hyperparameters may share them.

    Attributes:
        vectors, values: Q_l (m_l, m_l) and lambda_l (m_l,), rounded negative values raised to 0.
        shifted (M,): lambda_i + sigma^2 over the grid of eigenvalues.

    Raises:
        NotPositiveDefinite: a factor is not finite, or has an eigenvalue that rounding does not
            explain.

    Cost: sum_l 9 m_l^3 once; memory sum_l 2 m_l^2 + M.
    Source: Evans thesis, sections 2.3 and 3.3.
    """

    def __init__(
        self,
        factors: Sequence[Tensor],
        noise: Tensor,
        rows: GriddedRows,
        workspace: KroneckerWorkspace | None = None,
    ) -> None:
        detached = [f.detach().contiguous() for f in factors]
        self.factors: list[Tensor | CirculantFactor] = [
            CirculantFactor(f) if f.ndim == 1 else f for f in detached
        ]
        self.noise = noise.detach()
        self.rows = rows
        self.workspace = KroneckerWorkspace(rows.grid.shape) if workspace is None else workspace
        pairs = [_eigh(f, axis) for axis, f in enumerate(self.factors)]
        self.values = [value for value, _ in pairs]
        self.vectors = [vector for _, vector in pairs]
        self.transposed = [
            q.mT.contiguous() if isinstance(q, Tensor) else q.mT for q in self.vectors
        ]
        spectrum = kronecker_vector(self.values)
        # of a single axis these are the values themselves
        self.shifted = spectrum.add_(self.noise) if len(pairs) > 1 else spectrum + self.noise

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
    def inner_size(self) -> int:
        """Cells without those that close an axis to a circle."""
        return self.rows.grid.inner_size

    @property
    def circular(self) -> bool:
        """Whether an axis is closed to a circle."""
        return any(isinstance(f, CirculantFactor) for f in self.factors)

    @property
    def largest(self) -> Tensor:
        """Largest eigenvalue of K, ()."""
        return kronecker_vector([v.max().reshape(1) for v in self.values]).squeeze(0)

    # -- products between lists of cells ----------------------------------------------------------

    def covariance(self, source: Tensor | None, target: Tensor | None, vectors: Tensor) -> Tensor:
        """K[target, source] times vectors; None is the whole grid. Cost: one Kronecker product."""
        grid = self._enter(source, vectors)
        return self._leave(self.workspace.product(self.factors, grid), target, vectors)

    def inverse(self, source: Tensor | None, target: Tensor | None, vectors: Tensor) -> Tensor:
        """C[target, source] times vectors; None is the whole grid. Two Kronecker products."""
        grid = self.workspace.product(self.transposed, self._enter(source, vectors))
        grid /= self.shifted
        return self._leave(self.workspace.product(self.vectors, grid), target, vectors)

    def inverse_root(self, target: Tensor | None, vectors: Tensor) -> Tensor:
        """(Q (T + sigma^2)^{-1/2})[target] times vectors over the eigenvalue grid."""
        grid = self._enter(None, vectors) * self.shifted.rsqrt()
        return self._leave(self.workspace.product(self.vectors, grid), target, vectors)

    def root(self, vectors: Tensor) -> Tensor:
        """Q T^{1/2} times vectors over the eigenvalue grid: draws of N(0, K) from normals."""
        weights = (self.shifted - self.noise).clamp_(min=0.0).sqrt_()
        grid = self._enter(None, vectors) * weights
        return self._leave(self.workspace.product(self.vectors, grid), None, vectors)

    def observed(self, vectors: Tensor) -> Tensor:
        """(K_XX + sigma^2 I) times (N,) or (N, c): "ignore the gaps", one Kronecker product."""
        cells = self.rows.cells
        return self.covariance(cells, cells, vectors).add_(vectors * self.noise)

    def missing(self, vectors: Tensor) -> Tensor:
        """F times (L,) or (L, c), F = C[Z, Z]: "fill the gaps", two Kronecker products."""
        return self.inverse(self.rows.gaps, self.rows.gaps, vectors)

    def spread(self, vectors: Tensor) -> Tensor:
        """Values at the observed cells (N, ...) put on the whole grid (M, ...), zero at gaps."""
        out = vectors.new_zeros(self.size, *vectors.shape[1:])
        out[self.rows.cells] = vectors
        return out

    def _enter(self, cells: Tensor | None, vectors: Tensor) -> Tensor:
        if cells is not None:
            return self.workspace.scatter(cells, vectors)
        return vectors.unsqueeze(0) if vectors.ndim == 1 else vectors.mT.contiguous()

    def _leave(self, grid: Tensor, cells: Tensor | None, like: Tensor) -> Tensor:
        if cells is not None:
            return self.workspace.gather(grid, cells, like)
        out = grid.clone()  # the workspace will be written again
        return out.squeeze(0) if like.ndim == 1 else out.mT


def _eigh(factor: Tensor | CirculantFactor, axis: int) -> tuple[Tensor, Tensor | FourierVectors]:
    """Eigenvalues (raised to zero) and eigenvectors, worked out in float64."""
    if isinstance(factor, CirculantFactor):
        return _circulant_eigh(factor, axis)
    if not bool(torch.isfinite(factor).all()):
        raise NotPositiveDefinite(
            f"the covariance of grid axis {axis} ({factor.shape[0]} points) has entries that are "
            "not finite; check the lengthscales"
        )
    values, vectors = torch.linalg.eigh(factor.double())
    least, most = float(values[0]), float(values[-1])
    # the factor's entries carry the rounding of their own dtype
    allowed = 100.0 * torch.finfo(factor.dtype).eps * factor.shape[0] * max(most, 0.0)
    if least < -allowed or not most > 0.0:
        raise NotPositiveDefinite(
            f"the covariance of grid axis {axis} ({factor.shape[0]} points) has eigenvalues from "
            f"{least:.2e} to {most:.2e}; expected none below zero. Is its kernel positive definite?"
        )
    return values.clamp(min=0.0).to(factor.dtype), vectors.to(factor.dtype).contiguous()


def _circulant_eigh(factor: CirculantFactor, axis: int) -> tuple[Tensor, FourierVectors]:
    size, values = factor.shape[0], factor.values
    if not factor.definite:
        raise NotPositiveDefinite(
            f"the covariance of grid axis {axis} cannot be closed to a circle for products by FFT "
            f"({size:,} points, an eigenvalue of {float(values.min()):.1e}): it reaches over the "
            "whole length of the axis, or repeats itself; start at a shorter lengthscale, take a "
            "kernel that dies out, thin the axis or put two columns in its place (such as day and "
            "hour), or set approx.fft_points=null where eigenvectors fit memory"
        )
    return values.clamp(min=0.0), FourierVectors(size)
