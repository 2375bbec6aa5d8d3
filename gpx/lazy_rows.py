"""Rows that are read on demand, for training on data too large for memory.

Data in files and tensors both give the rows with given indices, which is all that a loop over
mini-batches needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor


class LazyRows(ABC):
    """Inputs (n, d) or targets (n,), (n, p) of which only requested rows are in memory.

    Attributes:
        shape, dtype, device: those of the tensor of all rows.
        chunk_rows: consecutive rows that are stored together, so that reading them together is
            cheap.
        buffer_rows: rows that fit into the cache: a batch order that stays within as many at a time
            reads every row of a file once.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    chunk_rows: int
    buffer_rows: int

    @abstractmethod
    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """The rows as a tensor of ``dtype`` on ``device``, in the given order.

        Args:
            rows: a slice with step one, or row indices (b,) in 0..n-1, on any device.
        """

    @property
    def ndim(self) -> int:
        """1 or 2."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all rows in order, ``size`` at a time, the remainder last."""
        for start in range(0, len(self), size):
            yield self[start : min(start + size, len(self))]
