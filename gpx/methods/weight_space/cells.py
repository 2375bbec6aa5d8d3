"""Partition of basis functions into groups (solved together) and cells (covariance blocks)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.methods.weight_space.group_solves import WeightGroup
from gpx.tensor_checks import check_at_least


@dataclass(frozen=True)
class Cells:
    """Partition of the m columns of a basis into groups of L blocks, and of these into cells.

    A cell is one part of the blocks of a group. Random Fourier features have two parts, cosines and
    sines: for inputs distributed about symmetrically around their mean, products of a cosine and a
    sine average to zero, so two covariance blocks (of cosines, of sines) need half the memory of a
    joint one at little loss. Means are solved for the whole group, since with small noise the
    remaining correlation matters for them.

    Attributes:
        num_blocks: B, blocks of the basis.
        block_size: W, columns per block.
        parts: equal contiguous parts of a block (``Basis.parts``).
        blocks_per_group: L; the last group may have fewer blocks.
    """

    num_blocks: int
    block_size: int
    parts: int
    blocks_per_group: int

    @classmethod
    def of(cls, basis: Basis, size: int) -> Cells:
        """Groups of about ``size`` columns each.

        Raises:
            ConfigError: fewer than one column.
        """
        check_at_least(1, block_columns=size)
        blocks = round(size / basis.block_size)
        blocks = min(basis.num_blocks, max(1, blocks))
        return cls(basis.num_blocks, basis.block_size, basis.parts, blocks)

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return -(-self.num_blocks // self.blocks_per_group)

    def group(self, number: int) -> list[int]:
        """Cells of group ``number``."""
        return [number * self.parts + part for part in range(self.parts)]

    def blocks_of(self, group: int) -> slice:
        """Blocks of ``group``."""
        first = group * self.parts
        return slice(self._start(first), self._stop(first))

    @property
    def num_cells(self) -> int:
        """Number of cells, G."""
        return self.num_groups * self.parts

    @property
    def largest(self) -> int:
        """Columns of the largest cell, b."""
        return self.blocks_per_group * self.block_size // self.parts

    def size(self, cell: int) -> int:
        """Columns of ``cell``."""
        return (self._stop(cell) - self._start(cell)) * self.block_size // self.parts

    def _start(self, cell: int) -> int:
        return cell // self.parts * self.blocks_per_group

    def _stop(self, cell: int) -> int:
        return min(self.num_blocks, self._start(cell) + self.blocks_per_group)

    def group_source(
        self, basis: Basis, group: int, device: torch.device
    ) -> Callable[[Tensor], Tensor]:
        """A function x (n, d) -> features (b, n) of ``group``, one cell after the other.

        Prepared once for many x; see ``Basis.features_of``.
        """
        first = self.group(group)[0]
        blocks = torch.arange(self._start(first), self._stop(first), device=device)
        features = basis.features_of(blocks)

        def ordered(x: Tensor) -> Tensor:
            split = features(x).T.reshape(blocks.shape[0], self.parts, -1, x.shape[0])
            return split.transpose(0, 1).reshape(-1, x.shape[0])

        return ordered

    def weight_group(self, basis: Basis, group: int, device: torch.device) -> WeightGroup:
        """The columns of ``group``, one cell after the other, for solves."""
        columns = torch.cat([self.columns(cell, device) for cell in self.group(group)])
        return WeightGroup(basis, columns, self.group_source(basis, group, device))

    def read_group(self, table: Tensor, group: int) -> Tensor:
        """Copy of the entries (b,) of ``group`` in a table (B, W), one cell after the other."""
        return torch.cat([self.read(table, cell) for cell in self.group(group)])

    def read(self, table: Tensor, cell: int) -> Tensor:
        """Copy of the entries (b,) of ``cell`` in a table (B, W)."""
        return self._view(table, cell).reshape(-1).clone()

    def write(self, table: Tensor, cell: int, values: Tensor) -> None:
        """Write values (b,) to the entries of ``cell`` in a table (B, W)."""
        view = self._view(table, cell)
        view.copy_(values.view(view.shape))

    def columns(self, cell: int, device: torch.device | None = None) -> Tensor:
        """Column numbers (b,) of ``cell`` within the basis, in the order of ``features``."""
        width = self.block_size // self.parts
        blocks = torch.arange(self._start(cell), self._stop(cell), device=device)
        within = torch.arange(width, device=device) + cell % self.parts * width
        return (blocks[:, None] * self.block_size + within).reshape(-1)

    def _view(self, table: Tensor, cell: int) -> Tensor:
        width = self.block_size // self.parts
        part = cell % self.parts
        return table[self._start(cell) : self._stop(cell), part * width : (part + 1) * width]
