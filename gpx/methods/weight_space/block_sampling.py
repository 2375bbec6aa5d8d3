"""Random lists of blocks of basis functions, each block with expected count L / B."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gpx.bases.base import Basis

Sampling = Literal["stratified", "with_replacement", "without_replacement"]


def sample_columns(
    basis: Basis,
    size: int,
    sampling: Sampling,
    *,
    generator: torch.Generator | None,
    device: torch.device,
) -> Tensor:
    """List (L,) of blocks with about ``size`` columns: at least one block, at most all."""
    blocks, length = basis.num_blocks, _length(basis, size)
    return sample_blocks(blocks, length, sampling, generator=generator, device=device)


def sample_lists(
    basis: Basis,
    columns: int,
    diagonal_columns: int,
    sampling: Sampling,
    *,
    generator: torch.Generator | None,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Two independent lists of ``columns`` and one of ``diagonal_columns``, in fewer kernels."""
    blocks, shape = basis.num_blocks, (2, _length(basis, columns))
    if sampling == "stratified":
        first, second = _stratified(blocks, shape, generator, device)
    elif sampling == "with_replacement":
        first, second = torch.randint(blocks, shape, generator=generator, device=device)
    else:
        first, second = (
            sample_blocks(blocks, shape[1], sampling, generator=generator, device=device)
            for _ in range(2)
        )
    last = sample_columns(basis, diagonal_columns, sampling, generator=generator, device=device)
    return first, second, last


def _length(basis: Basis, size: int) -> int:
    """Number of blocks that have about ``size`` columns."""
    return min(basis.num_blocks, max(1, round(size / basis.block_size)))


def sample_blocks(
    num_blocks: int,
    size: int,
    sampling: Sampling,
    *,
    generator: torch.Generator | None,
    device: torch.device,
) -> Tensor:
    """``size`` block numbers out of ``num_blocks``, int64 (size,).

    In every scheme a block is listed L / B times in expectation, so that B / L times the sum over
    the list is unbiased for the sum over all blocks.

    - ``stratified``: entry k is uniform on the k-th of L equal parts of [0, B). Without repeats
      when L divides B (at most one shared block at a border otherwise); all blocks when L = B;
      O(L) time and memory whatever B is.
    - ``with_replacement``: independent and uniform; O(L).
    - ``without_replacement``: a uniform subset; O(B) time (a permutation of blocks).

    No host synchronisation. Source: Evans and Nair 2020 (QSGP), except ``stratified``.
    """
    if sampling == "stratified":
        return _stratified(num_blocks, (size,), generator, device)
    if sampling == "with_replacement":
        return torch.randint(num_blocks, (size,), generator=generator, device=device)
    return torch.randperm(num_blocks, generator=generator, device=device)[:size]


def _stratified(
    num_blocks: int, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Stratified lists along the last axis of ``shape``."""
    size = shape[-1]
    position = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    position += torch.arange(size, device=device)
    return position.mul_(num_blocks / size).long().clamp_max_(num_blocks - 1)


SHORT_LIST = 1024
"""Lists up to this length are compared entry by entry, in fewer kernels than sorting takes."""


def multiplicity(blocks: Tensor) -> Tensor:
    """How often each entry of the list (L,) occurs in it: (L,) int64; O(L log L), no host sync."""
    if blocks.shape[0] <= SHORT_LIST:
        return (blocks[:, None] == blocks[None, :]).sum(1)
    ordered = blocks.sort().values
    first = torch.searchsorted(ordered, blocks)
    return torch.searchsorted(ordered, blocks, right=True) - first
