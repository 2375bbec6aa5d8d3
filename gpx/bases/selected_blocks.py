"""A list of blocks of basis functions, and the products with their features that a step needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gpx.bases.base import Basis


class SelectedBlocks:
    """Blocks (L,) of a basis; Phi stands for their features (n, L W).

    This class evaluates Phi and multiplies; bases that can take the products while they evaluate
    return their own from ``Basis.selected``. All products are differentiable in the hyperparameters
    and in x as far as the features are.

    Args:
        basis: its owner.
        blocks (L,): block numbers, any order, repeats allowed.
    """

    def __init__(self, basis: Basis, blocks: Tensor) -> None:
        self.basis = basis
        self.blocks = blocks

    def split(self, sizes: Sequence[int]) -> list[SelectedBlocks]:
        """Parts of ``sizes`` blocks, in order."""
        return [SelectedBlocks(self.basis, part) for part in self.blocks.split(list(sizes))]

    def of(self, basis: Basis) -> SelectedBlocks:
        """The same blocks of a copy of the basis at other hyperparameters."""
        return SelectedBlocks(basis, self.blocks)

    def products(self, x: Tensor, weights: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        """Phi w: (n, k).

        Args:
            x (n, d): inputs.
            weights (L W, k): w, differentiable.
            keep: takes the features, without gradient, as ``carry`` expects them.
        """
        features = self.basis.block_features(x, self.blocks)
        if keep is not None:
            keep.append(features.detach())
        return features @ weights

    def form(
        self, x: Tensor, weights: Tensor, direction: Tensor, keep: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """sum(u * Phi w), 0-d, and Phi w (n, k) without gradient.

        Args:
            x (n, d): inputs.
            weights (L W, k): w, differentiable.
            direction (n, k): u, differentiable.
            keep: as in ``products``.
        """
        product = self.products(x, weights, keep)
        return (direction * product).sum(), product.detach()

    def column_squares(self, x: Tensor) -> Tensor:
        """Diagonal of Phi^T Phi: (L W,)."""
        return self.basis.block_features(x, self.blocks).square().sum(0)

    @torch.no_grad()
    def carry(self, total: Tensor, kept: Tensor, change: Tensor) -> None:
        """total += Phi change, in place, from kept features.

        Args:
            total (n, k): a product with weights before they changed.
            kept: features as ``products`` or ``form`` left them.
            change (L W, k): of the weights.

        The product is summed before it is added: summed on top of a total, as ``addmm_`` may do,
        the small terms of a small change would be rounded to the total's digits one by one.
        """
        total += kept @ change
