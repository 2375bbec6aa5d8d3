"""Further tables, read from a data folder and never downloaded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpx.data.folders import checksums, extra_file, find
from gpx.data.sets.packed import packed_numbers
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError


class ExtraSet(NamedTuple):
    """Numbers of rows and inputs, and notes for readers of results."""

    n: int
    d: int
    notes: str = ""


EXTRA_SETS: dict[str, ExtraSet] = {
    "airline_passengers": ExtraSet(144, 1, "monthly passengers, 1949 to 1960"),
    "banana": ExtraSet(400, 2, "two classes"),
    "california": ExtraSet(20640, 8, "the target is capped at 500,001"),
    "hflights": ExtraSet(223874, 7, "arrival delays in minutes: heavy noise, heavy tails"),
    "mauna_loa_co2": ExtraSet(682, 1, "monthly means; random splits interpolate, not extrapolate"),
    "methane": ExtraSet(4915, 1, "times repeat, so test inputs occur in training"),
    "nyc_weather": ExtraSet(26114, 2, "station number by hour; neighbouring hours are alike"),
    "precip": ExtraSet(101270, 3, "year by longitude (periodic) by latitude; heavy tails"),
    "snelson1d": ExtraSet(200, 1, "the one-dimensional toy set of Snelson and Ghahramani"),
    "solar_irradiance": ExtraSet(402, 1, "yearly since 1610"),
}
NUM_SPLITS = 10
"""Columns of a test mask."""


class ExtraTable(DataSource):
    """A table of the ``extra`` folder: data.csv.gz, columns.txt and, for some, test_mask.csv.gz.

    It is looked for in ``root``, $GPX_DATA and the cache folder, as ``<name>/`` and
    ``extra/<name>/``. Without a mask, rows are divided into random folds.

    Args:
        name: one of ``EXTRA_SETS``.
        split, test_fraction, root, split_seed: as for every source.
    """

    def __init__(
        self,
        name: str,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        if name not in EXTRA_SETS:
            raise ConfigError(
                f"there is no extra data set {name!r}; known: {', '.join(EXTRA_SETS)}"
            )
        self.name = name

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: a file is missing or has another size than expected.
        """
        file = extra_file(self.root, self.name, "data.csv.gz")
        columns = extra_file(self.root, self.name, "columns.txt")
        names = [line.strip() for line in columns.read_text("utf-8").splitlines() if line.strip()]
        known = EXTRA_SETS[self.name]
        if len(names) != known.d + 1:
            raise DataError(f"{columns} names {len(names)} columns, expected {known.d + 1}")
        values = packed_numbers(file, known.d + 1, known.n)
        mask_file = find([file.parent], "test_mask.csv.gz")
        masks = None if mask_file is None else packed_numbers(mask_file, NUM_SPLITS, known.n)
        return Table(
            name=self.name,
            x=np.ascontiguousarray(values[:, :-1]),
            y=values[:, -1].copy(),
            input_names=tuple(names[:-1]),
            target_name=names[-1].removesuffix("(y)").strip(),
            test_masks=None if masks is None else masks.astype(bool),
            notes=known.notes,
            origin=str(file),
            checksums=checksums(f for f in (file, mask_file) if f is not None),
        )
