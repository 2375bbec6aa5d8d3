"""Per-step records of an iteration, stored in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_ROWS = 64
"""Rows of one block."""


class Records:
    """A growing list of tensors of one shape, one per step, stored in blocks of rows.

    Small tensors allocated one by one between large temporaries fragment the heap, so that every
    step would need fresh memory for its vectors.

    Args:
        like: a tensor of the shape and dtype of one record.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._blocks: list[Tensor] = []
        self._count = 0
        self._room: tuple[int, Tensor] | None = None  # number of the row, and the row

    def __len__(self) -> int:
        return self._count

    def room(self) -> Tensor:
        """The row that the next record will fill; a value written there is appended uncopied."""
        if self._count == BLOCK_ROWS * len(self._blocks):
            self._blocks.append(self._like.new_empty(BLOCK_ROWS, *self._like.shape))
        if self._room is None or self._room[0] != self._count:
            place, row = divmod(self._count, BLOCK_ROWS)
            self._room = self._count, self._blocks[place][row]
        return self._room[1]

    def append(self, row: Tensor) -> None:
        """Append a copy of ``row``; no copy where it is ``room()`` itself."""
        room = self.room()
        if row is not room:
            room.copy_(row)
        self._count += 1

    def extend(self, rows: Tensor) -> None:
        """Append copies of rows (k, ...). For a GPU only."""
        done = 0
        while done < len(rows):
            self.room()
            place = self._count % BLOCK_ROWS
            some = rows[done : done + BLOCK_ROWS - place]
            self._blocks[self._count // BLOCK_ROWS][place : place + len(some)] = some
            self._count += len(some)
            done += len(some)

    def truncate(self, count: int) -> None:
        """Drop all but the first ``count`` records."""
        self._count = min(self._count, count)

    def stacked(self) -> Tensor:
        """All records, (t, ...); there must be at least one."""
        return torch.cat(self._blocks)[: self._count]
