"""The part of a grid's kernel matrix that is kept exactly: C^T C <= K_UU, with C of few rows.

It preconditions solves, makes the log-determinant nearly exact and carries predictive variances.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.linalg import pivoted_cholesky
from gpx.linalg.interpolation import Outside
from gpx.linalg.kronecker import flatten_index, kronecker_matmul, kronecker_vector, split_index
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.pairs import gram_of_pairs, pair_entries
from gpx.operators import Interpolation

TABLE_ENTRIES = 1 << 25
"""Most entries of the table behind a Gram matrix; limits the rank."""
LEAST_EIGENVALUE = 1e-15
"""Eigenvalues of an axis below this share of its largest are rounding."""


class LowRankPart(ABC):
    """C (r, m) with C^T C <= K_UU on the m points of a grid.

    Attributes:
        missing (): largest prior variance at a grid point that C does not carry.
    """

    missing: Tensor

    @property
    @abstractmethod
    def rank(self) -> int:
        """r."""

    @abstractmethod
    def project(self, values: Tensor) -> Tensor:
        """C times values (m, c): (r, c)."""

    @abstractmethod
    def expand(self, low: Tensor) -> Tensor:
        """C^T times low (r, c): (m, c)."""

    @abstractmethod
    def at(self, weights: Interpolation, x: Tensor, outside: Outside) -> Tensor:
        """C W_x^T (r, t) for the weights of inputs x (t, d), given as both."""


class PivotedPart(LowRankPart):
    """C by greedy pivots of the matrix itself, kept as an array.

    Args:
        factor (r, m): C.
        missing (): see ``LowRankPart``.

    Cost: memory r m; a product r m per column.
    """

    def __init__(self, factor: Tensor, missing: Tensor) -> None:
        self.factor, self.missing = factor, missing

    @classmethod
    @torch.no_grad()
    def of(
        cls, lags: Tensor, grid: InterpolationGrid, rank: int, tolerance: float
    ) -> PivotedPart:
        """Of a stationary kernel's lags on a regular grid; stops at a trace error of ``tolerance``.

        Cost: m r^2 multiply-adds; rows of K are looked up among the lags.
        """
        places = torch.stack(
            torch.unravel_index(torch.arange(grid.size, device=lags.device), grid.shape), -1
        )

        def rows(chosen: Tensor) -> Tensor:
            apart = (places[chosen].unsqueeze(1) - places).abs()
            return lags[apart.unbind(-1)]

        diagonal = lags.reshape(-1)[:1].expand(grid.size)
        found = pivoted_cholesky(rows, diagonal, min(rank, grid.size), tolerance=tolerance)
        return cls(found.factor, found.residual.max())

    @property
    def rank(self) -> int:
        """r."""
        return len(self.factor)

    def project(self, values: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return self.factor @ values

    def expand(self, low: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return self.factor.mT @ low

    def at(self, weights: Interpolation, x: Tensor, outside: Outside) -> Tensor:
        """As in ``LowRankPart``."""
        return torch.einsum("rtq,tq->rt", self.factor[:, weights.indices], weights.values)


class EigenPart(LowRankPart):
    """C = diag(roots) V^T, V columns of the Kronecker product of the axes' eigenvectors.

    Never an array: memory sum_l m_l c_l for c_l eigenvectors in use along axis l. The largest
    eigenvalues are kept, which is the best that any C of its rank can do.

    Args:
        grid: for the weights of inputs along each axis.
        vectors: (m_l, c_l) of every axis.
        values: (c_l,) eigenvalues of every axis.
        columns (r, d): which eigenvector of each axis.
        missing (): see ``LowRankPart``.

    Cost: a product m c_1 + ... multiply-adds per column.
    """

    def __init__(
        self,
        grid: InterpolationGrid,
        vectors: Sequence[Tensor],
        values: Sequence[Tensor],
        columns: Tensor,
        missing: Tensor,
    ) -> None:
        self.grid, self.vectors, self.values = grid, tuple(vectors), tuple(values)
        self.columns, self.missing = columns, missing
        self._box = [v.shape[1] for v in vectors]
        self._place = flatten_index(columns.unbind(1), self._box)
        self.roots = kronecker_vector(list(values))[self._place].sqrt()

    @classmethod
    @torch.no_grad()
    def of(
        cls, axes: Sequence[Tensor], grid: InterpolationGrid, rank: int, tolerance: float
    ) -> EigenPart:
        """Of K = axes[0] x axes[1] x ...; as few as a trace error of ``tolerance`` allows.

        Cost: 10 m_l^3 operations per axis.
        """
        values, vectors = [], []
        for matrix in axes:
            found, basis = torch.linalg.eigh(matrix)
            kept = found > LEAST_EIGENVALUE * found[-1]
            values.append(found[kept].flip(0))
            vectors.append(basis[:, kept].flip(1))
        every = kronecker_vector(values)
        order = every.argsort(descending=True, stable=True)
        left = every[order].flip(0).cumsum(0).flip(0)  # trace error of stopping before each
        count = min(rank, len(order), int((left > tolerance).sum()))
        sizes = [len(v) for v in values]
        while True:
            columns = torch.stack(split_index(order[:count], sizes), -1)
            box = [int(c.max()) + 1 if count else 0 for c in columns.unbind(1)]
            if pair_entries(box) <= TABLE_ENTRIES:
                break
            count = int(0.9 * count)
        vectors = [v[:, :c].contiguous() for v, c in zip(vectors, box, strict=True)]
        values = [v[:c] for v, c in zip(values, box, strict=True)]
        prior = kronecker_vector([a.diagonal() for a in axes])
        part = cls(grid, vectors, values, columns, prior.new_zeros(()))
        part.missing = (prior - part.carried()).max().clamp_min(0.0)
        return part

    @property
    def rank(self) -> int:
        """r."""
        return len(self.columns)

    def carried(self) -> Tensor:
        """Diagonal of C^T C, (m,)."""
        squares = [v.square() for v in self.vectors]
        return kronecker_matmul(squares, self._in_box(self.roots.square().unsqueeze(1))).squeeze(1)

    def project(self, values: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return self.roots.unsqueeze(1) * self._columns_of(values)

    def expand(self, low: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return kronecker_matmul(self.vectors, self._in_box(self.roots.unsqueeze(1) * low))

    def within(self, values: Tensor) -> Tensor:
        """V V^T times values (m, c)."""
        return kronecker_matmul(self.vectors, self._in_box(self._columns_of(values)))

    def at(self, weights: Interpolation, x: Tensor, outside: Outside) -> Tensor:
        """As in ``LowRankPart``."""
        found: Tensor = self.roots.unsqueeze(1)
        pairs = self.grid.axis_weights(x, outside)
        for (place, share), v, column in zip(
            pairs, self.vectors, self.columns.unbind(1), strict=True
        ):
            along = torch.einsum("tsc,ts->tc", v[place], share)
            found = found * along.mT[column]
        return found

    def gram(self, moments: Tensor) -> Tensor:
        """C W^T W C^T (r, r) from ``weight_moments``."""
        found = gram_of_pairs(self.vectors, self.columns, moments)
        return found.mul_(self.roots).mul_(self.roots.unsqueeze(1))

    def axis_gradients(self, matrix: Tensor) -> list[Tensor]:
        """Gradient of tr(M V^T K V) by the matrix of each axis, for M (r, r).

        V^T K V is diagonal, so that only entries of M with equal columns of all other axes count.
        """
        found = []
        for axis, v in enumerate(self.vectors):
            others = [i for i in range(len(self.vectors)) if i != axis]
            same = torch.ones_like(matrix, dtype=torch.bool)
            scale = torch.ones_like(self.roots)
            for i in others:
                column = self.columns[:, i]
                same &= column.unsqueeze(1) == column
                scale = scale * self.values[i][column]
            a, b = same.nonzero(as_tuple=True)
            own = self.columns[:, axis]
            inner = v.new_zeros(v.shape[1], v.shape[1])
            inner.index_put_((own[a], own[b]), matrix[a, b] * scale[a], accumulate=True)
            found.append(v @ inner @ v.mT)
        return found

    def _columns_of(self, values: Tensor) -> Tensor:
        return kronecker_matmul([v.mT for v in self.vectors], values)[self._place]

    def _in_box(self, low: Tensor) -> Tensor:
        box = low.new_zeros(math.prod(self._box), low.shape[1])
        box[self._place] = low
        return box
