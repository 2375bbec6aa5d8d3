"""Sizes of the tiles that a Triton program works on, and how the columns are shared out.

Every kernel is launched with ``enable_fp_fusion=True``: products and sums become fused
multiply-adds, with one rounding for two. Triton 3.10 no longer does so unless asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PROGRAMS_PER_PROCESSOR = 4
"""Programs that keep one multiprocessor busy while others of it wait for memory."""


@dataclass(frozen=True)
class Blocks:
    """Shape of a tile and how it is worked on.

    Attributes:
        rows, columns: entries of the kernel matrix in a tile; powers of two from 16 on.
        warps: groups of 32 threads of a program.
        stages: tiles of the columns that are loaded ahead.
        splits: programs that share the columns of one strip of rows; None fills the device.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    splits: int | None = None


def shares(blocks: Blocks, strips: int, tiles: int, like: Tensor) -> int:
    """Programs among which the tiles of one strip are shared, for ``strips`` strips in all."""
    wanted = blocks.splits
    if wanted is None:
        wanted = 1
        if like.is_cuda:
            processors = torch.cuda.get_device_properties(like.device).multi_processor_count
            wanted = -(-PROGRAMS_PER_PROCESSOR * processors // max(1, strips))
    return max(1, min(wanted, tiles))
