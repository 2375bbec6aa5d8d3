"""Some rows of the training data, with what is known of each of them."""

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
        rows (b,): their numbers among all training rows; None where nobody asks.
        noise: what is known of the noise of each, or its weight; None: nothing.
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
        """Some of its rows, in order."""
        numbers = None if self.rows is None else self.rows[rows]
        noise = None if self.noise is None else self.noise.of(rows)
        return Batch(self.x[rows], self.y[rows], numbers, noise)


def in_order(model: Any, x: Tensor | LazyRows, y: Tensor | LazyRows, size: int) -> Iterator[Batch]:
    """All rows in their order, ``size`` at a time, the rest at the end; arguments of ``Batch.of``.

    Cost: of rows in files, one part at a time is in memory.
    """
    known: RowNoise | None = getattr(model, "row_noise", None)
    start = 0
    for rows_x, rows_y in zip(x.split(size), y.split(size), strict=True):
        rows = torch.arange(start, start + len(rows_x), device=x.device)
        start += len(rows_x)
        yield Batch(rows_x, rows_y, rows, None if known is None else known.of(rows))


def noise_of_all(model: Any, noise: RowNoise | None, count: int, total: int) -> RowNoise | None:
    """What is known of the noise of the rows at hand, where it was not given with them.

    Args:
        noise: given with them; None: that of all rows, of which the model knows.
        count: rows at hand; total: n.

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
