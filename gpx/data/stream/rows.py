"""Training rows in files: standardised blocks of rows are read when batches need them."""

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
"""Number of consecutive blocks whose rows batches take together. A piece of so many rows that
begins within a block extends over one more block."""


@dataclass(frozen=True)
class NumberCoding:
    """Standardisation of numbers in the files, and encoding of classes.

    Attributes:
        shift, scale (d + p,): subtracted from, and divided by, columns of inputs, then targets.
        labels, codes (C,): ascending labels of classes and their codes; None if targets are
            numbers.
    """

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    labels: NDArray[np.float64] | None = None
    codes: NDArray[np.float64] | None = None

    def __call__(self, read: NDArray[Any]) -> NDArray[np.float64]:
        """Standardise and encode rows (n, d + p)."""
        values = read.astype(np.float64)
        if self.labels is not None and self.codes is not None:
            values[:, -1] = self.codes[np.searchsorted(self.labels, values[:, -1])]
        values -= self.shift
        values /= self.scale
        return values


@dataclass
class ReadingRecord:
    """Number of rows read from files so far, and seconds spent."""

    rows: int = 0
    seconds: float = 0.0


@dataclass
class BlockCache:
    """Cache of blocks of training rows; the oldest blocks are replaced first.

    Args:
        parts: the files.
        coding: of their numbers.
        blocks (B,): ascending numbers of the training blocks. The stream is divided into blocks of
            ``block_rows`` rows; the last may be shorter.
        block_rows: rows of a block.
        num_rows: number of training rows in all blocks.
        room: number of blocks in memory.
        dtype: of the rows in memory.
        record: counts the rows read.
        alike: caches of the same rows by dtype.
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
        """The cache of the same rows in another dtype, created once."""
        return self.alike.get(dtype) or replace(self, dtype=dtype)

    def rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Training rows with indices (b,), encoded: a new tensor (b, d + p)."""
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
        """Read those of the blocks (at most ``room``) that are not in memory."""
        missing = [int(block) for block in asked if int(block) not in self._slots]
        if not missing:
            return
        if not len(self._held):
            self._held = self._held.new_empty(self.room * self.block_rows, self.parts.width)
        try:
            self._assign(missing, keep=set(asked.tolist()))
            numbers = self.blocks[missing]
            # consecutive blocks are read together
            for run in np.split(np.arange(len(missing)), np.flatnonzero(np.diff(numbers) != 1) + 1):
                self._read([missing[i] for i in run])
        except BaseException:
            # blocks that have a place but were not read would be taken for read ones; a part of the
            # places cannot be given up, as their number is that of the next free place
            self._slots.clear()
            raise

    def _assign(self, missing: list[int], keep: set[int]) -> None:
        """Give blocks a place: a free one, or that of the oldest block that is not to be kept."""
        leaving = (block for block in list(self._slots) if block not in keep)
        for block in missing:
            if len(self._slots) < self.room:
                self._slots[block] = len(self._slots)
            else:
                self._slots[block] = self._slots.pop(next(leaving))

    def _read(self, blocks: list[int]) -> None:
        """Read consecutive blocks."""
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
        cache: of the rows; shared by inputs and targets.
        columns: of the cache; a number for a single target.
        device: that rows are moved to.
    """

    def __init__(
        self, cache: BlockCache, columns: slice | int, device: torch.device | str = "cpu"
    ) -> None:
        self.cache, self.columns = cache, columns
        width = () if isinstance(columns, int) else (columns.stop - columns.start,)
        self.shape = torch.Size((cache.num_rows, *width))
        self.dtype, self.device = cache.dtype, torch.device(device)
        self.chunk_rows = NEAR_BLOCKS * cache.block_rows
        # ``chunk_rows`` rows may extend over one more block
        self.buffer_rows = max(1, cache.room // (NEAR_BLOCKS + 1)) * self.chunk_rows

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> StreamedRows:
        """The same rows on another device or in another dtype; nothing is read."""
        return StreamedRows(self.cache.to(dtype or self.dtype), self.columns, device)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """As in ``LazyRows``."""
        if isinstance(rows, slice):
            asked = np.arange(*rows.indices(len(self)))
        else:
            asked = rows.cpu().numpy()
        return self.cache.rows(asked)[:, self.columns].to(self.device)
