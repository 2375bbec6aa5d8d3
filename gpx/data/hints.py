"""What the columns of a table suggest to its owner, in a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpx.data.columns.gaps import FEW_GAPS
from gpx.data.columns.numbers import Floats

FEWEST_ROWS = 30
"""Below these the skewness of a column says little, and 1, 2, 3, ... may well be a quantity."""
SKEWED = 1.0
"""Skewness (0 of a normal, 2 of an exponential distribution) from which a logarithm is tried."""


def row_counter(x: Floats, names: Sequence[str]) -> str:
    """A sentence about an input column that counts the rows from 0 or 1; empty: there is none.

    Args:
        x (n, d): inputs as they are in the file; the only input of a series is no such column.
        names: of the d columns.
    """
    if len(x) < FEWEST_ROWS or x.shape[1] < 2:
        return ""
    counts = np.isin(x[0], (0.0, 1.0)) & (np.diff(x, axis=0) == 1.0).all(axis=0)
    if not counts.any():
        return ""
    name = names[int(counts.argmax())]
    return f"the input {name!r} counts the rows; if it only names them, leave it out with id={name}"


def averaged_gaps(names: Sequence[str]) -> str:
    """A sentence about columns whose missing values are averaged over; empty: there are none."""
    if not names:
        return ""
    listed = ", ".join(map(repr, names[:6])) + (", ..." if len(names) > 6 else "")
    return (
        f"fewer than {FEW_GAPS} training rows lack a value of {listed}, too few to tell what such "
        "rows are like: predictions for these average over training values, as if what is missing "
        "were missing by chance"
    )


def skewed_target(y: Floats, name: str) -> str:
    """A sentence about a target (n,) whose logarithm is far less skewed; empty: it is not so."""
    if len(y) < FEWEST_ROWS or not (y > 0.0).all() or y.min() == y.max():
        return ""
    plain, logarithm = _skewness(y), _skewness(np.log(y))
    if plain < SKEWED or abs(logarithm) > plain / 2:
        return ""
    return (
        f"the target {name!r} is positive and skewed (skewness {plain:.1f}, its logarithm "
        f"{logarithm:.1f}); target_transform=log may model it better"
    )


def _skewness(values: Floats) -> float:
    """Third central moment over the cube of the standard deviation, in any unit; 0 of constants."""
    centred = values - values.mean()
    largest = np.abs(centred).max()
    if largest == 0.0:  # logarithms of large numbers that hardly differ
        return 0.0
    centred = centred / largest
    return float((centred**3).mean() / np.sqrt((centred**2).mean()) ** 3)
