"""A kernel matrix whose rows are distributed over processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from gpx.backends.entries import Entries
from gpx.linalg.processes import Processes

MIN_ENTRIES = 2**18
"""Products with a smaller matrix take less time than a message."""


class Engine(Protocol):
    """Products with a kernel matrix and their gradient, as every backend provides them."""

    def product(self, entries: Entries, right: Tensor, *, transposed: bool) -> Tensor:
        """K @ right (n2, c), or K^T @ right (n1, c)."""

    def derivative(
        self, entries: Entries, left: Tensor, right: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradient of sum_c left_c^T K right_c for every tensor of ``entries``."""


@dataclass
class _Piece:
    """Some columns of this process's rows, with their engine."""

    columns: slice
    entries: Entries
    engine: Engine


def is_shared(entries: Entries, processes: Processes) -> bool:
    """Whether products with this matrix are distributed over processes."""
    n1, n2 = entries.shape
    return processes.count > 1 and n1 * n2 >= MIN_ENTRIES


def own_rows(entries: Entries, processes: Processes) -> Entries:
    """The rows of this process as a matrix, for which its backend is chosen."""
    rows = processes.part(entries.shape[0])
    return replace(entries, x1=entries.x1[rows], square=False)


class Sharded:
    """Products and gradients with each process's own rows, in a backend chosen for them.

    In a square matrix the diagonal block stays square, with its exact diagonal; the columns before
    and after it are pieces of their own.

    Cost: that of the backend divided by the number of processes, except that both off-diagonal
    triangles are evaluated, plus a message of n numbers per column. A stored matrix is distributed
    as well.

    Args:
        entries: the matrix; the same in every call.
        processes: those that share it; all of them make the same calls.
        make: creates the engine of a piece.
    """

    def __init__(self, entries: Entries, processes: Processes, make: Callable[[], Engine]) -> None:
        self.processes = processes
        n1, n2 = entries.shape
        self.rows = rows = processes.part(n1)
        cuts = [0, rows.start, rows.stop, n2] if entries.square else [0, n2]
        self._pieces = []
        for start, stop in pairwise(cuts):
            columns = slice(start, stop)
            if stop > start and rows.stop > rows.start:
                x1, x2 = _leaf(entries.x1, rows), _leaf(entries.x2, columns)
                square = entries.square and columns == rows
                piece = replace(entries, x1=x1, x2=x1 if square else x2, square=square)
                self._pieces.append(_Piece(columns, piece, make()))

    def product(self, entries: Entries, right: Tensor, *, transposed: bool) -> Tensor:
        """K @ right (n2, c), or K^T @ right (n1, c); not differentiable."""
        n1, n2 = entries.shape
        if transposed and not entries.square:
            total = right.new_zeros(n2, right.shape[1])
            for piece in self._pieces:
                part = piece.engine.product(piece.entries, right[self.rows], transposed=True)
                total[piece.columns] += part
            self.processes.all_sum(total)
            return total
        part = right.new_zeros(self.rows.stop - self.rows.start, right.shape[1])
        for piece in self._pieces:
            part += piece.engine.product(piece.entries, right[piece.columns], transposed=False)
        return self.processes.all_gather(part, n1)

    def derivative(
        self, entries: Entries, left: Tensor, right: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradient of sum_c left_c^T K right_c for every tensor of ``entries``."""
        totals = [torch.zeros_like(t) if t.requires_grad else None for t in entries.tensors]
        index_of_x2 = 0 if entries.square else 1
        for piece in self._pieces:
            found = piece.engine.derivative(piece.entries, left[self.rows], right[piece.columns])
            targets = [(0, self.rows), (index_of_x2, piece.columns)]
            for (index, rows), gradient in zip(targets, found[:2], strict=True):
                total = totals[index]
                if total is not None and gradient is not None:
                    total[rows] += gradient
            for total, gradient in zip(totals[2:], found[2:], strict=True):
                if total is not None and gradient is not None:
                    total += gradient
        self.processes.all_sum(*(total for total in totals if total is not None))
        return tuple(totals)


def _leaf(x: Tensor, rows: slice) -> Tensor:
    return x.detach()[rows].requires_grad_(x.requires_grad)
