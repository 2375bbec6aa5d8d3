"""What a basis is: functions phi: R^d -> R^m, any subset of them on demand, and a weight prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.data_sized import DataSized
from gpx.errors import ShapeError


class Basis(DataSized, ABC):
    """Finite basis of f(x) = sum_i w_i phi_i(x), with w ~ N(0, S^-1) and S diagonal.

    Functions are grouped in contiguous blocks of ``block_size`` columns; a block is the cheapest
    unit to evaluate and the unit that stochastic objectives sample.

    Attributes:
        num_basis: m.
        block_size: columns per block; divides m.
        num_inputs: d, where the basis is made for a number of input columns.
        parts: equal contiguous parts of a block whose columns are nearly orthogonal to those of
            the other parts over the data; one where nothing is known.
    """

    num_basis: int
    block_size: int
    num_inputs: int | None = None
    parts: int = 1

    @property
    def num_blocks(self) -> int:
        """Number of blocks, m / block_size."""
        return self.num_basis // self.block_size

    def columns_of(self, blocks: Tensor) -> Tensor:
        """Column numbers of ``blocks`` (L,), in order; int64 (L * block_size,)."""
        within = torch.arange(self.block_size, device=blocks.device)
        return (blocks[:, None] * self.block_size + within).reshape(-1)

    @abstractmethod
    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """phi(x): (n, len(columns)), or (n, m) without ``columns``.

        Args:
            x (n, d): inputs.
            columns: int64 column numbers, any order; time and memory are those of the subset.
        """

    @abstractmethod
    def block_features(self, x: Tensor, blocks: Tensor) -> Tensor:
        """The columns of ``blocks`` (L,), in order: (n, L * block_size).

        May be a transposed view of a contiguous (L * block_size, n) array.
        """

    def selected(self, blocks: Tensor, x: Tensor) -> SelectedBlocks:
        """``blocks`` (L,) for products with their features at inputs like x (its d and dtype)."""
        return SelectedBlocks(self, blocks)

    @abstractmethod
    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """Diagonal of S at ``columns`` (all without): (len(columns),) or (m,)."""


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


def check_inputs(x: Tensor, what: str) -> None:
    """Raise ShapeError unless x is a matrix (n, d)."""
    if x.ndim != 2:
        raise ShapeError(
            f"{what} expects inputs of shape (n, d), got {tuple(x.shape)}; "
            "use x[:, None] for one input dimension"
        )
