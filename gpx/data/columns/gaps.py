"""Rows that lack a value of which training rows say too little: the values it may have had."""

from __future__ import annotations

import numpy as np

from gpx.data.columns.numbers import Floats

FEW_GAPS = 50
"""Training rows that lack a value of a column below which they do not tell what a further such row
is like: functions of the other inputs that fit a handful of them exactly extrapolate wildly."""
STAND_INS = 32
"""Values that a missing one is averaged over."""


def stand_ins(given: Floats) -> tuple[float, ...]:
    """Training values of a column that are as probable as one another.

    Args:
        given (m,): all that training rows have, as numbers or codes.

    Returns:
        The quantiles in the middle of ``STAND_INS`` parts of equal probability, in their order.
    """
    levels = (np.arange(STAND_INS) + 0.5) / STAND_INS
    return tuple(map(float, np.quantile(given, levels, method="inverted_cdf")))
