"""Batches of training rows, with the known noise or weight of each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError, class_name
from gpx.lazy_rows import LazyRows
from gpx.likelihoods.row_noise import RowNoise


class Batch(NamedTuple):
    """The rows of one mini-batch step.

    Attributes:
        x (b, d), y (b,) or (b, p): inputs and targets.
        rows (b,): row numbers among all training data; None: not needed.
        noise: known noise variance or weight of each row; None: nothing is known.
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    noise: RowNoise | None = None

    @classmethod
    def of(cls, model: Any, x: Tensor, y: Tensor, rows: Tensor) -> Batch:
        """The batch of the rows with these numbers (b,).

        Args:
            model: its ``row_noise``, where it has one, is that of all training rows.
            x (n, d), y (n,): all training data.
        """
        known: RowNoise | None = getattr(model, "row_noise", None)
        return cls(x[rows], y[rows], rows, None if known is None else known.of(rows))

    def part(self, rows: slice) -> Batch:
        """A slice of this batch."""
        numbers = None if self.rows is None else self.rows[rows]
        noise = None if self.noise is None else self.noise.of(rows)
        return Batch(self.x[rows], self.y[rows], numbers, noise)


def batches_in_order(
    model: Any, x: Tensor | LazyRows, y: Tensor | LazyRows, size: int
) -> Iterator[Batch]:
    """All rows in order in batches of ``size`` rows, fewer in the last.

    Rows in files are read one batch at a time.
    """
    known: RowNoise | None = getattr(model, "row_noise", None)
    start = 0
    for rows_x, rows_y in zip(x.split(size), y.split(size), strict=True):
        rows = torch.arange(start, start + len(rows_x), device=x.device)
        start += len(rows_x)
        yield Batch(rows_x, rows_y, rows, None if known is None else known.of(rows))


def resolve_row_noise(
    model: Any, noise: RowNoise | None, count: int, total: int
) -> RowNoise | None:
    """``noise`` if it is given, else the model's, which is valid for all training rows only.

    Args:
        noise: known noise of the given rows; None: take the model's.
        count: number of given rows; total: n.

    Raises:
        ConfigError: the model has row noise, and the given rows are not all n.
    """
    known: RowNoise | None = getattr(model, "row_noise", None)
    if noise is not None or known is None:
        return noise
    if count != total:
        raise ConfigError(
            f"{class_name(model)} knows the noise or the weight of each of {total} rows, but was "
            f"given {count} rows without theirs: give noise= of these rows"
        )
    return known
