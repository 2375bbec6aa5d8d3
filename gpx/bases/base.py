"""What a basis is: functions phi: R^d -> R^m, any subset of them on demand, and a weight prior."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gpx.bases.selected_blocks import SelectedBlocks
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


def check_inputs(x: Tensor, what: str) -> None:
    """Raise ShapeError unless x is a matrix (n, d)."""
    if x.ndim != 2:
        raise ShapeError(
            f"{what} expects inputs of shape (n, d), got {tuple(x.shape)}; "
            "use x[:, None] for one input dimension"
        )
