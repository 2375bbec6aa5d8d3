"""Bounds of hyperparameters that an optimiser is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpx.errors import ConfigError


def checked_bounds(bounds: Sequence[Any]) -> dict[str, tuple[float, float]]:
    """Lowest and largest value by name, from (name, lowest, largest) in natural units.

    Raises:
        ConfigError: an entry is not a name and two numbers, the second not below the first and
            positive, or a name stands there twice.
    """
    found: dict[str, tuple[float, float]] = {}
    for given in bounds:
        try:
            name, lowest, largest = str(given[0]), float(given[1]), float(given[2])
        except (IndexError, TypeError, ValueError):
            name, lowest, largest = "", 0.0, 0.0
        if not (0.0 <= lowest <= largest < math.inf and largest > 0.0):
            raise ConfigError(
                f"optimizer.bounds: {given} must be a name, a lowest and a largest value "
                "with 0 <= lowest <= largest, as [kernel.lengthscale,0.1,10]"
            )
        if name in found:
            raise ConfigError(f"optimizer.bounds: there are two of {name}; leave one out")
        found[name] = lowest, largest
    return found
