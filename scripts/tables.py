"""Markdown tables with aligned columns, also readable in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpx.runs.run_table import markdown as markdown


def show(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Print rows that have the same keys, under a title."""
    words = [[format_cell(value) for value in row.values()] for row in rows]
    print(f"\n{title}\n" if title else "", markdown(list(rows[0]), words), sep="\n", flush=True)


def format_cell(value: Any) -> str:
    """Text of a cell: numbers with four digits, None as -."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
