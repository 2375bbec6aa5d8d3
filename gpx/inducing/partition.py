"""Partitions of the training rows into blocks, for experts and for PITC and PIC."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.data_sized import DataSized
from gpx.errors import ConfigError, DataError, ShapeError, class_name
from gpx.inducing.base import Selector, require_selector
from gpx.inducing.kmeans import KMeans, distance_unit, nearest_centre
from gpx.kernels.base import Kernel
from gpx.tensor_checks import check_at_least


@dataclass(frozen=True)
class Blocks:
    """A partition of n training rows into B blocks, none of them empty.

    Attributes:
        labels (n,): block of every row, int64 from 0 to B - 1.
        centres (B, d): mean inputs of the blocks.
        weights (d,): weight of each input in the squared distance of new points to a centre; all
            zero if the blocks are not regions of the input space (a random partition).
    """

    labels: Tensor
    centres: Tensor
    weights: Tensor

    @classmethod
    def of(cls, labels: Tensor, x: Tensor, weights: Tensor) -> Blocks:
        """Blocks with these labels over inputs x (n, d).

        Raises:
            DataError: a block without rows.
        """
        count = int(labels.max()) + 1
        sizes = torch.bincount(labels, minlength=count)
        if bool((sizes == 0).any()):
            empty = int((sizes == 0).nonzero()[0])
            raise DataError(
                f"block {empty} of {count} has no training rows: there are fewer distinct inputs "
                "than blocks (experts have one each); ask for fewer, or balance them"
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
        """Row numbers (n,) sorted by block, in their original order within a block."""
        return torch.argsort(self.labels, stable=True)


def nearest_block(x: Tensor, centres: Tensor, weights: Tensor) -> Tensor:
    """Number (t,) of the centre (B, d) nearest to each of x (t, d), in chunks of points.

    Args:
        weights (d,): of each input in the squared distance.

    Cost: t B d; no t x B array.
    """
    root = weights.sqrt()
    return nearest_centre(x * root, centres * root)


class Regions(DataSized):
    """Assigns points of the input space to the block of the nearest centre.

    Part of the state of models and posteriors; empty until ``place`` or loading.

    Attributes:
        centres (B, d), weights (d,): as in ``Blocks``.
    """

    data_sized = ("centres", "weights")
    centres: Tensor
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_data_sized()

    def __len__(self) -> int:
        return len(self.centres)

    def place(self, centres: Tensor, weights: Tensor) -> None:
        """Store copies of the centres (B, d) and of the weight of each input (d,)."""
        self.keep(centres, centres=centres, weights=weights)

    @torch.no_grad()
    def nearest(self, x: Tensor) -> Tensor:
        """Block (t,) of the nearest centre to each of x (t, d); costs as ``nearest_block``.

        Raises:
            ShapeError: another number of inputs.
            ConfigError: the blocks are not regions of the input space.
        """
        if x.shape[1] != len(self.weights):
            raise ShapeError(
                f"inputs have {x.shape[1]} columns and the blocks were made for {len(self.weights)}"
            )
        if not bool((self.weights > 0.0).any()):
            raise ConfigError(
                "a random partition has no nearest block for a new point; partition by clusters "
                "or by a column"
            )
        return nearest_block(x, self.centres, self.weights)


class Partition(ABC):
    """Cuts the training rows into blocks, from their inputs alone."""

    @abstractmethod
    def _blocks(
        self, x: Tensor, kernel: Kernel, num_blocks: int, generator: torch.Generator | None
    ) -> Blocks:
        """The blocks for valid arguments, without a gradient graph."""

    def num_blocks(self, x: Tensor) -> int | None:
        """Number of blocks fixed by the inputs x (n, d); None: any number."""
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
            kernel: its lengthscales are the units of distance.
            num_blocks: B, at most n.
            generator: source of randomness on the device of x.

        Raises:
            DataError: fewer rows than blocks, an empty block, or inputs that are not finite.
            ConfigError: ``num_blocks`` below 1.
        """
        check_at_least(1, num_blocks=num_blocks)
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
    """Blocks of neighbouring rows, by k-means.

    Balanced blocks come from repeated halving by 2-means with prescribed sizes. Given two centres,
    the optimal assignment of given sizes sorts the rows by their projections on the line between
    the centres.

    Args:
        balanced: whether sizes are equal up to one row; otherwise blocks are the Voronoi cells of
            the selector's centres.
        selector: of these centres; None: ``KMeans``.
        max_iterations: limit of 2-means steps per halving.

    Cost: balanced O(n (d + log n) log B) per step; cells the selector's and O(n B d).
    """

    def __init__(
        self, balanced: bool = True, selector: Selector | None = None, max_iterations: int = 20
    ) -> None:
        check_at_least(1, max_iterations=max_iterations)
        self.balanced = balanced
        self.selector = KMeans() if selector is None else require_selector(selector)
        self.max_iterations = max_iterations

    def _blocks(
        self, x: Tensor, kernel: Kernel, num_blocks: int, generator: torch.Generator | None
    ) -> Blocks:
        unit = distance_unit(x, kernel)
        weights = unit.square().reciprocal()
        if self.balanced:
            labels = torch.empty(len(x), dtype=torch.long, device=x.device)
            rows = torch.arange(len(x), device=x.device)
            self._halve(labels, x / unit, rows, range(num_blocks))
            return Blocks.of(labels, x, weights)
        centres = self.selector(x, kernel, num_blocks, generator=generator)
        if len(centres) != num_blocks:
            raise ConfigError(
                f"{class_name(self.selector)} gives {len(centres)} centres and {num_blocks} blocks "
                f"(experts have one each) were asked for: ask for {len(centres)}"
            )
        labels = nearest_block(x, centres, weights)
        missing = num_blocks - len(torch.unique(labels))
        if missing:
            raise DataError(
                f"{missing} of {num_blocks} blocks have no training rows: there are fewer "
                "distinct inputs than blocks (experts have one each); ask for fewer, or set "
                "balanced=true"
            )
        return Blocks.of(labels, x, weights)

    def _halve(self, labels: Tensor, points: Tensor, rows: Tensor, blocks: range) -> None:
        """Label ``rows`` (r,) with the numbers ``blocks``, in sizes equal up to one row."""
        if len(blocks) == 1:
            labels[rows] = blocks.start
            return
        left = len(blocks) // 2
        share, rest = divmod(len(rows), len(blocks))
        size = share * left + min(rest, left)
        own = points[rows]
        _, axes = torch.linalg.eigh((own - own.mean(0)).mT @ (own - own.mean(0)))
        direction, chosen = axes[:, -1], None
        for _ in range(self.max_iterations):
            order = torch.argsort(own @ direction, stable=True)
            first = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
            first[order[:size]] = True
            if chosen is not None and torch.equal(first, chosen):
                break
            chosen = first
            direction = own[~first].mean(0) - own[first].mean(0)
        self._halve(labels, points, rows[order[:size]], blocks[:left])
        self._halve(labels, points, rows[order[size:]], blocks[left:])


class ColumnBlocks(Partition):
    """One block for each value of an input column, such as a station or a year.

    Args:
        column: of the inputs, from 0 on.

    Cost: O(n log n).
    """

    def __init__(self, column: int) -> None:
        check_at_least(0, column=column)
        self.column = column

    def num_blocks(self, x: Tensor) -> int:
        """Number of distinct values of the column.

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
            f"partition={value!r} is no partition: give an instance, such as "
            "partition=ClusterBlocks()"
        )
    return value


def require_regions(value: Partition, name: str) -> Partition:
    """``value`` if its blocks are regions of the input space; raises ConfigError otherwise.

    Args:
        name: of the method that needs them, for the message.
    """
    if isinstance(value, RandomBlocks):
        raise ConfigError(
            f"{name} needs regions of the input space, which random blocks are not; partition by "
            "clusters or by a column"
        )
    return value


def choose_num_blocks(
    asked: int | None,
    partition: Partition,
    x: Tensor,
    rows_per_block: int,
    name: str,
    *,
    chosen: int | None = None,
) -> tuple[int, str]:
    """Number of blocks for inputs x (n, d), and the reason in words, empty if it was given.

    Args:
        asked: the option; None: about ``rows_per_block`` rows each, or fixed by the partition.
        name: of the option, for messages.
        chosen: the number that was chosen for earlier inputs, which as ``asked`` counts as None.

    Raises:
        DataError: more blocks than rows.
        ConfigError: another number than the partition has.
    """
    n, own = len(x), partition.num_blocks(x)
    asked = None if asked == chosen else asked
    if own is not None:
        if asked not in (None, own):
            raise ConfigError(
                f"{name}={asked}, but the partition has {own} blocks; leave {name}=None"
            )
        return own, "" if asked else "one for each block of the partition"
    if asked is None:
        blocks = max(1, round(n / rows_per_block))
        return blocks, f"about {n / blocks:.0f} rows each"
    if asked > n:
        raise DataError(
            f"{name}={asked} is more than the {n} training points; ask for {n} or fewer"
        )
    return asked, ""
