"""Groups of rows of about one size taken together, padded: what every batch of them shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BATCH_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""Bytes of the covariance matrices of a batch, where memory allows more: what stays near a CPU's
cache and hides the overhead of a call."""


def batch_bytes(device: torch.device) -> int:
    """``BATCH_BYTES`` of a device."""
    return BATCH_BYTES.get(device.type, BATCH_BYTES["cpu"])


@dataclass(frozen=True)
class PaddedRows:
    """Rows of some groups, padded to one size.

    Attributes:
        rows (c, m): row numbers; padding repeats a group's first row.
        mask (c, m): true where there is a row; None where nothing is padded.
    """

    rows: Tensor
    mask: Tensor | None

    def zero_padding(self, values: Tensor) -> Tensor:
        """``values`` (..., c, m) with zeros in the place of padding."""
        return values if self.mask is None else values * self.mask

    def covariance(self, matrices: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """K + noise I of every group, with rows of the identity for padding.

        A padded matrix is block diagonal with I: its log-determinant is that of the group, its
        inverse has the group's and I, and zeros in a right-hand side stay zeros. Nothing that is
        summed over rows that are there changes.

        Args:
            matrices (c, m, m): covariances of the padded rows.
            noise (c,): noise variances.
            out (c, m, m): where it is written, which may be ``matrices``; None: a new tensor.
        """
        system = matrices.clone() if out is None else out
        if out is not None and out is not matrices:
            out.copy_(matrices)
        diagonal = system.diagonal(dim1=1, dim2=2)
        diagonal += noise.unsqueeze(1)
        if self.mask is not None:
            system *= self.mask.unsqueeze(1) & self.mask.unsqueeze(2)
            diagonal += (~self.mask).to(diagonal)
        return system
