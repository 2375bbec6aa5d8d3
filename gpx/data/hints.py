"""Hints for the user about columns of a table, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpx.data.columns.gaps import FEW_GAPS
from gpx.data.columns.numbers import Floats

MAX_NAMED = 6
"""Columns that a note lists by name."""
MIN_ROWS = 30
"""With fewer rows no hints are given: skewness is uncertain, and 1, 2, 3, ... may be a quantity."""
MIN_SKEWNESS = 1.0
"""Targets of at least this skewness are called skewed (normal: 0, exponential: 2)."""


def row_counter(x: Floats, names: Sequence[str]) -> str:
    """A hint about an input column that numbers the rows from 0 or 1; empty if there is none.

    Args:
        x (n, d): inputs as in the file; there is no hint for a single input.
        names: of the d columns.
    """
    if len(x) < MIN_ROWS or x.shape[1] < 2:
        return ""
    counts = np.isin(x[0], (0.0, 1.0)) & (np.diff(x, axis=0) == 1.0).all(axis=0)
    if not counts.any():
        return ""
    name = names[int(counts.argmax())]
    return f"the input {name!r} numbers the rows; if it is only a name, leave it out with id={name}"


def filled_in(x: Floats, names: Sequence[str]) -> str:
    """A note on columns whose missing values are filled in; empty if there are none.

    Args:
        x (n, d): the columns, NaN for missing values.
        names: of the d columns.
    """
    counts = np.isnan(x).sum(axis=0)
    if not counts.any():
        return ""
    listed = [f"{names[i]!r} ({counts[i]:,})" for i in np.argsort(-counts) if counts[i]]
    return (
        "missing values (in how many rows) are filled in with training means: "
        f"{some_of(listed)}; missing=drop leaves such rows out, missing=refuse stops"
    )


def averaged_gaps(names: Sequence[str]) -> str:
    """A note on columns whose missing values are averaged over; empty if there are none."""
    if not names:
        return ""
    return (
        f"fewer than {FEW_GAPS} training rows lack a value of "
        f"{some_of(list(map(repr, names)))}, too few to learn from: predictions for such rows "
        "average over training values, as if values were missing at random"
    )


def some_of(listed: Sequence[str], most: int = MAX_NAMED) -> str:
    """The first of many descriptions, and the number of the others."""
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")


def skewed_target(y: Floats, name: str) -> str:
    """A hint about a skewed target (n,) whose logarithm is far less skewed; otherwise empty."""
    if len(y) < MIN_ROWS or not (y > 0.0).all() or y.min() == y.max():
        return ""
    plain, logarithm = _skewness(y), _skewness(np.log(y))
    if plain < MIN_SKEWNESS or abs(logarithm) > plain / 2:
        return ""
    return (
        f"the target {name!r} is positive and skewed (skewness {plain:.1f}, its logarithm "
        f"{logarithm:.1f}); target_transform=log may model it better"
    )


def _skewness(values: Floats) -> float:
    """Third central moment over the cubed standard deviation; 0 for a constant."""
    centred = values - values.mean()
    largest = np.abs(centred).max()
    if largest == 0.0:  # also logarithms of large numbers that hardly differ
        return 0.0
    centred = centred / largest
    return float((centred**3).mean() / np.sqrt((centred**2).mean()) ** 3)
