"""Types of arrays, numbers in cells of text, and default column names."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

EXACT = 2**53
"""Whole numbers beyond this are rounded in float64."""

WORDS = {"true": 1.0, "false": 0.0}
"""Words (in any case) that are read as numbers."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|nan)", re.I)


def number_of(cell: str) -> float | None:
    """The number in a cell, possibly not finite; None for any other text."""
    if _NUMBER.fullmatch(cell):
        return float(cell)
    return WORDS.get(cell.lower())


def would_round(numbers: NDArray[Any]) -> bool:
    """Whether these are whole numbers (any shape) of which float64 may round some."""
    if numbers.dtype.kind not in "iu" or not numbers.size:
        return False
    return int(numbers.max()) > EXACT or int(numbers.min()) < -EXACT


def numbered_names(count: int, letter: str = "x") -> tuple[str, ...]:
    """Default names of columns: x1, x2, ..."""
    return tuple(f"{letter}{i + 1}" for i in range(count))
