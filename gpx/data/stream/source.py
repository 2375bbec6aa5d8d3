"""Training rows in files that do not fit in memory (``data=stream``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.data.dataset import Dataset
from gpx.data.folders import under
from gpx.data.labels import Label, Task, encode_targets
from gpx.data.loading import warn_of_constants
from gpx.data.source import DataSource
from gpx.data.standardiser import Standardiser
from gpx.data.stream.layout import find_parts
from gpx.data.stream.parts import Parts, Target
from gpx.data.stream.rows import NEAR_BLOCKS, BlockCache, NumberCoding, StreamedRows
from gpx.data.stream.survey import Survey, survey
from gpx.data.table import Table
from gpx.errors import DataError
from gpx.likelihoods.base import is_classification
from gpx.tensor_checks import check_at_least

BLOCK_ROWS = 256
"""Rows of a block, which is read, and assigned to training or testing, as a whole; fewer if the
stream is short."""
MIN_BLOCKS = 64
"""Fewest blocks of a stream that has as many rows; more if there are more folds."""


class Stream(DataSource):
    """Rows of .npy or Parquet files, read in batches; memory does not grow with their number.

    The stream is divided into blocks of 256 consecutive rows. A fold is a random tenth of the
    blocks. Of these, as many as hold at most ``max_test_rows`` rows, but at least one, are tested,
    and the others are trained on. Whole blocks are held out because consecutive rows are often
    similar, so that test rows between training rows would give too small errors.

    Batches are drawn from a buffer of ``buffer_rows`` rows with random pieces of four blocks each;
    an epoch visits every piece once and begins at a random row. Every row is in a batch with equal
    probability, as unbiased estimates require. Rows of a batch are not independent: they come from
    at most ``buffer_rows`` / 1024 places. If the files are ordered, raise ``buffer_rows`` or
    shuffle them. A stream that fits into the buffer is shuffled completely. Memory grows by one
    number per 256 rows (3 MB at 10^8 rows).

    Args:
        path: of a .npy or .parquet file, or a folder; see ``gpx.data.stream.layout.find_parts``.
        target: number of the target's column, or for Parquet files its name, or a list of several;
            or a .npy file of targets beside ``path``; None: the last column, or y of pairs.
        test_path: separate files to test on, in the format of ``path``; None: a fold of blocks.
        max_test_rows: most test rows in memory; a block is tested in any case.
        sample_rows: most random training rows in memory, for the start of hyperparameters, inducing
            points and variational distribution, and for the baselines.
        buffer_rows: training rows in memory from which batches are drawn.
        split, test_fraction, split_seed, root: as for every source.

    Raises:
        ConfigError: numbers out of range.
    """

    form = "stream"
    needs_test = True

    def __init__(
        self,
        path: str,
        target: Any = None,
        test_path: str | None = None,
        max_test_rows: int = 20_000,
        sample_rows: int = 100_000,
        buffer_rows: int = 131_072,
        split: int = 0,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        root: str | None = None,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_at_least(
            2, max_test_rows=max_test_rows, sample_rows=sample_rows, buffer_rows=buffer_rows
        )
        self.path, self.target, self.test_path = path, cast(Target, target), test_path
        self.max_test_rows, self.sample_rows = max_test_rows, sample_rows
        self.buffer_rows = buffer_rows

    def table(self) -> Table:
        """Not available, as the rows are not in memory.

        Raises:
            DataError: always.
        """
        raise DataError(f"{self.path} is a stream, whose rows are not in memory as a table")

    def dataset(self, task: Task) -> Dataset:
        """The data set: training rows in files, test rows and a sample in memory.

        Raises:
            DataError: files, rows or columns are missing or malformed.
        """
        parts = find_parts(under(self.root, self.path), self.target)
        total = len(parts)
        size = max(1, min(BLOCK_ROWS, total // MIN_BLOCKS))
        if self.test_path is None and -(-total // size) < self._num_folds:
            size = max(1, total // self._num_folds)  # a block for each fold
        trained = np.ones(-(-total // size), dtype=bool)
        if self.test_path is None:
            trained[self._test_blocks(total, size, str(self.path))] = False
        blocks = np.flatnonzero(trained)
        num_train = len(blocks) * size - (-total % size if trained[-1] else 0)
        if num_train < 2:
            raise DataError(f"{self.path} has {num_train} training rows, expected 2 or more")
        generator = np.random.Generator(np.random.PCG64(self.split_seed))
        sample = _drawn(num_train, self.sample_rows, generator)
        sample = blocks[sample // size] * size + sample % size
        held_out = np.flatnonzero(~trained)
        test = (held_out[:, None] * size + np.arange(size)).ravel()
        test = test[test < total]
        keep = np.sort(np.concatenate([sample, test]))
        found = survey(parts, trained, size, keep, task)
        coding, scaler, labels = self._coding(parts, found, task)
        names = (*parts.input_names, *parts.target_names)
        warn_of_constants(str(self.path), names, parts.num_inputs, found.constant)
        in_memory = torch.from_numpy(coding(found.kept))
        in_test = np.isin(keep, test)
        sampled, tested = (
            in_memory[torch.from_numpy(np.flatnonzero(rows))] for rows in (~in_test, in_test)
        )
        checksums = {"stream": found.checksum}
        if self.test_path is not None:
            tested, checksums["test"] = self._own_test(parts, coding, task)
        pieces = -(-self.buffer_rows // (NEAR_BLOCKS * size))
        # a piece that begins within a block extends over one more
        room = pieces * (NEAR_BLOCKS + 1)
        cache = BlockCache(parts, coding, blocks, size, num_train, room, torch.float64)
        d = parts.num_inputs
        targets = d if len(parts.target_names) == 1 else slice(d, parts.width)
        several = parts.target_names if len(parts.target_names) > 1 else ()
        return Dataset(
            name=Path(self.path).stem,
            split=self.split,
            task=task,
            train_x=cast(Tensor, StreamedRows(cache, slice(0, d))),
            train_y=cast(Tensor, StreamedRows(cache, targets)),
            test_x=tested[:, :d],
            test_y=tested[:, targets],
            scaler=scaler,
            input_names=parts.input_names,
            target_name=", ".join(parts.target_names),
            labels=labels,
            checksums=checksums,
            target_names=several,
            sample=(sampled[:, :d], sampled[:, targets]),
            facts={
                "rows": total,
                "train_rows": num_train,
                "test_rows": len(tested),
                "sample_rows": len(sampled),
                "file_mib": total * parts.row_bytes / 2**20,
                "file_rows_per_second": total / max(found.read_seconds, 1e-9),
            },
        )

    def _test_blocks(self, rows: int, size: int, where: str) -> NDArray[np.int64]:
        """Numbers of the test blocks: those of the fold, up to ``max_test_rows`` rows, or one."""
        folds, blocks = self._num_folds, -(-rows // size)
        if not 0 <= self.split < folds:
            raise DataError(
                f"split={self.split} does not exist: {where} has {folds} splits, 0 to {folds - 1}"
            )
        if blocks < max(folds, 3):
            raise DataError(
                f"{where} has {rows} rows, fewer than the {max(folds, 3)} that {folds} splits "
                "need; add rows or give test_path="
            )
        return self._drawn_fold(blocks)[: max(1, self.max_test_rows // size)]

    def _own_test(self, parts: Parts, coding: NumberCoding, task: Task) -> tuple[Tensor, str]:
        """Encoded rows of ``test_path``, and the checksum of its files."""
        assert self.test_path is not None
        target = self.target
        if isinstance(target, str) and target.endswith(".npy"):
            raise DataError(
                f"test_path={self.test_path} cannot be used with target={target}, a single file; "
                "put inputs and targets in folders, as x.npy and y.npy"
            )
        tested = under(self.root, self.test_path, "test_path")
        if tested.resolve() == under(self.root, self.path).resolve():
            raise DataError(
                f"test_path={self.test_path} is the same as path=, whose rows are trained on; "
                "leave it out to test on a fold of blocks"
            )
        own = find_parts(tested, target)
        if (own.num_inputs, own.width) != (parts.num_inputs, parts.width):
            raise DataError(
                f"{self.test_path} has {own.num_inputs} inputs and {own.width} columns, "
                f"{self.path} has {parts.num_inputs} and {parts.width}; expected the same"
            )
        for there, here in zip(
            (*own.input_names, *own.target_names),
            (*parts.input_names, *parts.target_names),
            strict=True,
        ):
            if there != here:
                raise DataError(
                    f"{self.test_path} has the column {there!r} where {self.path} has {here!r}; "
                    "expected the same columns in the same order"
                )
        generator = np.random.Generator(np.random.PCG64(self.split_seed))
        keep = _drawn(len(own), self.max_test_rows, generator)
        none = np.zeros(-(-len(own) // BLOCK_ROWS), dtype=bool)
        found = survey(own, none, BLOCK_ROWS, keep, task)
        if coding.labels is not None:
            unknown = np.setdiff1d(found.values, coding.labels)
            if len(unknown):
                raise DataError(
                    f"{self.test_path}: the target takes {unknown[0]:g}, which no row of "
                    f"{self.path} has"
                )
        return torch.from_numpy(coding(found.kept)), found.checksum

    def _coding(
        self, parts: Parts, found: Survey, task: Task
    ) -> tuple[NumberCoding, Standardiser, tuple[Label, ...]]:
        """The coding of numbers, the equivalent standardiser, and the labels of classes."""
        d, outputs = parts.num_inputs, len(parts.target_names)
        mean, std = found.mean.copy(), found.std.copy()
        if task != "regression":
            mean[d:], std[d:] = 0.0, 1.0
            if outputs > 1:
                raise DataError(
                    f"{self.path} has {outputs} targets, and a likelihood of classes or counts "
                    "takes one; choose another likelihood="
                )
        scaler = Standardiser(d, outputs)
        scaler.input_mean.copy_(torch.from_numpy(mean[:d]))
        scaler.input_scale.copy_(torch.from_numpy(std[:d]))
        scaler.target_mean.copy_(torch.from_numpy(mean[d:]).view_as(scaler.target_mean))
        scaler.target_scale.copy_(torch.from_numpy(std[d:]).view_as(scaler.target_scale))
        if not is_classification(task):
            return NumberCoding(mean, std), scaler, ()
        values = Table(
            name=str(self.path),
            x=np.zeros((len(found.values), 1)),
            y=found.values,
            input_names=("x1",),
            target_name=parts.target_names[0],
            origin=str(self.path),
        )
        codes, labels = encode_targets(values, task)
        return NumberCoding(mean, std, found.values, codes), scaler, labels


def _drawn(rows: int, most: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Ascending indices of all rows, or of at most ``most`` rows drawn uniformly."""
    if rows <= most:
        return np.arange(rows)
    return np.unique(generator.integers(0, rows, most))
