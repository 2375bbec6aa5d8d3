"""Rows of ``scripts/gpu_hour.py``, for tables whose largest size is measured on a GPU there.

Scripts import this file as described in ``record``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from row_files import read_lines

HOUR = Path(__file__).resolve().parent / "gpu" / "hour"


def gpu_check(name: str, what: str) -> dict[str, bool | None]:
    """A check that the latest GPU row of that name answers: statement -> whether it passed.

    Args:
        name: of the row, or how it starts.
        what: the statement; the row's device and note are added to it.
    """
    found: list[dict[str, Any]] = [
        row for row in read_lines(HOUR / "rows.jsonl") if row["name"].startswith(name)
    ]
    if not found:
        return {what: None}
    row = found[-1]
    said = f"{row['name']}: {row['value']:.3g} {row['unit']}; {row['note']}"
    return {f"{what} ({row['card']}, experiments/gpu/hour: {said})": row["passed"]}
