"""Images with a class each: rows of pixels, noise, and balanced subsets."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod

import numpy as np

from gpx.data.columns.numbers import Floats
from gpx.data.source import DataSource, Rows
from gpx.data.table import Table
from gpx.errors import DataError
from gpx.tensor_checks import check_at_least, check_not_negative


def balanced_rows(classes: Floats, rows: Rows, size: int, seed: int, where: str) -> Rows:
    """``size`` of ``rows``, as many of each class as of any other, give or take one; ascending.

    Args:
        classes (n,): of all rows.
        rows (r,): to choose from.
        size: how many.
        seed: of the choice; the smaller of two choices of one seed is part of the larger.
        where: what the rows are of, for messages.

    Raises:
        DataError: a class has too few rows for that.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    found, inverse = np.unique(classes[rows], return_inverse=True)
    order, offset = rng.permutation(len(rows)), rng.permutation(len(found))
    rank = np.empty(len(rows), dtype=np.int64)
    for number in range(len(found)):
        own = order[inverse[order] == number]
        rank[own] = np.arange(len(own)) * len(found) + offset[number]
    chosen = np.argsort(rank)[:size]
    if size > len(rows) or size < len(found) or rank[chosen].max() >= size:
        counts = np.bincount(inverse)
        least = int(counts.argmin())
        raise DataError(
            f"{where}: train_size={size} asks for {size / len(found):.4g} images of each of "
            f"{len(found)} classes, of which class {found[least]:g} has {counts[least]} in the "
            f"training part; choose train_size= from {len(found)} to "
            f"{int(counts.min()) * len(found)}"
        )
    return np.sort(rows[chosen])


class ImageSource(DataSource):
    """Images as rows of pixels, row by row and channel after channel, divided by their range.

    A subclass writes ``images``.

    Args:
        train_size: a class-balanced subset of the training part; None takes all of it.
        noise: standard deviation of normal noise that is added to every pixel, where 1 is the range
            of the pixels; the same for every size and split.
        split, test_fraction, root, split_seed: as for every source; ``split_seed`` is also that of
            the subset and of the noise.

    Raises:
        ConfigError: a subset of fewer than two, or negative noise.
    """

    form = "images"

    def __init__(
        self,
        train_size: int | None = None,
        noise: float = 0.0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_at_least(2, train_size=train_size)
        check_not_negative(noise=noise)
        self.train_size, self.noise = train_size, noise

    @abstractmethod
    def images(self) -> Table:
        """All images, without noise; raises DataError where they cannot be had."""

    def table(self) -> Table:
        """All images; raises DataError where they cannot be had."""
        table = self.images()
        if not self.noise:
            return table
        rng = np.random.Generator(np.random.PCG64([self.split_seed, 1]))
        unit = table.input_unit or 1.0
        return dataclasses.replace(
            table, x=table.x + self.noise * unit * rng.standard_normal(table.x.shape)
        )

    def split_rows(self, table: Table) -> tuple[Rows, Rows]:
        """As for every source; of the training rows the subset.

        Raises:
            DataError: also where a class has no training rows, or too few for the subset.
        """
        train, test = super().split_rows(table)
        missing = np.setdiff1d(table.y, table.y[train])
        if len(missing):
            raise DataError(
                f"{table.where}: class {missing[0]:g} has no training rows in split {self.split}, "
                "so nothing can be learned about it; choose another split= or add images of it"
            )
        if self.train_size is not None:
            train = balanced_rows(table.y, train, self.train_size, self.split_seed, table.where)
        return train, test
