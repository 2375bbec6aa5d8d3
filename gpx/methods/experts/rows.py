"""Training rows of every expert, and batches of experts of similar size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.inference.padded_rows import PaddedRows, batch_bytes

ARRAYS_PER_BATCH = 6
"""Arrays of the size of a batch's covariance matrices that are in memory at once."""


@dataclass(frozen=True)
class ExpertBatch(PaddedRows):
    """A batch of experts, padded to one number of rows.

    Attributes:
        experts (c,): indices of the experts.
        num_rows: rows of all of them, without padding.
    """

    experts: Tensor
    num_rows: int


@dataclass(frozen=True)
class ExpertRows:
    """Training rows of K experts, which may share rows.

    Attributes:
        rows (N,): row indices, one expert after the other.
        sizes (K,): number of rows of every expert, at least one.
    """

    rows: Tensor
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.sizes)

    def batches(self, entry_bytes: int, budget: int) -> Iterator[ExpertBatch]:
        """All experts, in batches of similar size.

        Args:
            entry_bytes: bytes per number.
            budget: bytes that the arrays of a batch may take; a batch has at least one expert.
        """
        device = self.rows.device
        order = torch.sort(self.sizes, descending=True).indices
        start = self.sizes.cumsum(0) - self.sizes
        first = 0
        for held in self._together(entry_bytes, budget):
            m, experts = held[0], order[first : first + len(held)]
            first += len(held)
            place = torch.arange(m, device=device).expand(len(experts), m)
            mask = place < self.sizes[experts].unsqueeze(1)
            padded = torch.where(mask, place, 0) + start[experts].unsqueeze(1)
            full = held[-1] == m
            yield ExpertBatch(self.rows[padded], None if full else mask, experts, sum(held))

    def widest(self, entry_bytes: int, budget: int) -> int:
        """Most rows of one of ``batches`` with the same arguments, padding included."""
        return max((len(held) * held[0] for held in self._together(entry_bytes, budget)), default=0)

    def _together(self, entry_bytes: int, budget: int) -> Iterator[list[int]]:
        """The sizes of the experts of every batch, descending."""
        limit = min(budget // ARRAYS_PER_BATCH, batch_bytes(self.rows.device))
        sizes = sorted(self.sizes.tolist(), reverse=True)
        first = 0
        while first < len(sizes):
            count = max(1, limit // (entry_bytes * sizes[first] ** 2))
            yield sizes[first : first + count]
            first += count
