"""Covariance matrices of many small groups of inputs at once."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.kernels.base import Kernel

LEAST_SQUARE = 1e-30
"""Smallest squared distance: a square root has no derivative at zero."""


def batched_covariances(kernel: Kernel, left: Tensor, right: Tensor | None = None) -> Tensor:
    """k between the inputs of every group, differentiable in the parameters.

    Args:
        kernel: covariance function.
        left (b, p, d), right (b, q, d): inputs of b groups; None: the square matrices of ``left``.

    Returns:
        (b, p, q).

    Cost: b p q kernel entries; kernels that are no function of distances take d times the memory.
    """
    other = left if right is None else right
    b, p, d = left.shape
    q = other.shape[1]
    if not kernel.has_formula:
        rows = left.unsqueeze(2).expand(b, p, q, d).reshape(-1, d)
        columns = other.unsqueeze(1).expand(b, p, q, d).reshape(-1, d)
        return kernel.pairs(rows, columns).view(b, p, q)

    def squared_distance(z1: Tensor, z2: Tensor) -> Tensor:
        z1, z2 = z1.view(b, p, z1.shape[1]), z2.view(b, q, z2.shape[1])
        # distances do not depend on the centre, so it carries no gradient
        centre = z2.detach().mean(1, keepdim=True) if q else 0.0
        z1, z2 = z1 - centre, z2 - centre
        # shrunk by the size of the rounding, so that coincident inputs are at distance zero
        shrink = 1.0 - 4.0 * torch.finfo(z1.dtype).eps
        norm1, norm2 = z1.square().sum(2) * shrink, z2.square().sum(2) * shrink
        cross = torch.baddbmm(norm1.unsqueeze(2) + norm2.unsqueeze(1), z1, z2.mT, alpha=-2.0)
        return cross.clamp_min(LEAST_SQUARE)

    found = kernel.formula(squared_distance, left.reshape(-1, d), other.reshape(-1, d))
    assert isinstance(found, Tensor)
    return found
