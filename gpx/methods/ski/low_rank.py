"""Low-rank parts of a grid's kernel matrix, K_UU ~ C^T C.

They precondition solves, reduce the error of the log-determinant and give predictive variances.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.linalg import pivoted_cholesky, running_sum
from gpx.linalg.interpolation import Outside
from gpx.linalg.kronecker import flatten_index, kronecker_matmul, kronecker_vector, split_index
from gpx.methods.ski.axis_spectra import AxisSpectra
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.pairs import gram_of_pairs, pair_entries, pair_gradient, rayleigh_quotients
from gpx.operators import Interpolation

TABLE_ENTRIES = 1 << 25
"""Most entries of the table behind a Gram matrix; limits the rank."""


class LowRankPart(ABC):
    """C (r, m) with C^T C near K_UU on the m points of a grid.

    Attributes:
        below: whether C^T C <= K_UU, in the order of positive semi-definite matrices.
        missing (): largest prior variance at a grid point that C lacks.
        complete: whether the trace of K - C^T C is known to be within the tolerance.
        threshold (): larger eigenvalues of K are in C; None if unknown.
    """

    below: bool = True
    complete: bool = False
    missing: Tensor
    threshold: Tensor | None = None

    @property
    @abstractmethod
    def rank(self) -> int:
        """r."""

    def entries_at(self, grid: InterpolationGrid) -> int:
        """Numbers that ``at`` needs for every input."""
        return max(1, self.rank)

    @abstractmethod
    def project(self, values: Tensor) -> Tensor:
        """C times values (m, c): (r, c)."""

    @abstractmethod
    def expand(self, low: Tensor) -> Tensor:
        """C^T times low (r, c): (m, c)."""

    @abstractmethod
    def at(self, weights: Interpolation, x: Tensor, outside: Outside) -> Tensor:
        """C W_x^T (r, t) for inputs x (t, d) and their weights W_x."""

    @abstractmethod
    def picked(self, low: Tensor, places: Tensor) -> Tensor:
        """C^T low (m, t) for low (r, t), at the grid points ``places`` (t, q) of each column."""


class PivotedPart(LowRankPart):
    """C by greedy pivoted Cholesky, stored as an array.

    Args:
        factor (r, m): C.
        missing (): see ``LowRankPart``.

    Cost: memory r m; a product r m per column.
    """

    def __init__(self, factor: Tensor, missing: Tensor) -> None:
        self.factor, self.missing = factor, missing

    @classmethod
    @torch.no_grad()
    def of(cls, lags: Tensor, grid: InterpolationGrid, rank: int, tolerance: float) -> PivotedPart:
        """Pivots of a stationary kernel on a regular grid, until the trace error is ``tolerance``.

        Cost: m r^2 multiply-adds; rows of K are looked up among the lags.
        """
        every = torch.arange(grid.size, device=lags.device)
        places = torch.stack(split_index(every, grid.shape), -1)

        def rows(chosen: Tensor) -> Tensor:
            apart = (places[chosen].unsqueeze(1) - places).abs()
            return lags[apart.unbind(-1)]

        diagonal = lags.reshape(-1)[:1].expand(grid.size)
        found = pivoted_cholesky(rows, diagonal, min(rank, grid.size), tolerance=tolerance)
        part = cls(found.factor, found.residual.max())
        part.complete = bool(found.residual.sum() <= tolerance)
        return part

    @property
    def rank(self) -> int:
        """r."""
        return len(self.factor)

    def entries_at(self, grid: InterpolationGrid) -> int:
        """As in ``LowRankPart``: columns of C are looked up at every point of a stencil."""
        return max(1, self.rank) * grid.row_weights

    def project(self, values: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return self.factor @ values

    def expand(self, low: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return self.factor.mT @ low

    def at(self, weights: Interpolation, x: Tensor, outside: Outside) -> Tensor:
        """As in ``LowRankPart``."""
        return torch.einsum("rtq,tq->rt", self.factor[:, weights.indices], weights.values)

    def picked(self, low: Tensor, places: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return torch.einsum("rtq,rt->tq", self.factor[:, places], low)


class EigenPart(LowRankPart):
    """C = diag(roots) V^T, V columns of the Kronecker product of the axes' eigenvectors.

    C is not stored as an array: memory is sum_l m_l c_l for c_l eigenvectors of axis l. If K_UU is
    the Kronecker product of the axes' matrices, V are its leading eigenvectors, the best choice for
    this rank. Otherwise (radial kernels of two and three inputs) V nearly diagonalises K_UU, and
    the roots are those of the diagonal of V^T K V.

    Args:
        grid: for the weights of inputs along each axis.
        vectors: (m_l, c_l) of every axis.
        columns (r, d): index of the eigenvector of each axis.
        roots (r,): square roots of the variance along each column.
        missing (): see ``LowRankPart``.
        values: (c_l,) eigenvalues of every axis, if K_UU is their Kronecker product.

    Cost: a product m c_1 + ... multiply-adds per column.
    """

    def __init__(
        self,
        grid: InterpolationGrid,
        vectors: Sequence[Tensor],
        columns: Tensor,
        roots: Tensor,
        missing: Tensor,
        values: Sequence[Tensor] | None = None,
    ) -> None:
        self.grid, self.vectors, self.values = grid, tuple(vectors), values
        self.columns, self.roots, self.missing = columns, roots, missing
        self.threshold = roots.min().square() if roots.numel() else missing
        self.below = values is not None
        self._box = [v.shape[1] for v in vectors]
        self._place = flatten_index(columns.unbind(1), self._box)

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        spectra: AxisSpectra,
        grid: InterpolationGrid,
        rank: int,
        tolerance: float,
        prior: Tensor,
        lags: Tensor | None = None,
    ) -> EigenPart:
        """C for K = A_1 x A_2 x ..., with as few vectors as the trace error ``tolerance`` allows.

        Args:
            spectra: of the A_l.
            prior: diagonal of K, (m,) or ().
            lags: of K if it is no such product; the A_l are then K along one axis each.
        """
        values, vectors = spectra.values, spectra.vectors
        if lags is None:
            every = kronecker_vector(values)
        else:
            every = rayleigh_quotients(vectors, lags).flatten().clamp_min(0.0)
        order = every.argsort(descending=True, stable=True)
        left = running_sum(every[order].flip(0)).flip(0)  # trace error of stopping before each
        # at least one, even if all of K is negligible compared with the noise
        count = min(rank, len(order), max(1, int((left > tolerance).sum())))
        sizes = [v.shape[1] for v in vectors]
        while True:
            columns = torch.stack(split_index(order[:count], sizes), -1)
            box = [int(c.max()) + 1 if count else 0 for c in columns.unbind(1)]
            if pair_entries(box) <= TABLE_ENTRIES:
                break
            count = int(0.9 * count)
        part = cls(
            grid,
            [v[:, :c].contiguous() for v, c in zip(vectors, box, strict=True)],
            columns,
            every[order[:count]].sqrt(),
            every.new_zeros(()),
            [v[:c] for v, c in zip(values, box, strict=True)] if lags is None else None,
        )
        rest = left[count] if count < len(order) else left.new_zeros(())
        part.complete = part.below and bool(rest <= tolerance)  # else more is left out than that
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

    def picked(self, low: Tensor, places: Tensor) -> Tensor:
        """As in ``LowRankPart``; places are stencils, of the same width along every axis."""
        table = self._in_box(self.roots.unsqueeze(1) * low).mT  # (t, c_1 ... c_d)
        d, t = len(self.vectors), len(places)
        width = round(places.shape[1] ** (1.0 / d))
        along = split_index(places[:, 0], [len(v) for v in self.vectors])
        steps = torch.arange(width, device=places.device)
        for v, first in zip(self.vectors, along, strict=True):
            table = table.reshape(t, v.shape[1], -1)
            # the axis goes, its points come last
            table = torch.einsum("tcr,tsc->trs", table, v[first.unsqueeze(1) + steps])
        return table.reshape(t, -1)

    def gram(self, moments: Tensor) -> Tensor:
        """C W^T W C^T (r, r) from ``weight_moments``."""
        found = gram_of_pairs(self.vectors, self.columns, moments)
        return found.mul_(self.roots).mul_(self.roots.unsqueeze(1))

    def axis_gradients(self, inverse: Tensor, scale: Tensor) -> list[Tensor]:
        """Gradient of tr(N V^T K V) by the matrix of each axis, S N S = I - B^{-1}, S the roots.

        V^T K V is diagonal, so that only entries of N with equal columns of all other axes count.

        Args:
            inverse (r, r), scale (r,): B^{-1}_ij = scale_i scale_j inverse_ij.
        """
        assert self.values is not None
        found = []
        for axis, v in enumerate(self.vectors):
            own, strength = self.columns[:, axis], torch.ones_like(self.roots)
            others = torch.zeros_like(own)
            for i, values in enumerate(self.values):
                if i != axis:
                    others = others * len(values) + self.columns[:, i]
                    strength = strength * values[self.columns[:, i]]
            kinds, group = torch.unique(others, return_inverse=True)
            # which row of N has these columns; none: -1
            row = own.new_full((len(kinds), v.shape[1]), -1)
            row[group, own] = torch.arange(len(own), device=own.device)
            there = row >= 0
            blocks = inverse[row.unsqueeze(2), row.unsqueeze(1)].to(scale)
            shares = torch.where(there, scale[row], 0.0)
            inner = blocks.mul_(-shares.unsqueeze(1)).mul_(shares.unsqueeze(2))
            # I - B^{-1} cancels where a root is small, and dK is small there, too
            inner.diagonal(dim1=1, dim2=2).add_(1.0)
            weight = torch.where(there, self.roots[row].reciprocal(), 0.0)
            inner.mul_(weight.unsqueeze(1)).mul_((weight * strength[row]).unsqueeze(2))
            found.append(v @ inner.sum(0) @ v.mT)
        return found

    def axis_gradients_within(self, values: Tensor) -> list[Tensor]:
        """Gradient of sum_c values_c^T P K P values_c by the matrix of each axis; P = V V^T.

        Args:
            values (m, c).
        """
        assert self.values is not None
        box = self._in_box(self._columns_of(values)).reshape(*self._box, -1)
        found = []
        for axis, v in enumerate(self.vectors):
            scaled = box
            for other, own in enumerate(self.values):
                if other != axis:
                    shape = [1] * box.ndim
                    shape[other] = -1
                    scaled = scaled * own.reshape(shape)
            left, right = (b.movedim(axis, 0).reshape(v.shape[1], -1) for b in (scaled, box))
            found.append(v @ (left @ right.mT) @ v.mT)
        return found

    def lag_gradient(self, matrix: Tensor) -> Tensor:
        """Gradient of tr(M V^T K V) by the lags of K, (m_1, ..., m_d), for M (r, r)."""
        return pair_gradient(self.vectors, self.columns, matrix)

    def _columns_of(self, values: Tensor) -> Tensor:
        return kronecker_matmul([v.mT for v in self.vectors], values)[self._place]

    def _in_box(self, low: Tensor) -> Tensor:
        box = low.new_zeros(math.prod(self._box), low.shape[1])
        box[self._place] = low
        return box
