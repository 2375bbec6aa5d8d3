"""Blocks of consecutive rows combined to batches of small matrices.

For blocks of tens of rows, the overhead of single calls would exceed the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from gpx.inference.batched_covariance import batched_covariances, fused_profile
from gpx.inference.padded_rows import PaddedRows
from gpx.kernels.base import Kernel

MAX_PADDING_RATIO = 1.5
"""Largest ratio of entries with padding to entries without, in the matrices of a batch."""


@dataclass(frozen=True)
class BlockBatch(PaddedRows):
    """Consecutive blocks of rows, padded to the longest of them.

    Rows are counted from the first of the batch.

    Attributes:
        sizes: rows of every block.
        places (b,): index of each of the b rows among the padded ones; None: there is no padding.
    """

    sizes: tuple[int, ...]
    places: Tensor | None

    @classmethod
    def of(cls, sizes: Sequence[int], device: torch.device) -> BlockBatch:
        """Blocks of these sizes, all positive."""
        count, longest, total = len(sizes), max(sizes), sum(sizes)
        if min(sizes) == longest:
            rows = torch.arange(total, device=device).view(count, longest)
            return cls(rows, None, tuple(sizes), None)
        firsts = [0, *accumulate(sizes[:-1])]
        known = torch.tensor([firsts, list(sizes)], device=device)
        first, size = known[0].unsqueeze(1), known[1].unsqueeze(1)
        place = torch.arange(longest, device=device)
        mask = place < size
        # offset of the rows of each block by the padding of earlier blocks
        shift = torch.arange(count, device=device) * longest - known[0]
        shift = shift.repeat_interleave(known[1], output_size=total)
        return cls(
            torch.where(mask, place, 0) + first,
            mask,
            tuple(sizes),
            torch.arange(total, device=device) + shift,
        )

    def padded(self, values: Tensor) -> Tensor:
        """Values (b, c) of the rows arranged by blocks: (g, p, c), padded with zeros."""
        shape = (*self.rows.shape, values.shape[1])
        if self.places is None:
            return values.view(shape)
        found = values.new_zeros(self.rows.numel(), values.shape[1])
        return found.index_copy_(0, self.places, values).view(shape)

    def unpadded(self, values: Tensor) -> Tensor:
        """Inverse of ``padded``: values (g, p, ...) arranged by rows (b, ...)."""
        flat = values.flatten(0, 1)
        return flat if self.places is None else flat[self.places]

    def covariances(self, kernel: Kernel, x: Tensor) -> Tensor:
        """k within every block (g, p, p) of rows x (b, d), differentiable; padding is arbitrary."""
        return batched_covariances(kernel, x[self.rows])


Batches = Sequence[tuple[int, BlockBatch | None]]
"""End of each batch, and its blocks; None for a single block."""


def block_batches(
    kernel: Kernel, bounds: Sequence[int], room: int, device: torch.device
) -> list[tuple[int, BlockBatch | None]]:
    """Group consecutive blocks to batches, as ``room`` and ``MAX_PADDING_RATIO`` allow.

    Args:
        kernel: if it cannot be evaluated in batches, every batch has one block.
        bounds: 0, the row after each block, ..., n; empty blocks are dropped. Sorted blocks,
            largest first, need the least padding.
        room: most entries of the padded matrices of a batch (a single block may have more).
        device: of the rows.
    """
    together = fused_profile(kernel) is not None or kernel.has_formula
    groups: list[list[int]] = []
    squares = longest = 0
    for size in (stop - start for start, stop in pairwise(bounds) if stop > start):
        squares, longest = squares + size**2, max(longest, size)
        numbers = 0 if not groups else (len(groups[-1]) + 1) * longest**2
        if together and groups and numbers <= min(room, MAX_PADDING_RATIO * squares):
            groups[-1].append(size)
        else:
            groups.append([size])
            squares, longest = size**2, size
    ends = accumulate(map(sum, groups))
    alone = (BlockBatch.of(sizes, device) if len(sizes) > 1 else None for sizes in groups)
    return list(zip(ends, alone, strict=True))
