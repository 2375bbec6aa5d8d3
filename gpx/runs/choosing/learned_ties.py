"""Kernels that learn targets of which many are equal by heart, which densities do not show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from gpx.runs.choosing.kernel_fit import Fit

TIED = 0.05
"""Share of targets that are equal from which on densities are not trusted alone."""
MAX_ERROR = 1.1
"""Then a kernel must have at most this multiple of the least leave-one-out error."""


def without_learned_ties(fits: Sequence[Fit], y: Tensor) -> list[Fit]:
    """The fits that predict nearly as well as the best, if many targets are equal; else all.

    A density of targets of which many are equal, such as incomes of zero, has no bound: a kernel
    that repeats the nearest target almost without noise has a high evidence and leave-one-out
    density by the rows whose neighbours are tied, and poor predictions of the others.

    Args:
        fits: of any number.
        y (n,) or (n, p): the targets, NaN where one is missing.
    """
    errors = [fit.error for fit in fits if fit.error is not None and fit.score > -math.inf]
    if not errors or _largest_tie(y) < TIED:
        return list(fits)
    most = MAX_ERROR * min(errors)
    return [fit for fit in fits if fit.error is None or fit.error <= most]


def _largest_tie(y: Tensor) -> float:
    """Largest share of equal values among those of a target (n,), or of any of p targets."""
    shares = []
    for each in y.unsqueeze(-1).flatten(1).T:
        there = each[each.isfinite()]
        counts = there.unique(return_counts=True)[1]
        shares.append(float(counts.max()) / len(there) if len(there) else 0.0)
    return max(shares)
