"""Covariances between any points and a whole grid, contracted axis by axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from gpx.linalg import flatten_index, kronecker_matmul, kronecker_vector, split_index
from gpx.methods.grid.axes import CartesianGrid
from gpx.methods.grid.circle_rows import CircleRows, CrossFactor, cross_factors
from gpx.methods.grid.factors import AxisKernels
from gpx.operators.circulant import FourierVectors

BLOCK_NUMBERS = 2**24
"""Numbers in one block of partly contracted rows."""


class GridPoints:
    """Rows of inputs seen from a grid: g(x) = k(grid, x) is a Kronecker product of small vectors.

    Points that share coordinates (another grid, held-out cells) are contracted together, as a
    rectangular Kronecker product over their distinct coordinates, where that is less work than one
    after the other.

    Args:
        grid, kernels: of the model.
        x (t, d): inputs, on the grid, between its points or beyond it.

    Attributes:
        cross (q_l, m_l): per axis, covariances of the distinct coordinates with the axis; rows on
            demand where the axis is closed to a circle.
        place (t,): per axis, which of them each point has.
        prior (t,): k(x, x).
        within (t,): whether each is within half the circle of every point of an axis that is closed
            to one; elsewhere its covariances with the cells beyond the axis fit no process there.
        reached (t,): whether its covariances with the data have not died out along such an axis.

    Source: Evans thesis, section 3.4.
    """

    def __init__(self, grid: CartesianGrid, kernels: AxisKernels, x: Tensor) -> None:
        distinct, self.place = [], []
        for columns in grid.groups:
            found, inverse = torch.unique(x[:, list(columns)], dim=0, return_inverse=True)
            distinct.append(found)
            self.place.append(inverse)
        with torch.no_grad():
            self.cross = cross_factors(grid, kernels, distinct)
            parts = kernels.diagonals(grid, distinct)
            self.prior = math.prod(
                (d[i] for d, i in zip(parts, self.place, strict=True)), start=x.new_ones(())
            )
        assert isinstance(self.prior, Tensor)
        self.within = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
        self.reached = self.within.clone()
        for g, i in zip(self.cross, self.place, strict=True):
            if isinstance(g, CircleRows):
                self.within &= g.within[i]
                self.reached &= g.reached[i]
        self._grid_size = grid.size

    def squared(self, vectors: Sequence[Tensor | FourierVectors]) -> GridPoints:
        """The same points with the elementwise squares of cross_l Q_l per axis.

        To be contracted with functions of the eigenvalues only.
        """
        found: list[CrossFactor] = []
        for g, q in zip(self.cross, vectors, strict=True):
            if isinstance(g, CircleRows):
                found.append(g.squared())
            else:
                assert isinstance(g, Tensor)
                assert isinstance(q, Tensor)
                found.append((g @ q).square())
        return self.with_cross(found)

    def with_cross(self, cross: Sequence[CrossFactor]) -> GridPoints:
        """The same points with other matrices (q_l, m_l) per axis."""
        other = GridPoints.__new__(GridPoints)
        other.cross, other.place, other.prior = list(cross), self.place, self.prior
        other.within, other.reached = self.within, self.reached
        other._grid_size = self._grid_size
        return other

    def columns(self, rows: slice) -> Tensor:
        """k(x, grid) of some points, expanded: (rows, M)."""
        return kronecker_vector([g[i[rows]] for g, i in zip(self.cross, self.place, strict=True)])

    def observed(self, rows: slice, cells: Tensor) -> Tensor:
        """k(x, cells) of some points, (rows, N), without the rest of the grid.

        Cost: d rows (N + m_l) operations and numbers.
        """
        sizes = [g.shape[1] for g in self.cross]
        parts = zip(self.cross, self.place, split_index(cells, sizes), strict=True)
        return reduce(torch.mul, (g[i[rows]][:, j] for g, i, j in parts))

    def contract(self, vectors: Tensor) -> Tensor:
        """g(x)^T vectors, (t,) or (t, c), for vectors over the grid, (M,) or (M, c).

        Cost per vector: as a product over the distinct coordinates, or t M. Memory of several
        vectors: a few times theirs.
        """
        count = self.place[0].shape[0]
        if not count:
            return vectors.new_zeros(0, *vectors.shape[1:])
        sizes = [g.shape[0] for g in self.cross]
        if math.prod(sizes) <= 4 * (self._grid_size + count):
            columns = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
            found = kronecker_matmul(self.cross, columns)[flatten_index(self.place, sizes)]
            return found.squeeze(1) if vectors.ndim == 1 else found
        if vectors.ndim == 1:
            return self._contract_all(vectors)
        return torch.stack([self._contract_all(v) for v in vectors.unbind(1)], 1)

    def _contract_all(self, vector: Tensor) -> Tensor:
        count = self.place[0].shape[0]
        width = self._grid_size // self.cross[0].shape[1]
        longest = max(g.shape[1] for g in self.cross)
        step = max(1, BLOCK_NUMBERS // max(width, longest))
        found = vector.new_empty(count)
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            found[rows] = self._contract_rows(vector, rows)
        return found

    def _contract_rows(self, vector: Tensor, rows: slice) -> Tensor:
        first = self.cross[0][self.place[0][rows]]
        rest = first @ vector.view(first.shape[1], -1)
        for g, place in zip(self.cross[1:], self.place[1:], strict=True):
            left = g[place[rows]].unsqueeze(1)
            rest = torch.bmm(left, rest.view(left.shape[0], left.shape[2], -1)).squeeze(1)
        return rest.squeeze(1)
