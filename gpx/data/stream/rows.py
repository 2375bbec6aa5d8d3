"""Training rows that lie in files: standardised blocks of them are read as batches ask for rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.data.stream.parts import Parts
from gpx.lazy_rows import LazyRows

NEAR_BLOCKS = 4
"""Consecutive blocks that a batch order takes together: where it begins inside a block, it reads
one block more than it takes rows of."""


@dataclass(frozen=True)
class NumberCoding:
    """How numbers of the files become inputs and targets.

    Attributes:
        shift, scale (d + p,): subtracted, then divided by; of inputs, then targets.
        labels, codes (C,): ascending labels of a class and what a likelihood takes in their place;
            None where targets are numbers.
    """

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    labels: NDArray[np.float64] | None = None
    codes: NDArray[np.float64] | None = None

    def __call__(self, read: NDArray[Any]) -> NDArray[np.float64]:
        """Rows (n, d + p) as read, coded."""
        values = read.astype(np.float64)
        if self.labels is not None and self.codes is not None:
            values[:, -1] = self.codes[np.searchsorted(self.labels, values[:, -1])]
        values -= self.shift
        values /= self.scale
        return values


@dataclass
class ReadingRecord:
    """Rows read from files so far, and the seconds that took."""

    rows: int = 0
    seconds: float = 0.0


@dataclass
class BlockCache:
    """Blocks of training rows in memory, the oldest given up for new ones.

    Args:
        parts: the files.
        coding: of their numbers.
        blocks (B,): numbers of the blocks that are trained on, ascending; the stream is cut into
            blocks of ``block_rows`` rows, of which the last may be shorter.
        block_rows: rows of a block.
        num_rows: training rows, all blocks together.
        room: blocks that are kept.
        dtype: of what is kept.
        record: of what is read.
        alike: caches of the same rows by precision.
    """

    parts: Parts
    coding: NumberCoding
    blocks: NDArray[np.int64]
    block_rows: int
    num_rows: int
    room: int
    dtype: torch.dtype
    record: ReadingRecord = field(default_factory=ReadingRecord)
    alike: dict[torch.dtype, BlockCache] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alike[self.dtype] = self
        self.room = max(1, min(self.room, len(self.blocks)))
        self._held = torch.empty(0, dtype=self.dtype)
        self._slots: dict[int, int] = {}  # block -> place in ``_held``, the oldest first

    def to(self, dtype: torch.dtype) -> BlockCache:
        """The cache of the same rows in another precision, one for all who ask."""
        return self.alike.get(dtype) or replace(self, dtype=dtype)

    def rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Training rows (b,) as coded: (b, d + p), a new tensor."""
        wanted = rows // self.block_rows
        asked, inverse = np.unique(wanted, return_inverse=True)
        if len(asked) <= self.room:
            return self._gathered(asked, inverse, rows)
        found = torch.empty(len(rows), self.parts.width, dtype=self.dtype)
        for start in range(0, len(asked), self.room):
            some = np.flatnonzero((inverse >= start) & (inverse < start + self.room))
            part = asked[start : start + self.room]
            found[torch.from_numpy(some)] = self._gathered(part, inverse[some] - start, rows[some])
        return found

    def _gathered(
        self, asked: NDArray[np.int64], inverse: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Tensor:
        self._load(asked)
        slots = np.array([self._slots[int(block)] for block in asked], dtype=np.int64)
        places = slots[inverse] * self.block_rows + rows % self.block_rows
        return self._held[torch.from_numpy(places)]

    def _load(self, asked: NDArray[np.int64]) -> None:
        """Have the blocks (at most ``room``) in memory."""
        missing = [int(block) for block in asked if int(block) not in self._slots]
        if not missing:
            return
        if not len(self._held):
            self._held = self._held.new_empty(self.room * self.block_rows, self.parts.width)
        keep = set(asked.tolist())
        leaving = (block for block in list(self._slots) if block not in keep)
        for block in missing:
            if len(self._slots) < self.room:
                self._slots[block] = len(self._slots)
            else:
                self._slots[block] = self._slots.pop(next(leaving))
        numbers = self.blocks[missing]
        # neighbours in the file are read at once
        for run in np.split(np.arange(len(missing)), np.flatnonzero(np.diff(numbers) != 1) + 1):
            self._read([missing[i] for i in run])

    def _read(self, blocks: list[int]) -> None:
        """Read blocks that follow one another in the files."""
        start = int(self.blocks[blocks[0]]) * self.block_rows
        stop = min(start + len(blocks) * self.block_rows, len(self.parts))
        began = time.perf_counter()
        values = self.parts.read(start, stop)
        self.record.rows += stop - start
        self.record.seconds += time.perf_counter() - began
        coded = torch.from_numpy(self.coding(values)).to(self.dtype)
        for block, rows in zip(blocks, coded.split(self.block_rows), strict=True):
            place = self._slots[block] * self.block_rows
            self._held[place : place + len(rows)] = rows


class StreamedRows(LazyRows):
    """Inputs, or targets, of the training rows of a stream.

    Args:
        cache: where rows come from; inputs and targets of one batch share what is read.
        columns: of the cache that these are; a number for a single target.
        device: where rows go.
    """

    def __init__(
        self, cache: BlockCache, columns: slice | int, device: torch.device | str = "cpu"
    ) -> None:
        self.cache, self.columns = cache, columns
        width = () if isinstance(columns, int) else (columns.stop - columns.start,)
        self.shape = torch.Size((cache.num_rows, *width))
        self.dtype, self.device = cache.dtype, torch.device(device)
        self.chunk_rows = NEAR_BLOCKS * cache.block_rows
        # ``chunk_rows`` rows lie in up to one block more
        self.buffer_rows = max(1, cache.room // (NEAR_BLOCKS + 1)) * self.chunk_rows

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> StreamedRows:
        """The same rows on another device or in another precision; nothing is read."""
        return StreamedRows(self.cache.to(dtype or self.dtype), self.columns, device)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """As in ``LazyRows``."""
        if isinstance(rows, slice):
            asked = np.arange(*rows.indices(len(self)))
        else:
            asked = rows.cpu().numpy()
        return self.cache.rows(asked)[:, self.columns].to(self.device)
