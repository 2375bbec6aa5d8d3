"""Chunk sizes from memory budgets: how many rows are processed at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpx.errors import ConfigError

DEFAULT_BUDGET = 1 << 30
"""Bytes that the temporaries of one chunked computation may occupy (1 GiB)."""


def rows_per_chunk(num_rows: int, bytes_per_row: int, budget: int = DEFAULT_BUDGET) -> int:
    """Rows that fit the budget: at least one, at most ``num_rows`` (and one when that is zero).

    Args:
        num_rows: rows in total.
        bytes_per_row: bytes of all temporaries of one row.
        budget: bytes that may be held at once.

    Raises:
        ConfigError: the budget is not positive.
    """
    if budget <= 0:
        raise ConfigError(
            f"the memory budget is {budget} bytes; it must be positive, for example "
            f"{DEFAULT_BUDGET} (1 GiB)"
        )
    fitting = budget // max(bytes_per_row, 1)
    return max(1, min(num_rows, fitting))


def row_slices(num_rows: int, size: int, *, at_least_one: bool = False) -> Iterator[slice]:
    """Consecutive row slices of at most ``size`` rows that cover ``0 .. num_rows``.

    Under ``torch.export`` one slice has all rows, because an exported loop would be fixed to the
    current number of rows.

    Args:
        num_rows: rows in total; zero yields nothing.
        size: rows per slice, at least one.
        at_least_one: for zero rows yield one empty slice, so that results can be concatenated.
    """
    if torch.compiler.is_exporting():
        yield slice(0, num_rows)
        return
    if at_least_one and not num_rows:
        yield slice(0, 0)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def row_chunks(num_rows: int, bytes_per_row: int, budget: int = DEFAULT_BUDGET) -> Iterator[slice]:
    """Consecutive row slices that cover ``0 .. num_rows`` and each fit the budget.

    Chunks have equal sizes up to rounding, so that there is no tiny last chunk, and at least one
    row, even if that exceeds the budget.

    Args:
        num_rows: rows in total; zero yields nothing.
        bytes_per_row: bytes of all temporaries of one row.
        budget: bytes that may be held at once; under ``torch.export`` one chunk has all rows.
    """
    if torch.compiler.is_exporting():
        yield slice(0, num_rows)
        return
    if num_rows <= 0:
        return
    size = rows_per_chunk(num_rows, bytes_per_row, budget)
    count = -(-num_rows // size)
    for i in range(count):
        yield slice(i * num_rows // count, (i + 1) * num_rows // count)
