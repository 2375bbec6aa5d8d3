"""Sources of labelled images: rows of pixels, noise, and balanced subsets."""

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
    """A random, class-balanced subset of ``rows``, ascending; class counts differ by at most one.

    Args:
        classes (n,): of all rows.
        rows (r,): to choose from.
        size: number of rows to choose.
        seed: of the choice; a smaller subset is part of a larger one with the same seed.
        where: name of the data, for messages.

    Raises:
        DataError: a class has too few rows.
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
            f"{where}: train_size={size} needs {size / len(found):.4g} images of each of "
            f"{len(found)} classes, and class {found[least]:g} has {counts[least]} in the "
            f"training part; choose train_size= from {len(found)} to "
            f"{int(counts.min()) * len(found)}"
        )
    return np.sort(rows[chosen])


class ImageSource(DataSource):
    """Labelled images as rows of pixels, divided by their range; a subclass writes ``images``.

    Args:
        train_size: size of a class-balanced subset of the training part; None: all of it.
        noise: standard deviation of normal noise added to every pixel, relative to the range of
            pixels; the same for every subset and split.
        split, test_fraction, root, split_seed: as for every source; ``split_seed`` also determines
            the subset and the noise.

    Raises:
        ConfigError: a subset of fewer than two images, or negative noise.
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
        """All images without noise; raises DataError if they are missing or malformed."""

    def table(self) -> Table:
        """All images; raises DataError if they are missing or malformed."""
        table = self.images()
        if not self.noise:
            return table
        rng = np.random.Generator(np.random.PCG64([self.split_seed, 1]))
        unit = table.input_unit or 1.0
        return dataclasses.replace(
            table, x=table.x + self.noise * unit * rng.standard_normal(table.x.shape)
        )

    def split_rows(self, table: Table) -> tuple[Rows, Rows]:
        """As for every source, with the subset of the training rows.

        Raises:
            DataError: also if a class has no training rows, or too few for the subset.
        """
        train, test = super().split_rows(table)
        missing = np.setdiff1d(table.y, table.y[train])
        if len(missing):
            raise DataError(
                f"{table.where}: class {missing[0]:g} has no training rows in split {self.split}, "
                "so it cannot be learned; choose another split= or add images of it"
            )
        if self.train_size is not None:
            train = balanced_rows(table.y, train, self.train_size, self.split_seed, table.where)
        return train, test
