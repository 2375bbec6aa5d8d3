"""Tile sizes of Triton programs, and the number of programs that share the columns of a strip.

Every kernel is launched with ``enable_fp_fusion=True``, so that products and sums become fused
multiply-adds with a single rounding; from Triton 3.10 on this is not the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PROGRAMS_PER_PROCESSOR = 4
"""Programs per multiprocessor, so that some run while others wait for memory."""


@dataclass(frozen=True)
class Blocks:
    """Shape of a tile and launch parameters.

    Attributes:
        rows, columns: of the kernel matrix in a tile; powers of two, at least 16.
        warps: groups of 32 threads per program.
        stages: tiles of the columns that are loaded ahead.
        splits: programs that share the columns of one strip of rows; None fills the device.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    splits: int | None = None


def num_splits(blocks: Blocks, strips: int, tiles: int, like: Tensor) -> int:
    """Programs that share the ``tiles`` tiles of one strip, for ``strips`` strips in total."""
    wanted = blocks.splits
    if wanted is None:
        wanted = 1
        if like.is_cuda:
            processors = torch.cuda.get_device_properties(like.device).multi_processor_count
            wanted = -(-PROGRAMS_PER_PROCESSOR * processors // max(1, strips))
    return max(1, min(wanted, tiles))
