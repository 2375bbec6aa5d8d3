"""Stand-ins for missing values: training values over which predictions are averaged."""

from __future__ import annotations

import numpy as np

from gpx.data.columns.numbers import Floats

FEW_GAPS = 50
"""If fewer training rows than this lack a value of a column, predictions for rows without it
average over stand-ins: a model of so few rows would extrapolate badly."""
STAND_INS = 32
"""Number of stand-ins for a missing value."""


def stand_ins(given: Floats) -> tuple[float, ...]:
    """Equally probable values of a column.

    Args:
        given (m,): values of the training rows, as numbers or codes.

    Returns:
        the median of each of ``STAND_INS`` parts of equal probability, in ascending order.
    """
    levels = (np.arange(STAND_INS) + 0.5) / STAND_INS
    return tuple(map(float, np.quantile(given, levels, method="inverted_cdf")))
