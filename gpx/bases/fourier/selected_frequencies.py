"""Selected blocks of Fourier features: their frequencies once, their products tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.bases.fourier.products import FourierForm, FourierProducts, FourierSquares
from gpx.bases.selected_blocks import SelectedBlocks

if TYPE_CHECKING:
    from gpx.bases.fourier.random_fourier import RandomFourier


class SelectedFrequencies(SelectedBlocks):
    """Blocks (L,) of cosines and sines that share one generation of their frequencies.

    The standard normals behind the frequencies do not depend on hyperparameters: ``split`` and
    ``of`` use them again. The feature matrix is evaluated in tiles that stay in the cache.

    Args:
        basis: its owner.
        blocks (L,): block numbers.
        normals (L F, q): of their frequencies.
        known: frequencies (L F, d) and scale () where they have been evaluated.
    """

    basis: RandomFourier

    def __init__(
        self,
        basis: RandomFourier,
        blocks: Tensor,
        normals: Tensor,
        known: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(basis, blocks)
        self.normals = normals
        if known is None:
            frequencies = basis.spectral.spectral_frequencies(normals).to(normals.dtype)
            known = frequencies, basis.scale(normals.dtype)
        self.frequencies, self.scale = known

    def split(self, sizes: Sequence[int]) -> list[SelectedBlocks]:
        """Parts of ``sizes`` blocks, in order."""
        rows = [size * self.basis.per_block for size in sizes]
        parts = self.blocks.split(list(sizes)), self.normals.split(rows)
        return [
            SelectedFrequencies(self.basis, blocks, normals, (frequencies, self.scale))
            for blocks, normals, frequencies in zip(
                *parts, self.frequencies.split(rows), strict=True
            )
        ]

    def of(self, basis: Basis) -> SelectedBlocks:
        """The same blocks of a copy of the basis at other hyperparameters."""
        assert isinstance(basis, type(self.basis))
        return SelectedFrequencies(basis, self.blocks, self.normals)

    def _by_wave(self, weights: Tensor) -> Tensor:
        """Weights (L W, k) with all cosines before all sines: (2, L F, k)."""
        blocks, per_block = self.blocks.shape[0], self.basis.per_block
        ordered = weights.view(blocks, 2, per_block, -1).transpose(0, 1)
        return ordered.reshape(2, blocks * per_block, weights.shape[1])

    def _room(self, x: Tensor, keep: list[Tensor] | None) -> Tensor | None:
        """Memory (2, L F, n) for features that are kept."""
        if keep is None:
            return None
        keep.append(x.new_empty(2, self.frequencies.shape[0], x.shape[0]))
        return keep[-1]

    def products(self, x: Tensor, weights: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        """As SelectedBlocks; O(n L F (d + k)) time, the features kept until the backward pass."""
        room = self._room(x, keep)
        return FourierProducts.apply(x, self.frequencies, self.scale, self._by_wave(weights), room)

    def form(
        self, x: Tensor, weights: Tensor, direction: Tensor, keep: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As SelectedBlocks; one pass for value and gradients, features never leave the cache."""
        room = self._room(x, keep)
        return FourierForm.apply(
            x, self.frequencies, self.scale, self._by_wave(weights), direction, room
        )

    def column_squares(self, x: Tensor) -> Tensor:
        """As SelectedBlocks; one cosine per frequency and row."""
        sums = FourierSquares.apply(x, self.frequencies, self.scale)
        ordered = sums.view(2, self.blocks.shape[0], self.basis.per_block).transpose(0, 1)
        return ordered.reshape(-1)

    @torch.no_grad()
    def carry(self, total: Tensor, kept: Tensor, change: Tensor) -> None:
        """As SelectedBlocks."""
        scaled = self._by_wave(change) * self.scale
        total += kept.flatten(0, 1).T @ scaled.flatten(0, 1)
