"""Groups of rows padded to a common size, to be processed as one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BATCH_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""Default bytes of the covariance matrices of a batch: small enough for a CPU's cache, large enough
to hide the overhead of a call."""


def batch_bytes(device: torch.device) -> int:
    """``BATCH_BYTES`` of a device."""
    return BATCH_BYTES.get(device.type, BATCH_BYTES["cpu"])


def noisy_system(matrices: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> Tensor:
    """Covariances of groups with noise on their diagonals, and rows of the identity for padding.

    A padded matrix is block diagonal, with blocks of the group and I: it has the group's
    log-determinant, and solves of right-hand sides that are zero at padding are the group's.

    Args:
        matrices (c, m, m): covariances of the padded rows.
        noise (), (m,), (c, 1) or (c, m): noise variances.
        mask (c, m): false at padding; None where nothing is padded.
        out (c, m, m): receives the result, may be ``matrices``.
    """
    diagonal = out.diagonal(dim1=1, dim2=2)
    if mask is None:
        if out is not matrices:
            out.copy_(matrices)
        diagonal += noise
        return out
    present = mask.to(matrices.dtype)
    torch.mul(matrices, present.unsqueeze(2), out=out).mul_(present.unsqueeze(1))
    diagonal.addcmul_(present, noise.expand_as(present)).add_((~mask).to(diagonal))
    return out


@dataclass(frozen=True)
class PaddedRows:
    """Rows of some groups, padded to one size.

    Attributes:
        rows (c, m): row numbers; padding repeats a group's first row.
        mask (c, m): false at padding; None where nothing is padded.
    """

    rows: Tensor
    mask: Tensor | None

    def zero_padding(self, values: Tensor) -> Tensor:
        """``values`` (..., c, m) with zeros in the place of padding."""
        return values if self.mask is None else values * self.mask

    def covariance(self, matrices: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """K + noise I of every group, with rows of the identity for padding; see ``noisy_system``.

        Args:
            matrices (c, m, m): covariances of the padded rows.
            noise (c,): noise variances.
            out (c, m, m): receives the result, may be ``matrices``; None: a new tensor.
        """
        out = torch.empty_like(matrices) if out is None else out
        return noisy_system(matrices, noise.unsqueeze(1), self.mask, out)
