"""Columns chosen by name or by number."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from gpx.data.columns.delimited import Layout
from gpx.errors import DataError

Choice = str | int
"""Name of a column, or its number counting from 0, negative from the end."""


def named_column(names: Sequence[str], name: str, where: str, why: str = "") -> int:
    """Place of the column called ``name``.

    Args:
        names: there are.
        name: wanted.
        where: for the error message.
        why: what it is wanted for, to stand behind the name.

    Raises:
        DataError: there is none; names the nearest.
    """
    if name in names:
        return list(names).index(name)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    hint = f"nearest there: {', '.join(near)}" if near else f"it has {listed}"
    raise DataError(f"{where} has no column {name!r}{why}; {hint}")


def find_column(layout: Layout, column: Choice) -> int:
    """Index of a column given by name or number; a name that is a number comes first.

    Raises:
        DataError: no such column; names the nearest.
    """
    if layout.header_line and str(column) in layout.names:
        return layout.names.index(str(column))
    if isinstance(column, int) or str(column).lstrip("-").isdigit():
        index = int(column)
        if -layout.width <= index < layout.width:
            return index % layout.width
        raise DataError(
            f"{layout.path} has {layout.width} columns, so there is no column number {index}; "
            f"expected {-layout.width} to {layout.width - 1} (counting from 0) or a name"
        )
    if not layout.header_line:
        raise DataError(
            f"{layout.path} has no names of columns, so none is called {column!r}; "
            f"give its number, 0 to {layout.width - 1}"
        )
    return named_column(layout.names, str(column), str(layout.path))


def as_list(columns: Choice | Sequence[Choice]) -> list[Choice]:
    """One column or several as a list: inputs=age is not the letters of it."""
    return [columns] if isinstance(columns, (str, int)) else list(columns)
