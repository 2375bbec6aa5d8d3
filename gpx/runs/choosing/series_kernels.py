"""kernel=auto for a series: trends and seasons added to a kernel as long as that pays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.signal import lombscargle
from torch import Tensor

from gpx.options.kernel_expression import kernel_node, product_of, sum_of
from gpx.runs.choosing.kernel_fit import Fit, Judge, Node

ROWS_EACH = 7
"""Rows that a sum has to have for each of its hyperparameters: below, seasons are found in noise,
and the density of a value given the others, which they also fit, does not tell."""
SEASONS = 2
"""Periods that are tried in a series, those of the highest peaks of its periodogram."""


def composed_kernel(
    best: Fit,
    judge: Judge,
    periods: Sequence[float],
    folders: Sequence[Path],
    fits: list[Fit],
    rounds: int,
) -> None:
    """Terms and factors are added as long as the score rises.

    Every round starts from the kernel found, so that what it has learned is not lost.

    Args:
        best: of ``fits``, to begin with.
        judge: fits kernels.
        periods: of seasons that are tried.
        folders: of config groups.
        fits: takes all that are compared.
        rounds: terms at most.

    Source: Duvenaud et al. 2013 (greedy search by Schwarz's criterion).
    """
    most = len(judge.y) // ROWS_EACH
    for _ in range(rounds):
        terms = _grown(best, periods, folders)
        fitting = [term for term in terms if judge.hyperparameters(term[1]) <= most]
        grown = [judge.fit(name, node) for name, node in fitting]
        if not grown:
            break
        fits.extend(grown)
        found = max(grown, key=lambda fit: fit.score)
        if found.score <= best.score:
            break
        best = found


def _grown(
    best: Fit, periods: Sequence[float], folders: Sequence[Path]
) -> Iterator[tuple[str, Node]]:
    """The kernel with one more term: a trend, a smooth part, or a season, fixed or fading."""
    for name in ("rbf",) if "linear" in best.name else ("linear", "rbf"):
        yield f"{best.name} + {name}", sum_of([*_terms(best.node), kernel_node(name, folders)])
    for period in periods:
        season = kernel_node("periodic", folders) | {"period": period}
        fading = product_of([kernel_node("rbf", folders) | {"lengthscale": 3.0}, season])
        for name, node in (("periodic", season), ("rbf*periodic", fading)):
            yield f"{best.name} + {name}", sum_of([*_terms(best.node), node])


def _terms(node: Node) -> list[Node]:
    return list(node["kernels"]) if node["_target_"] == "gpx.kernels.Sum" else [node]


def likely_periods(x: Tensor, y: Tensor) -> list[float]:
    """Periods, in the unit of x, of the highest peaks of the periodogram of a series.

    Args:
        x (n,), y (n,): positions in any order, and values; at most 5,000 of them are looked at. A
            cubic trend is taken off first.

    Source: Lomb 1976, Scargle 1982.
    """
    step = max(1, len(x) // 5000)
    at, values = x[::step].double().numpy(), y[::step].double().numpy()
    span = float(at.max() - at.min())
    if len(at) < 20 or span == 0.0:
        return []
    values = values - np.polyval(np.polyfit(at, values, 3), at)
    # from three cycles over the data to two rows a cycle, at a third of the width of a peak
    cycles = np.arange(3.0, len(at) / 2, 1 / 3)
    if not len(cycles) or not values.any():
        return []
    power = lombscargle(at, values, 2.0 * math.pi * cycles / span)
    found: list[float] = []
    for place in np.argsort(-power):
        if all(abs(cycles[place] - span / known) > 1.0 for known in found):
            found.append(span / float(cycles[place]))
        if len(found) == SEASONS:
            break
    return found
