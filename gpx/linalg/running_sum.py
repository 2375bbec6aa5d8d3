"""Running sums and order statistics that give the same bits every time on every device.

On CUDA torch's floating-point ``cumsum`` adds blocks in the order in which they happen to finish,
and ``kthvalue`` has no deterministic form: under ``torch.use_deterministic_algorithms`` both warn.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
"""Entries that one product with a triangle of ones sums."""


def running_sum(values: Tensor, dim: int = 0) -> Tensor:
    """Sums of the first 1, 2, ... entries along ``dim``, of values' shape; differentiable.

    This is ``cumsum`` on a CPU, for integers, and where determinism was not asked for. Otherwise
    blocks of ``BLOCK`` entries are multiplied by a triangle of ones, and likewise the sums of the
    blocks: always in the same order, without synchronisation.

    Args:
        values (..., n, ...): integers or finite floating-point numbers.

    Cost: n additions, or n BLOCK multiply-adds in about five launches per factor of BLOCK in n.
    """
    if values.is_cpu or not values.is_floating_point():
        return values.cumsum(dim)
    if not torch.are_deterministic_algorithms_enabled():
        return values.cumsum(dim)
    if values.shape[dim] == 0:
        return values.clone()
    return _in_order(values.movedim(dim, -1)).movedim(-1, dim)


def _in_order(values: Tensor) -> Tensor:
    """Running sums along the last dimension by products with a triangle. For a GPU only."""
    n = values.shape[-1]
    width = min(n, BLOCK)
    triangle = torch.ones(width, width, dtype=values.dtype, device=values.device).triu_()
    if n <= BLOCK:
        return values @ triangle
    blocks = -(-n // BLOCK)
    padded = torch.nn.functional.pad(values, (0, blocks * BLOCK - n))
    within = padded.unflatten(-1, (blocks, BLOCK)) @ triangle
    before = torch.nn.functional.pad(_in_order(within[..., -1])[..., :-1], (1, 0))
    return (within + before.unsqueeze(-1)).flatten(-2)[..., :n]


def kth_smallest(values: Tensor, k: int) -> Tensor:
    """The ``k``-th smallest (...), counted from one, along the last dimension of values (..., n).

    Cost: n operations on a CPU, a sort elsewhere.
    """
    if values.is_cpu:
        return values.kthvalue(k).values
    return values.sort(-1).values[..., k - 1]
