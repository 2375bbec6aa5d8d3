"""Partitions of the training rows into blocks: experts, blocks of PITC and PIC."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.errors import ConfigError, DataError
from gpx.inducing.base import Selector, require_selector
from gpx.inducing.kmeans import KMeans, distance_scale
from gpx.kernels.base import Kernel

CHUNK_ENTRIES = 2**23
"""Entries of one block of the distance table (64 MiB in float64)."""


@dataclass(frozen=True)
class Blocks:
    """A partition of n training rows into B blocks, none of them empty.

    Attributes:
        labels (n,): block of every row, int64 from 0 to B - 1.
        centres (B, d): mean inputs of the blocks.
        weights (d,): weight of each input in the squared distance to a centre, for new points; all
            zero where a block is no region of the input space (a random partition).
    """

    labels: Tensor
    centres: Tensor
    weights: Tensor

    @classmethod
    def of(cls, labels: Tensor, x: Tensor, weights: Tensor) -> Blocks:
        """Blocks of these labels over inputs x (n, d); their centres are the means of their rows.

        Raises:
            DataError: a block without rows.
        """
        count = int(labels.max()) + 1
        sizes = torch.bincount(labels, minlength=count)
        if bool((sizes == 0).any()):
            empty = int((sizes == 0).nonzero()[0])
            raise DataError(
                f"block {empty} of {count} has no training rows: fewer different inputs than "
                "blocks; ask for fewer blocks, or balance them"
            )
        sums = torch.zeros(count, x.shape[1], dtype=x.dtype, device=x.device)
        centres = sums.index_add_(0, labels, x) / sizes.unsqueeze(1)
        return cls(labels, centres, weights)

    @property
    def sizes(self) -> Tensor:
        """Rows of every block (B,)."""
        return torch.bincount(self.labels, minlength=len(self.centres))

    @property
    def order(self) -> Tensor:
        """Row numbers (n,), one block after the other; within a block in their old order."""
        return torch.argsort(self.labels, stable=True)

    def nearest(self, x: Tensor) -> Tensor:
        """Block (t,) of the nearest centre to each of x (t, d).

        Raises:
            ConfigError: the blocks are no regions of the input space.
        """
        if not bool((self.weights > 0.0).any()):
            raise ConfigError(
                "a random partition has no nearest block for a new point; partition by clusters "
                "or by a column"
            )
        return nearest_centre(x, self.centres, self.weights)


def nearest_centre(x: Tensor, centres: Tensor, weights: Tensor) -> Tensor:
    """Number (t,) of the centre (B, d) nearest to each of x (t, d), in chunks of points.

    Args:
        weights (d,): of each input in the squared distance.
    """
    found = [
        weighted_distance(part, centres, weights).argmin(1)
        for part in x.split(max(1, CHUNK_ENTRIES // len(centres)))
    ]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.long, device=x.device)


def weighted_distance(x: Tensor, centres: Tensor, weights: Tensor) -> Tensor:
    """Squared distances (t, B) with a weight (d,) of each input, up to a term that x alone sets."""
    root = weights.sqrt()
    middle = centres.mean(0)
    points, ends = (x - middle) * root, (centres - middle) * root
    return torch.addmm(ends.square().sum(1), points, ends.T, alpha=-2.0)


class Partition(ABC):
    """Cuts the training rows into blocks, from their inputs alone."""

    @abstractmethod
    def _blocks(
        self, x: Tensor, kernel: Kernel, num_blocks: int, generator: torch.Generator | None
    ) -> Blocks:
        """The blocks for valid arguments, without a gradient graph."""

    def num_blocks(self, x: Tensor) -> int | None:
        """Blocks that the inputs x (n, d) themselves have; None: as many as are asked for."""
        return None

    def __call__(
        self,
        x: Tensor,
        kernel: Kernel,
        num_blocks: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Blocks:
        """Cut the rows of x (n, d) into ``num_blocks`` blocks.

        Args:
            x (n, d): training inputs.
            kernel: whose lengthscales say what is near.
            num_blocks: B, at most n.
            generator: source of randomness on the device of x.

        Raises:
            DataError: fewer rows than blocks, an empty block, or inputs that are not finite.
            ConfigError: ``num_blocks`` below 1.
        """
        if num_blocks < 1:
            raise ConfigError(f"a partition needs at least 1 block, got {num_blocks}")
        if num_blocks > len(x):
            raise DataError(
                f"{num_blocks} blocks were asked for but there are only {len(x)} training points; "
                f"ask for {len(x)} or fewer"
            )
        if not bool(torch.isfinite(x).all()):
            raise DataError("the inputs hold NaN or infinite values and cannot be partitioned")
        with torch.no_grad():
            return self._blocks(x.detach(), kernel, num_blocks, generator)


class RandomBlocks(Partition):
    """Blocks of random rows, of equal sizes up to one row. Cost: O(n)."""

    def _blocks(
        self, x: Tensor, kernel: Kernel, num_blocks: int, generator: torch.Generator | None
    ) -> Blocks:
        order = torch.randperm(len(x), generator=generator, device=x.device)
        labels = torch.empty_like(order)
        labels[order] = torch.arange(len(x), device=x.device) % num_blocks
        return Blocks.of(labels, x, x.new_zeros(x.shape[1]))


class ClusterBlocks(Partition):
    """Rows by their nearest centre: k-means or another choice of centres.

    Args:
        selector: of the centres; None: ``KMeans``.
        balanced: whether sizes are equal up to one row. Rows then bid for their nearest centre that
            has room, which takes its nearest bidders, until all rows are placed; otherwise a block
            is a Voronoi cell, of whatever size.

    Cost: the selector's; O(n B d) for the cells, up to B times as much for balanced blocks (a few
    rounds leave few rows to place).
    """

    def __init__(self, selector: Selector | None = None, balanced: bool = True) -> None:
        self.selector = KMeans() if selector is None else require_selector(selector)
        self.balanced = balanced

    def _blocks(
        self, x: Tensor, kernel: Kernel, num_blocks: int, generator: torch.Generator | None
    ) -> Blocks:
        weights = distance_scale(x, kernel).square().reciprocal()
        if num_blocks == 1:
            return Blocks.of(torch.zeros(len(x), dtype=torch.long, device=x.device), x, weights)
        centres = self.selector(x, kernel, num_blocks, generator=generator)
        if not self.balanced:
            labels = nearest_centre(x, centres, weights)
            missing = num_blocks - len(torch.unique(labels))
            if missing:
                raise DataError(
                    f"{missing} of {num_blocks} blocks have no training rows: fewer different "
                    "inputs than blocks; ask for fewer blocks, or set balanced=true"
                )
            return Blocks.of(labels, x, weights)
        labels = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
        share, rest = divmod(len(x), num_blocks)
        room = torch.full((num_blocks,), share, device=x.device)
        _fill(labels, room, x, centres, weights)
        if rest:
            _fill(labels, torch.ones_like(room), x, centres, weights)
        return Blocks.of(labels, x, weights)


def _fill(labels: Tensor, room: Tensor, x: Tensor, centres: Tensor, weights: Tensor) -> None:
    """Place unplaced rows (label -1) at centres (B, d) with ``room`` (B,), until one is used up."""
    while True:
        waiting = (labels < 0).nonzero().squeeze(1)
        open_centres = (room > 0).nonzero().squeeze(1)
        if not len(waiting) or not len(open_centres):
            return
        ends = centres[open_centres]
        bid = nearest_centre(x[waiting], ends, weights)
        gap = ((x[waiting] - ends[bid]).square() * weights).sum(1)
        # bidders by centre, the nearest first; the place of each among its centre's bidders
        order = torch.argsort(gap, stable=True)
        order = order[torch.argsort(bid[order], stable=True)]
        counts = torch.bincount(bid, minlength=len(open_centres))
        first = counts.cumsum(0) - counts
        place = torch.arange(len(order), device=x.device) - first[bid[order]]
        taken = order[place < room[open_centres[bid[order]]]]
        chosen = open_centres[bid[taken]]
        labels[waiting[taken]] = chosen
        room -= torch.bincount(chosen, minlength=len(room))


class ColumnBlocks(Partition):
    """One block for each value of an input column, such as a station or a year.

    Args:
        column: of the inputs, from 0 on.

    Cost: O(n log n).
    """

    def __init__(self, column: int) -> None:
        if column < 0:
            raise ConfigError(f"column={column} must be 0 or more")
        self.column = column

    def num_blocks(self, x: Tensor) -> int:
        """Different values of the column.

        Raises:
            ConfigError: there is no such column.
        """
        if self.column >= x.shape[1]:
            raise ConfigError(
                f"column={self.column} is not there: the inputs have {x.shape[1]} columns, "
                "numbered from 0"
            )
        return len(torch.unique(x[:, self.column]))

    def _blocks(
        self, x: Tensor, kernel: Kernel, num_blocks: int, generator: torch.Generator | None
    ) -> Blocks:
        found = self.num_blocks(x)
        if found != num_blocks:
            raise ConfigError(
                f"column {self.column} has {found} different values and {num_blocks} blocks were "
                "asked for; leave the number of blocks to the column"
            )
        _, labels = torch.unique(x[:, self.column], return_inverse=True)
        weights = x.new_zeros(x.shape[1])
        weights[self.column] = 1.0
        return Blocks.of(labels, x, weights)


def require_partition(value: object) -> Partition:
    """``value`` if it is a partition; raises ConfigError otherwise."""
    if not isinstance(value, Partition):
        raise ConfigError(
            f"{value!r} is no partition: give an instance, such as gpx.inducing.ClusterBlocks()"
        )
    return value
