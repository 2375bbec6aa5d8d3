"""Low rank plus noise at some cells of a grid, with a factor that is never formed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.khatri_rao import khatri_rao_columns
from gpx.linalg.kronecker import flatten_index, kronecker_matmul, split_index
from gpx.linalg.preconditioners.low_rank import Capacitance, Woodbury

BLOCK_BYTES = 1 << 28
"""Largest buffer in bytes over several columns or rows; more are processed in blocks."""


class GridLowRankPlusNoise(Woodbury):
    """Q = B B^T + D with B = W (Q_1 x ... x Q_d) S^T diag(w), in O(M) memory for M grid cells.

    W picks the cells where there are data, S picks p columns of the Kronecker product. A product
    with B scatters p numbers onto the box of columns in use, multiplies by the factors and gathers
    n cells; no (n, p) array exists.

    The Gram matrix B^T D^{-1} B is a contraction of the grid of inverse noises with the factors'
    pairs of columns, [Q_l]_{x a} [Q_l]_{x b}, hence one rectangular Kronecker product with c_l^2
    columns for c_l columns in use per axis. Where its intermediates would exceed a few grids, the
    rows of W Q S^T are formed in blocks instead, over the cells with data or, for constant noise
    and if they are fewer, over those without.

    Args:
        factors (m_l, m_l'): Q_l; orthonormal columns if ``orthonormal``.
        cells (n,): flat index of each row, row-major; duplicates are allowed.
        columns (p, d): which column of each factor.
        weights (p,): w.
        noise: D as sigma^2 or (n,).
        below_kernel: see ``Preconditioner``.
        orthonormal: whether Q_l^T Q_l = I, so that the sum over all cells is known.

    Cost: an application 2 c (M sum_l c_l) operations at most and O(M c + p^2) memory, in blocks of
    columns; the build M sum_l c_l^2 (times the growth of the box) or 2 min(n, M - n) p^2.
    Source: Evans thesis, section 3.3.4 (the Kronecker form of the applications).
    """

    def __init__(
        self,
        factors: Sequence[Tensor],
        cells: Tensor,
        columns: Tensor,
        weights: Tensor,
        noise: Tensor | float,
        *,
        below_kernel: bool = False,
        orthonormal: bool = True,
    ) -> None:
        if cells.ndim != 1 or columns.ndim != 2 or columns.shape[1] != len(factors):
            raise ShapeError(
                f"cells {tuple(cells.shape)} and columns {tuple(columns.shape)}; expected (n,) and "
                f"(p, {len(factors)})"
            )
        super().__init__(
            cells.shape[0],
            noise,
            dtype=factors[0].dtype,
            device=factors[0].device,
            below_kernel=below_kernel,
        )
        self._grid = [f.shape[0] for f in factors]
        self._size = math.prod(self._grid)
        if cells.numel() and not (int(cells.min()) >= 0 and int(cells.max()) < self._size):
            raise ShapeError(
                f"cells range from {int(cells.min())} to {int(cells.max())}, the grid has "
                f"{self._size}"
            )
        self._cells = cells
        used = [torch.unique(c, return_inverse=True) for c in columns.unbind(1)]
        self._factors = [f.detach()[:, u] for f, (u, _) in zip(factors, used, strict=True)]
        self._columns = torch.stack([place for _, place in used], -1)
        self._weights = weights.detach()
        self._box = [f.shape[1] for f in self._factors]
        self._place = flatten_index(self._columns.unbind(1), self._box)
        self.capacitance = Capacitance(self._gram_matrix(orthonormal))

    def _project(self, vectors: Tensor) -> Tensor:
        """A times vectors."""
        return self._in_column_blocks(self._project_block, vectors)

    def _project_block(self, block: Tensor) -> Tensor:
        grid = block.new_zeros(self._size, block.shape[-1])
        grid.index_add_(0, self._cells, block * self._inverse_root.unsqueeze(-1))
        low = kronecker_matmul([f.mT for f in self._factors], grid)[self._place]
        return self._weights.unsqueeze(-1) * low

    def _expand(self, low: Tensor) -> Tensor:
        """A^T times low."""
        return self._in_column_blocks(self._expand_block, low)

    def _expand_block(self, low: Tensor) -> Tensor:
        box = low.new_zeros(math.prod(self._box), low.shape[-1])
        box[self._place] = self._weights.unsqueeze(-1) * low
        grid = kronecker_matmul(self._factors, box)
        return grid[self._cells].mul_(self._inverse_root.unsqueeze(-1))

    def _in_column_blocks(self, function: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
        block = vectors.unsqueeze(-1) if vectors.ndim == 1 else vectors
        step = max(1, BLOCK_BYTES // (block.element_size() * self._size))
        parts = [function(part) for part in block.split(step, -1)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return out.squeeze(-1) if vectors.ndim == 1 else out

    def _gram_matrix(self, orthonormal: bool) -> Tensor:
        inverse = self._diagonal.double().reciprocal()
        density = inverse.new_zeros(self._size)  # sum of 1 / noise over the data of each cell
        density.index_add_(0, self._cells, inverse.expand(self.shape[0]).contiguous())
        factors = [f.double() for f in self._factors]
        if self._pairs_fit():
            gram = self._gram_by_pairs(factors, density)
        else:
            gram = self._gram_by_rows(factors, density, orthonormal)
        weights = self._weights.double()
        return gram * weights * weights.unsqueeze(-1)

    def _pairs_fit(self) -> bool:
        """Whether every intermediate of the contraction is at most a few grids or Gram matrices."""
        squares = [c * c for c in self._box]
        largest = max(
            math.prod(squares[:done]) * math.prod(self._grid[done:]) for done in range(len(squares))
        )
        largest = max(
            largest,
            math.prod(squares),
            *(math.prod(self._grid[:k]) * math.prod(squares[k:]) for k in range(len(squares))),
        )
        return largest <= 4 * max(self._size, len(self._weights) ** 2)

    def _gram_by_pairs(self, factors: list[Tensor], density: Tensor) -> Tensor:
        pairs = [(f.unsqueeze(-1) * f.unsqueeze(-2)).flatten(-2).mT for f in factors]
        table = kronecker_matmul(pairs, density.unsqueeze(-1)).squeeze(-1)
        squares = [c * c for c in self._box]
        index: Tensor | int = 0
        for place, c, square in zip(self._columns.unbind(1), self._box, squares, strict=True):
            index = index * square + place.unsqueeze(-1) * c + place
        assert isinstance(index, Tensor)
        return table[index]

    def _gram_by_rows(self, factors: list[Tensor], density: Tensor, orthonormal: bool) -> Tensor:
        p = len(self._weights)
        top = density.max() if density.numel() else density.sum()
        # orthonormal columns: the sum over all cells is I, so that with constant noise the cells
        # without data can be subtracted instead, if they are fewer
        complement = (
            orthonormal
            and 2 * int((density > 0.0).sum()) > self._size
            and bool(((density == 0.0) | (density == top)).all())
        )
        gram = torch.eye(p, dtype=density.dtype, device=density.device) * (
            top if complement else 0.0
        )
        chosen = ((density == 0.0) if complement else (density > 0.0)).nonzero().squeeze(-1)
        # a block is no larger than a grid or the Gram matrix
        step = max(1, min(max(self._size // p, p), BLOCK_BYTES // (density.element_size() * p)))
        for part in chosen.split(step):
            place = split_index(part, self._grid)
            rows = khatri_rao_columns(
                [f[i] for f, i in zip(factors, place, strict=True)], self._columns
            )
            scale = -top if complement else density[part]
            gram.addmm_(rows.mT, rows * scale.unsqueeze(-1))
        return gram
