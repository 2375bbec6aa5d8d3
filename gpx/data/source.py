"""Data sources: where the rows of a data set come from, and how they are split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gpx.data.dataset import Dataset
from gpx.data.labels import Task
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError
from gpx.tensor_checks import check_at_least

Rows = NDArray[np.int64]

Form = Literal["table", "grid", "images", "stream"]
"""Form of the data: a table, a grid, images, or rows in files that are read in batches."""


class DataSource(ABC):
    """A data set; a subclass writes ``table``.

    A table with published test masks is split by these. Others are divided into
    ``1 / test_fraction`` folds by a random permutation, so that every row is tested in exactly one
    split. The permutation depends only on ``split_seed``, not on the seed of training.

    Args:
        split: number of the fold to test on, from 0.
        test_fraction: share of rows in a fold, for tables without masks; 1 / test_fraction is
            rounded to a whole number of folds. 0: all rows are trained on and none are tested.
        root: folder to look in before $GPX_DATA and the cache, for sources with files.
        split_seed: of the permutation.

    Raises:
        ConfigError: ``test_fraction`` is not in [0, 0.5], or is 0 and the source ``needs_test``;
            ``split_seed`` is negative.

    Attributes:
        form: of the data; the choice of a method depends on it.
        needs_test: whether the source requires test rows.
    """

    form: ClassVar[Form] = "table"
    needs_test: ClassVar[bool] = False

    def __init__(
        self,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        if not 0.0 <= test_fraction <= 0.5 or (test_fraction == 0.0 and self.needs_test):
            every = "" if self.needs_test else ", 0 trains on all rows"
            raise ConfigError(
                f"test_fraction={test_fraction} is not between 0 and 0.5; "
                f"0.1 gives ten splits of 90 % training and 10 % test rows{every}"
            )
        check_at_least(0, split_seed=split_seed)
        self.split = split
        self.test_fraction = test_fraction
        self.root = root
        self.split_seed = split_seed

    @abstractmethod
    def table(self) -> Table:
        """All rows in the data's own units; raises DataError if they are missing or malformed."""

    def dataset(self, task: Task) -> Dataset | None:
        """The data set, split and standardised, for sources whose rows are not in a table.

        Default: None, so that ``table`` is used.

        Args:
            task: of the likelihood.
        """
        return None

    def split_rows(self, table: Table) -> tuple[Rows, Rows]:
        """Ascending indices of the training rows and of the test rows of the split.

        Raises:
            DataError: the split does not exist, or there are too few rows for it.
        """
        if table.test_masks is not None:
            self._check_split(table, table.test_masks.shape[1])
            test = np.flatnonzero(table.test_masks[:, self.split]).astype(np.int64)
        elif self.test_fraction == 0.0:
            self._check_split(table, 1)
            test = np.empty(0, dtype=np.int64)
        else:
            test = self._random_fold(table)
        train = np.setdiff1d(np.arange(len(table.y)), test, assume_unique=True)
        untested = self.test_fraction == 0.0 and table.test_masks is None
        require_rows(table, self.split, train, test, least=0 if untested else 1)
        return train, test

    def _random_fold(self, table: Table) -> Rows:
        folds, rows = self._num_folds, len(table.y)
        self._check_split(table, folds)
        if rows < max(folds, 3):
            raise DataError(
                f"{table.where} has {rows} rows, fewer than the {max(folds, 3)} that "
                f"{folds} splits need; add rows or raise test_fraction= "
                f"(now {self.test_fraction:g}; 0: train on all rows)"
            )
        return np.sort(self._drawn_fold(rows))

    @property
    def _num_folds(self) -> int:
        return round(1.0 / self.test_fraction)

    def _drawn_fold(self, count: int) -> Rows:
        """Indices below ``count`` of the fold of this split, in random order."""
        order = np.random.Generator(np.random.PCG64(self.split_seed)).permutation(count)
        return np.array_split(order, self._num_folds)[self.split].astype(np.int64)

    def _check_split(self, table: Table, folds: int) -> None:
        if not 0 <= self.split < folds:
            raise DataError(
                f"split={self.split} does not exist: {table.where} has "
                + (f"{folds} splits, 0 to {folds - 1}" if folds > 1 else "one split, split=0")
            )


def require_rows(table: Table, split: int, train: Rows, test: Rows, least: int = 1) -> None:
    """Raise DataError unless a split has two training rows and ``least`` test rows."""
    if len(train) < 2 and not least:
        rows = "row" if len(train) == 1 else "rows"
        raise DataError(f"{table.where} has {len(train)} training {rows}; expected at least 2")
    if len(train) < 2 or len(test) < least:
        raise DataError(
            f"{table.where}: split {split} leaves {len(train)} training and {len(test)} "
            "test rows; expected at least 2 and 1"
        )
