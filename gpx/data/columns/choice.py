"""Selection of columns by name or number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from gpx.data.columns.delimited import Layout
from gpx.errors import DataError

Choice = str | int
"""Name of a column, or its number counting from 0, negative from the end."""


def named_column(names: Sequence[str], name: str, where: str, why: str = "") -> int:
    """Index of the column called ``name``.

    Args:
        names: of all columns.
        name: of the column.
        where: file or data set, for the error message.
        why: why it is needed, appended to the name in the error message.

    Raises:
        DataError: there is no such column; names the nearest.
    """
    if name in names:
        return list(names).index(name)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    hint = f"nearest there: {', '.join(near)}" if near else f"it has {listed}"
    raise DataError(f"{where} has no column {name!r}{why}; {hint}")


def find_column(layout: Layout, column: Choice) -> int:
    """Index of a column given by name or number; names have precedence.

    Raises:
        DataError: no such column; names the nearest.
    """
    if layout.header_line:
        return find_named_column(layout.names, column, str(layout.path))
    if _is_number(column):
        return _numbered_column(layout.width, int(column), str(layout.path))
    raise DataError(
        f"{layout.path} has no column names, so {column!r} cannot be found; give a number, 0 "
        f"to {layout.width - 1}"
    )


def find_named_column(names: Sequence[str], column: Choice, where: str) -> int:
    """``find_column`` among columns that have names.

    Args:
        names: of all columns.
        column: name or number.
        where: file or data set, for error messages.
    """
    if str(column) in names or not _is_number(column):
        return named_column(names, str(column), where)
    return _numbered_column(len(names), int(column), where)


def _is_number(column: Choice) -> bool:
    return isinstance(column, int) or column.lstrip("-").isdigit()


def _numbered_column(width: int, index: int, where: str) -> int:
    if -width <= index < width:
        return index % width
    raise DataError(
        f"{where} has {width} columns and no column number {index}; expected {-width} to "
        f"{width - 1} (counting from 0) or a name"
    )


def as_list(columns: Choice | Sequence[Choice]) -> list[Choice]:
    """One column or several as a list; a text is one column."""
    return [columns] if isinstance(columns, (str, int)) else list(columns)


def require_different(uses: Iterable[tuple[str, str]], where: object, what: str) -> None:
    """Raise DataError if a column or array is used twice, for example as input and as target.

    Args:
        uses: pairs of a role and a name.
        where: file that the message names.
        what: plural of what is used, for the message.
    """
    taken: dict[str, str] = {}
    for role, name in uses:
        if name in taken:
            first = taken[name]
            raise DataError(
                f"{where}: {name} is used twice, in {role}="
                f"{'' if first == role else f' and {first}='}; expected different {what}"
            )
        taken[name] = role
