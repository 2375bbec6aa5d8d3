"""One pass over a stream before training: checks, statistics and checksum.

The pass finds invalid numbers before training begins, and its checksum identifies the data when a
run is resumed. Statistics are therefore those of all training rows. Memory does not grow with the
stream.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.data.labels import Task, misfits
from gpx.data.standardiser import EPS, SAFE
from gpx.data.stream.parts import Parts
from gpx.errors import DataError
from gpx.likelihoods.base import is_classification

CHUNK_BYTES = 2**22
"""Bytes of the files that are read at a time."""
MISSING_ADVICE = (
    "; rows that are read in batches must not lack values: remove such rows, or use a table that "
    "is read as a whole (data=CSVFile(), NPZFile(), ParquetFile()) and its missing="
)
"""Advice in the error for a missing value."""
MAX_LABELS = 1000
"""A target with more different values is not accepted as a class."""


@dataclass(frozen=True)
class Survey:
    """Results of the pass.

    Attributes:
        mean, std (d + p,): of the training rows, inputs then targets; population standard
            deviation, one for a constant column.
        constant (d + p,): columns that are constant to rounding over the training rows.
        kept (k, d + p): the requested rows, as in the files.
        values: different values of the target, ascending, if it is a class; otherwise empty.
        checksum: SHA-256 of all rows.
        read_seconds: time spent reading.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    constant: NDArray[np.bool_]
    kept: NDArray[np.float64]
    values: NDArray[np.float64]
    checksum: str
    read_seconds: float


def survey(
    parts: Parts,
    trained: NDArray[np.bool_],
    block_rows: int,
    keep: NDArray[np.int64],
    task: Task,
) -> Survey:
    """Read all rows once, in order.

    Args:
        parts: the files.
        trained (blocks,): mask of the blocks of ``block_rows`` rows that statistics are taken of.
        block_rows: rows of a block.
        keep: ascending indices of rows to return.
        task: of the likelihood.

    Raises:
        DataError: a number that is not finite or too large to be squared, an invalid count or
            proportion, or too many classes; with file, row and column.

    Cost: one pass over the files, O(d) operations per row.
    """
    total, step = len(parts), max(1, CHUNK_BYTES // parts.row_bytes // block_rows) * block_rows
    moments, digest, seconds = _Moments(parts.width), hashlib.sha256(), 0.0
    kept, values = [], np.empty(0)
    for start in range(0, total, step):
        stop = min(start + step, total)
        began = perf_counter()
        raw = parts.read(start, stop)
        seconds += perf_counter() - began
        digest.update(np.ascontiguousarray(raw).data)
        rows = raw.astype(np.float64)
        _check(parts, rows, start, task)
        if is_classification(task):
            values = np.union1d(values, rows[:, parts.num_inputs :])
            if len(values) > MAX_LABELS:
                raise DataError(
                    f"{parts.place(start, parts.num_inputs)}: the target has more than "
                    f"{MAX_LABELS} different values up to here, too many for classes; choose "
                    "another likelihood="
                )
        first, last = np.searchsorted(keep, (start, stop))
        kept.append(rows[keep[first:last] - start])
        counted = trained[np.arange(start, stop) // block_rows]
        moments.add(rows if counted.all() else rows[counted])
    mean, std, constant = moments.statistics()
    return Survey(mean, std, constant, np.concatenate(kept), values, digest.hexdigest(), seconds)


def _check(parts: Parts, rows: NDArray[np.float64], start: int, task: Task) -> None:
    """Raise DataError for a number that cannot be used, with its place."""
    sound = np.abs(rows) <= SAFE  # False for NaN
    if not sound.all():
        row, column = map(int, np.argwhere(~sound)[0])
        raise DataError(
            f"{parts.place(start + row, column)}: found {rows[row, column]:g}, expected a finite "
            f"number of at most {SAFE:g} in size"
            + (MISSING_ADVICE if np.isnan(rows[row, column]) else "")
        )
    y = rows[:, parts.num_inputs]
    bad, expected = misfits(y, task)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{parts.place(start + row, parts.num_inputs)}: found {y[row]:g}, expected {expected}; "
            "choose another likelihood= for other targets"
        )


class _Moments:
    """Mean, variance and range of columns, updated chunk by chunk.

    Source: Chan, Golub and LeVeque 1979 (merging of two samples).
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean, self.squares = np.zeros(width), np.zeros(width)
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)

    def add(self, rows: NDArray[np.float64]) -> None:
        """Add rows (b, width)."""
        count = len(rows)
        if not count:
            return
        mean = rows.mean(0)
        gap, whole = mean - self.mean, self.count + count
        self.squares += np.square(rows - mean).sum(0) + gap**2 * (self.count * count / whole)
        self.mean += gap * (count / whole)
        self.count = whole
        self.low = np.minimum(self.low, rows.min(0))
        self.high = np.maximum(self.high, rows.max(0))

    def statistics(self) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.bool_]]:
        """Mean, standard deviation and mask of constant columns, as in ``Standardiser``."""
        if not self.count:
            return self.mean, np.ones_like(self.mean), np.zeros(len(self.mean), bool)
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        std = np.sqrt(self.squares / self.count)
        # the square of a very small deviation may underflow to zero
        constant = ((self.high - self.low) <= EPS * largest) | (std == 0)
        mean = np.where(constant, self.low, self.mean)
        return mean, np.where(constant, 1.0, std), constant
