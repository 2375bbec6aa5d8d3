"""What an iteration keeps of its steps."""

from __future__ import annotations

import torch
from torch import Tensor

RECORDS = 64
"""Rows of a block of records."""


class Records:
    """Tensors of one shape, one a step, kept in blocks.

    Small tensors that are kept one by one between large temporaries split the holes that these
    leave on the heap: every step would then take fresh memory for its vectors.

    Args:
        like: a tensor of that shape and dtype.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._blocks: list[Tensor] = []
        self._rows: list[Tensor] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def room(self) -> Tensor:
        """Where the next one goes: what is written there and then appended is not copied."""
        if self._count == len(self._rows):
            block = self._like.new_empty(RECORDS, *self._like.shape)
            self._blocks.append(block)
            self._rows.extend(block.unbind(0))
        return self._rows[self._count]

    def append(self, row: Tensor) -> None:
        """Keep a copy, or what was written into the ``room``."""
        room = self.room()
        if row is not room:
            room.copy_(row)
        self._count += 1

    def extend(self, rows: Tensor) -> None:
        """Keep a copy of each of rows (k, ...)."""
        done = 0
        while done < len(rows):
            self.room()
            place = self._count % RECORDS
            some = rows[done : done + RECORDS - place]
            self._blocks[self._count // RECORDS][place : place + len(some)] = some
            self._count += len(some)
            done += len(some)

    def truncate(self, count: int) -> None:
        """Forget all but the first ``count``."""
        self._count = min(self._count, count)

    def stacked(self) -> Tensor:
        """All of them, (t, ...), t at least one."""
        return torch.cat(self._blocks)[: self._count]
