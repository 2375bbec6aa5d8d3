"""How many rows at a time: the one place where a memory budget becomes a chunk size."""

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
        bytes_per_row: bytes of all temporaries that one row needs.
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


def row_slices(num_rows: int, size: int, *, least_one: bool = False) -> Iterator[slice]:
    """Consecutive row slices of at most ``size`` rows that cover ``0 .. num_rows``.

    ``torch.export`` gets all rows at once: it would record a loop for the rows at hand, and its
    programs are for any number of them.

    Args:
        num_rows: rows in total; zero yields nothing.
        size: rows of a slice, at least one.
        least_one: zero rows yield one empty slice, for those who join what they make of each.
    """
    if torch.compiler.is_exporting():
        yield slice(0, num_rows)
        return
    if least_one and not num_rows:
        yield slice(0, 0)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def row_chunks(num_rows: int, bytes_per_row: int, budget: int = DEFAULT_BUDGET) -> Iterator[slice]:
    """Consecutive row slices that cover ``0 .. num_rows`` and each fit the budget.

    Chunks are of equal size up to rounding, so that no tiny last chunk wastes a pass. A single row
    that exceeds the budget is still yielded: a chunk never has fewer than one row.

    Args:
        num_rows: rows in total; zero yields nothing.
        bytes_per_row: bytes of all temporaries that one row needs.
        budget: bytes that may be held at once; ``torch.export`` gets all rows (``row_slices``).
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
