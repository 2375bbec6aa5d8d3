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
    """What a step of a mini-batch objective is given.

    Attributes:
        x (b, d), y (b,) or (b, p): inputs and targets.
        rows (b,): row numbers among all training data; None where they are not needed.
        noise: known noise variance or weight of each row; None where there is none.
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    noise: RowNoise | None = None

    @classmethod
    def of(cls, model: Any, x: Tensor, y: Tensor, rows: Tensor) -> Batch:
        """The rows with these numbers (b,).

        Args:
            model: with ``row_noise`` of all rows, where it takes any.
            x (n, d), y (n,): all training data.
        """
        known: RowNoise | None = getattr(model, "row_noise", None)
        return cls(x[rows], y[rows], rows, None if known is None else known.of(rows))

    def part(self, rows: slice) -> Batch:
        """The batch of a slice of its rows."""
        numbers = None if self.rows is None else self.rows[rows]
        noise = None if self.noise is None else self.noise.of(rows)
        return Batch(self.x[rows], self.y[rows], numbers, noise)


def in_order(model: Any, x: Tensor | LazyRows, y: Tensor | LazyRows, size: int) -> Iterator[Batch]:
    """Batches of all rows in order, ``size`` rows each, fewer in the last.

    Cost: rows that lie in files are read one batch at a time.
    """
    known: RowNoise | None = getattr(model, "row_noise", None)
    start = 0
    for rows_x, rows_y in zip(x.split(size), y.split(size), strict=True):
        rows = torch.arange(start, start + len(rows_x), device=x.device)
        start += len(rows_x)
        yield Batch(rows_x, rows_y, rows, None if known is None else known.of(rows))


def noise_of_all(model: Any, noise: RowNoise | None, count: int, total: int) -> RowNoise | None:
    """Known noise of the given rows: ``noise`` itself, or else that of all rows, from the model.

    Args:
        noise: of the given rows; None: the model's, which is that of all training rows.
        count: number of given rows; total: n.

    Raises:
        ConfigError: the model knows something of each row, and these are not all of them.
    """
    known: RowNoise | None = getattr(model, "row_noise", None)
    if noise is not None or known is None:
        return noise
    if count != total:
        raise ConfigError(
            f"{class_name(model)} knows the noise or the weight of each of {total} rows, and "
            f"{count} came without theirs: give noise= of these rows"
        )
    return known
