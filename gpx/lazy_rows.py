"""Rows that are read as they are asked for: what a training loop needs of data too large to hold.

The one thing that data in files and tensors have in common is that some rows of them can be had. A
loop over mini-batches asks for no more, so that it takes either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor


class LazyRows(ABC):
    """Inputs (n, d) or targets (n,), (n, p) of which only asked rows are ever in memory.

    Attributes:
        shape, dtype, device: as of the tensor that all the rows would be.
        near: consecutive rows that lie together in a file, so that reading them together is cheap.
        together: rows that can be kept at hand: a batch order that stays within as many reads
            every row of a file once.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    near: int
    together: int

    @abstractmethod
    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Some rows as a tensor of ``dtype`` on ``device``, in the order asked for.

        Args:
            rows: a slice with step one, or row numbers (b,), each of 0..n-1, on any device.
        """

    @property
    def ndim(self) -> int:
        """1 or 2."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def split(self, size: int) -> Iterator[Tensor]:
        """All rows in their order, ``size`` at a time, the rest at the end; one part at a time."""
        for start in range(0, len(self), size):
            yield self[start : min(start + size, len(self))]
