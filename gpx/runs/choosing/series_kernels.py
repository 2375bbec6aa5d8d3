"""``kernel=auto`` for one input: add trends and seasons while the score improves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.signal import lombscargle
from torch import Tensor

from gpx.options.kernel_expression import kernel_node, product_of, sum_of
from gpx.runs.choosing.kernel_fit import Fit, KernelFitter, Node

ROWS_PER_HYPERPARAMETER = 7
"""Fewest rows for each hyperparameter of a kernel: with fewer rows, seasons are fitted to noise."""
NUM_PERIODS = 2
"""Number of periods that are tried: those of the highest peaks of the periodogram."""


def composed_kernel(
    best: Fit,
    fitter: KernelFitter,
    periods: Sequence[float],
    folders: Sequence[Path],
    fits: list[Fit],
    rounds: int,
) -> None:
    """Greedily add terms to the best kernel while the score improves.

    Every round starts from the hyperparameters of the kernel found so far.

    Args:
        best: the best of ``fits``.
        fitter: fits kernels.
        periods: of seasons to try.
        folders: of config groups.
        fits: all fits are appended to it.
        rounds: most terms to add.

    Source: Duvenaud et al. 2013 (greedy search by Schwarz's criterion).
    """
    most = len(fitter.y) // ROWS_PER_HYPERPARAMETER
    for _ in range(rounds):
        kernels = _with_one_more_term(best, periods, folders)
        small = [kernel for kernel in kernels if fitter.hyperparameters(kernel[1]) <= most]
        fitted = [fitter.fit(name, node) for name, node in small]
        if not fitted:
            break
        fits.extend(fitted)
        found = max(fitted, key=lambda fit: fit.score)
        if found.score <= best.score:
            break
        best = found


def _with_one_more_term(
    best: Fit, periods: Sequence[float], folders: Sequence[Path]
) -> Iterator[tuple[str, Node]]:
    """Names and configs of the kernel plus a trend, a smooth term, or a fixed or fading season."""
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

    A cubic trend is removed first, and at most 10,000 evenly spread rows are used.

    Args:
        x (n,), y (n,): positions in any order, and values.

    Source: Lomb 1976, Scargle 1982.
    """
    step = max(1, len(x) // 5000)
    at, values = x[::step].double().numpy(), y[::step].double().numpy()
    span = float(at.max() - at.min())
    if len(at) < 20 or span == 0.0:
        return []
    values = values - np.polyval(np.polyfit(at, values, 3), at)
    # from three cycles over the data to two rows per cycle, in steps of a third of a peak's width
    cycles = np.arange(3.0, len(at) / 2, 1 / 3)
    if not len(cycles) or not values.any():
        return []
    power = lombscargle(at, values, 2.0 * math.pi * cycles / span)
    found: list[float] = []
    for place in np.argsort(-power):
        if all(abs(cycles[place] - span / known) > 1.0 for known in found):
            found.append(span / float(cycles[place]))
        if len(found) == NUM_PERIODS:
            break
    return found
