"""Repeated Kronecker products with square factors between cells of a grid, in two kept buffers."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.kronecker import Factor


class KroneckerWorkspace:
    """Kronecker products that alternate between two kept buffers over a grid.

    On CPUs allocating an array of 80 MB costs as much as the arithmetic on it, so iterations keep
    their arrays. Vectors over the grid are stored as (c, M), one contiguous row per vector: a batch
    of c matrix products per factor, without permutations. Every thread has buffers of its own, so
    that several may predict with one posterior; copies and pickles have none.

    Args:
        sizes: m_1 ... m_d of the grid.

    Cost: a product 2 c M sum_l m_l operations; memory two buffers of c M numbers
    for each thread.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.cells = math.prod(self.sizes)
        self._kept = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.sizes,)

    def scatter(self, cells: Tensor, vectors: Tensor) -> Tensor:
        """Vectors (k, c) at ``cells`` (k,), zero elsewhere: (c, M), valid until the next call.

        Raises ShapeError where the numbers of rows and cells differ.
        """
        if vectors.shape[0] != cells.shape[0]:
            raise ShapeError(f"{vectors.shape[0]} rows for {cells.shape[0]} cells")
        rows = vectors.mT
        grid, _ = self._pair(rows, rows.shape[0])
        grid.zero_()
        return grid.scatter_(1, cells.expand(rows.shape[0], -1), rows)

    def product(self, factors: Sequence[Factor], vectors: Tensor) -> Tensor:
        """(A_1 x ... x A_d) times each row of (c, M): (c, M), valid until the next call.

        A factor is a tensor or an operator. ``vectors`` may be a result of this workspace; it is
        overwritten then.
        """
        count = vectors.shape[0]
        if vectors.shape != (count, self.cells):
            raise ShapeError(f"expected (c, {self.cells}), got {tuple(vectors.shape)}")
        if count == 0:
            return vectors
        source = vectors.contiguous()
        first, second = self._pair(source, count)
        if source.data_ptr() == first.data_ptr():
            first, second = second, first
        for f in reversed(factors):
            m = f.shape[0]
            columns = source.view(count, -1, m).mT
            if not isinstance(f, Tensor):
                first.view(count, m, -1).copy_(f.matmul(columns))
            elif count == 1:
                torch.mm(f, columns.squeeze(0), out=first.view(m, -1))
            else:
                torch.bmm(f.expand(count, m, m), columns, out=first.view(count, m, -1))
            source, first, second = first, second, first
        return source

    def _pair(self, like: Tensor, count: int) -> tuple[Tensor, Tensor]:
        kept: tuple[Tensor, Tensor] | None = getattr(self._kept, "buffers", None)
        if (
            kept is None
            or kept[0].shape[0] != count
            or (kept[0].dtype, kept[0].device) != (like.dtype, like.device)
        ):
            self._kept.buffers = None  # freed before the new ones are made
            shape = (count, self.cells)
            with torch.inference_mode(False):  # what is made in that mode cannot be written after
                kept = self._kept.buffers = (like.new_empty(shape), like.new_empty(shape))
        return kept
