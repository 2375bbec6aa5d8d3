"""Which training rows every expert has, and experts of about one size taken together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ARRAYS = 6
"""Arrays of the size of a batch's covariance matrices that are alive at once."""
BATCH_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""Bytes of the covariance matrices of a batch, where memory allows more: what stays near a CPU's
cache and hides the overhead of a call."""


def batch_bytes(device: torch.device) -> int:
    """``BATCH_BYTES`` of a device."""
    return BATCH_BYTES.get(device.type, BATCH_BYTES["cpu"])


class ExpertBatch(NamedTuple):
    """Some experts, padded to one size.

    Attributes:
        experts (c,): their numbers.
        rows (c, m): training rows; padding repeats an expert's first row.
        mask (c, m): true where there is a row; None where nothing is padded.
    """

    experts: Tensor
    rows: Tensor
    mask: Tensor | None

    def zero_padding(self, values: Tensor) -> Tensor:
        """``values`` (..., c, m) with zeros in the place of padding."""
        return values if self.mask is None else values * self.mask

    def covariance(self, matrices: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """K + noise I of every expert, with rows of the identity for padding.

        A padded matrix is block diagonal with I: its log-determinant is that of the expert, its
        inverse has the expert's and I, and zeros in a right-hand side stay zeros. Nothing that is
        summed over rows that are there changes.

        Args:
            matrices (c, m, m): covariances of the padded rows.
            noise (c,): noise variances.
            out (c, m, m): where it is written; None: a new tensor.
        """
        system = matrices.clone() if out is None else out.copy_(matrices)
        diagonal = system.diagonal(dim1=1, dim2=2)
        diagonal += noise.unsqueeze(1)
        if self.mask is not None:
            system *= self.mask.unsqueeze(1) & self.mask.unsqueeze(2)
            diagonal += (~self.mask).to(diagonal)
        return system


@dataclass(frozen=True)
class ExpertRows:
    """Training rows of K experts, which may share rows.

    Attributes:
        rows (N,): row numbers, one expert after the other.
        sizes (K,): rows of every expert, at least one.
    """

    rows: Tensor
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.sizes)

    def batches(self, entry_bytes: int, budget: int) -> Iterator[ExpertBatch]:
        """All experts, those of similar size together.

        Args:
            entry_bytes: of a number.
            budget: bytes that the arrays of a batch may take; one expert is the least.
        """
        device = self.rows.device
        sizes, order = torch.sort(self.sizes, descending=True)
        start = self.sizes.cumsum(0) - self.sizes
        limit = min(budget // ARRAYS, batch_bytes(device))
        first, largest = 0, sizes.tolist()
        while first < len(largest):
            m = largest[first]
            count = max(1, limit // (entry_bytes * m * m))
            experts = order[first : first + count]
            first += count
            place = torch.arange(m, device=device).expand(len(experts), m)
            mask = place < self.sizes[experts].unsqueeze(1)
            padded = torch.where(mask, place, 0) + start[experts].unsqueeze(1)
            full = largest[min(first, len(largest)) - 1] == m
            yield ExpertBatch(experts, self.rows[padded], None if full else mask)
