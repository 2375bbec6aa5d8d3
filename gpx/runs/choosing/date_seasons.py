"""``kernel=auto`` for several inputs of which some are dates: days, weeks and years.

A date beside other inputs is a number of days, of which kernels of distances see that days lie near
each other and not that Mondays are alike. The periods of a calendar are known, so that none is
searched for: the best kernel plus a season is fitted for each that the dates can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpx.data import Dataset
from gpx.options.kernel_expression import kernel_node, sum_of
from gpx.runs.choosing.kernel_fit import Fit, KernelFitter, Node
from gpx.runs.choosing.series_kernels import changing, terms

CALENDAR = (1.0, 7.0, 365.2425)
"""Days in a day, a week and a year: what seasons may last. Months are of different lengths."""
MIN_CYCLES = 2.0
"""Fewest cycles between the first and the last date."""
DATES_PER_CYCLE = 3.0
"""Fewest dates in a cycle: with fewer a season is the same as a slower one."""
MIN_VARIANCE, VARIANCE = 1e-3, 0.1
"""Initial variance of a season, in squared standard deviations of the target: what the kernel
without it left to noise, but at least the first; under noise that is not Gaussian the second."""


def seasons_of_dates(
    fits: Sequence[Fit],
    data: Dataset,
    fitter: KernelFitter,
    folders: Sequence[Path],
    has_time: Callable[[], bool],
) -> Iterator[tuple[Fit, Node]]:
    """Fits of the best kernel plus seasons of its dates, each with the config that it started from.

    The season that raises the score most is kept and the others are tried beside it, until none
    raises it; then whether the last one changes over the inputs, as weeks do from shop to shop.

    Args:
        fits: of kernels without seasons, to the same rows.
        data: that the rows are from.
        fitter: fits kernels.
        folders: of config groups.
        has_time: whether there is time for another fit.
    """
    best = max(fits, key=lambda fit: fit.score)
    left = [(place, days) for place in date_inputs(data) for days in visible_periods(data, place)]
    latest: Node | None = None
    while left and best.score > -math.inf:
        found: list[tuple[Fit, tuple[int, float]]] = []
        for place, days in left:
            if not has_time():
                return
            season = _season(best, data, place, days, folders)
            start = sum_of([*terms(best.node), season])
            period = season["period"]
            name = f"{best.name} + periodic(active_dims=[{place}], period={period:.4g})"
            fit = fitter.fit(name, start, best.likelihood)
            yield fit, start
            found.append((fit, (place, days)))
        fit, taken = max(found, key=lambda each: each[0].score)
        if fit.score <= best.score:
            break
        best, latest = fit, fit.node["kernels"][-1]
        left.remove(taken)
    if latest is None or not has_time():
        return
    start = sum_of([*terms(best.node)[:-1], changing(latest, folders)])
    base, _, season_name = best.name.rpartition(" + ")
    yield fitter.fit(f"{base} + rbf*{season_name}", start, best.likelihood), start


def date_inputs(data: Dataset) -> list[int]:
    """Numbers of the inputs that are dates, in days."""
    found, place = [], 0
    for coded in data.coding.columns if data.coding is not None else ():
        if coded.column.kind == "date":
            found.append(place)
        place += len(coded.names)
    return found


def visible_periods(data: Dataset, place: int) -> list[float]:
    """Periods of the calendar, in days, that the dates of an input can show."""
    days = data.train_x[:, place].double().unique() * _days_in_one(data, place)
    if len(days) < 2:
        return []
    between = float(days.diff().median())
    span = float(days[-1] - days[0])
    return [p for p in CALENDAR if span >= MIN_CYCLES * p and p >= DATES_PER_CYCLE * between]


def _days_in_one(data: Dataset, place: int) -> float:
    """Days in one unit of a standardised input."""
    return float(data.scaler.input_scale[place])


def _season(best: Fit, data: Dataset, place: int, days: float, folders: Sequence[Path]) -> Node:
    """A season of an input, started with the variance that the kernel without it took for noise."""
    noise = best.likelihood.get("noise_variance")
    variance = max(noise, MIN_VARIANCE) if isinstance(noise, float) else VARIANCE
    return kernel_node("periodic", folders) | {
        "ard_num_dims": None,
        "active_dims": [place],
        "period": days / _days_in_one(data, place),
        "outputscale": variance,
    }
