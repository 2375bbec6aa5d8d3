"""``kernel=auto`` for one input: add trends and seasons while the score improves."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpx.constraints import MARGIN
from gpx.options.kernel_expression import kernel_node, product_of, sum_of
from gpx.runs.choosing.kernel_fit import Fit, KernelFitter, Node

ROWS_PER_HYPERPARAMETER = 7
"""Fewest rows for each hyperparameter of a kernel: with fewer rows, seasons are fitted to noise."""
NUM_SEASONS = 2
"""Number of periods that are tried: those of the highest peaks of the periodogram."""
SAME_SEASON = 0.1
"""Relative difference up to which two periods are the same season."""
LONG, DECAY = 1.0, 3.0
"""Initial lengthscales of trends and of seasons that change, in units of the standardised input."""
SHORT, MIN_SHORT = 0.02, 3.0
"""Initial lengthscale of terms for the rest, as a share of the range of the input, but at least so
many mean distances of neighbours."""
NOISE_SHARE, MIN_NOISE = 0.1, 1e-5
"""Initial noise variance, as a share of what trend and seasons leave unexplained, and at least.
Added terms start with at least that variance, too: a constant series or a line leaves nothing."""
EXCHANGED = ("rbf", "matern12", "matern52")
"""Terms that are exchanged for one another."""

Candidate = tuple[str, Node]
"""Name and config of a kernel."""


@dataclass(frozen=True)
class Season:
    """A peak of the periodogram.

    Attributes:
        period: in the unit of x.
        variance: of the sinusoid with its first overtone, in squared units of y.
    """

    period: float
    variance: float


@dataclass(frozen=True)
class Decomposition:
    """A series as cubic trend, seasons and the rest; sums of kernels are started from it.

    Attributes:
        seasons: the highest peaks of the periodogram.
        rest: variance that trend and seasons leave unexplained, in squared units of y.
        short: lengthscale of terms for the rest, in the unit of x.
    """

    seasons: Sequence[Season]
    rest: float
    short: float


def composed_kernel(
    best: Fit,
    fitter: KernelFitter,
    series: Decomposition,
    folders: Sequence[Path],
    fits: list[Fit],
    rounds: int,
    in_time: Callable[[Sequence[Candidate]], Iterable[Candidate]] = iter,
) -> None:
    """Greedily add terms to the best kernel while the score improves, then change one.

    Every round starts from the hyperparameters of the kernel found so far; an added term starts
    with the variance that its part of the series has.

    Args:
        best: the best of ``fits``.
        fitter: fits kernels.
        series: initial values of added terms.
        folders: of config groups.
        fits: all fits are appended to it.
        rounds: most terms to add.
        in_time: the candidates of a round for which there is time.

    Source: Duvenaud et al. 2013 (greedy search by Schwarz's criterion).
    """
    most = len(fitter.y) // ROWS_PER_HYPERPARAMETER

    def fitted(candidates: Iterable[Candidate]) -> Fit:
        """The best of these and of the kernel found so far."""
        small = [each for each in candidates if fitter.hyperparameters(each[1]) <= most]
        start = _with_initial_noise(best.likelihood, series)
        found = [fitter.fit(name, node, start) for name, node in in_time(small)]
        fits.extend(found)
        return max([best, *found], key=lambda fit: fit.score)

    for _ in range(rounds):
        found = fitted(_with_one_more_term(best, series, folders))
        if found is best:
            break
        best = found
    if rounds:
        fitted(_with_one_changed(best, folders))


def _with_initial_noise(likelihood: Node, series: Decomposition) -> Node:
    """The likelihood with the noise of the series in place of what a poor kernel took for noise."""
    if not isinstance(likelihood.get("noise_variance"), float):
        return likelihood
    least = max(MIN_NOISE, (1.0 + MARGIN) * likelihood.get("noise_floor", 0.0))
    return likelihood | {"noise_variance": max(NOISE_SHARE * series.rest, least)}


def _with_one_more_term(
    best: Fit, series: Decomposition, folders: Sequence[Path]
) -> Iterator[Candidate]:
    """The kernel plus a trend, a term for the rest, or a fixed or changing season."""

    def plus(name: str, node: Node) -> Candidate:
        return f"{best.name} + {name}", sum_of([*terms(best.node), node])

    if "linear" not in best.name:
        yield plus("linear", kernel_node("linear", folders))
    yield plus("rbf", kernel_node("rbf", folders) | {"lengthscale": LONG})
    name = "rbf" if "matern12" in best.name else "matern12"
    rest = {"lengthscale": series.short, "outputscale": max(series.rest, MIN_NOISE)}
    yield plus(name, kernel_node(name, folders) | rest)
    known = _periods(best.node)
    for season in series.seasons if len(known) < NUM_SEASONS else ():
        if any(abs(season.period - period) < SAME_SEASON * period for period in known):
            continue
        node = kernel_node("periodic", folders) | {"period": season.period}
        fixed = node | {"outputscale": max(season.variance, MIN_NOISE)}
        yield plus("periodic", fixed)
        yield plus("rbf*periodic", changing(fixed, folders))


def _periods(node: Node) -> list[float]:
    """The periods of all seasons of a kernel."""
    found = [float(np.ravel(node["period"])[0])] if "period" in node else []
    return found + [period for each in node.get("kernels", ()) for period in _periods(each)]


def changing(season: Node, folders: Sequence[Path]) -> Node:
    """The season, with a form that may change over time, or over all inputs."""
    decay = {"lengthscale": DECAY, "outputscale": season["outputscale"]}
    # the first factor carries the variance
    return product_of([kernel_node("rbf", folders) | decay, season | {"outputscale": 1.0}])


def _with_one_changed(best: Fit, folders: Sequence[Path]) -> Iterator[Candidate]:
    """The sum with a smoother or rougher term, a season that may change, or without a term.

    A term is left out if its variance has become less than that of the noise.
    """
    names, own = best.name.split(" + "), terms(best.node)
    if len(own) == 1 or len(own) != len(names):  # a sum of the user may have another form
        return

    def instead(place: int, *new: Candidate) -> Candidate:
        kept = [*zip(names, terms(best.node), strict=True)]
        kept[place : place + 1] = new
        text, nodes = " + ".join(name for name, _ in kept), [node for _, node in kept]
        return text, sum_of(nodes) if len(nodes) > 1 else nodes[0]

    noise = best.likelihood.get("noise_variance", 0.0)
    for place, (old, term) in enumerate(zip(names, own, strict=True)):
        if isinstance(noise, float) and (term.get("outputscale") or noise) < noise:
            yield instead(place)
        if old == "periodic":
            yield instead(place, ("rbf*periodic", changing(term, folders)))
        for new in EXCHANGED if old in EXCHANGED else ():
            if new != old:
                kept = {option: term[option] for option in ("lengthscale", "outputscale")}
                yield instead(place, (new, kernel_node(new, folders) | kept))


def terms(node: Node) -> list[Node]:
    """Copies of the terms of a sum."""
    return copy.deepcopy(node["kernels"] if node["_target_"] == "gpx.kernels.Sum" else [node])


def decomposed(x: Tensor, y: Tensor) -> Decomposition:
    """Trend, seasons and the rest of a series by least squares.

    Seasons are found one after the other, each as the highest peak of the periodogram of what the
    cubic trend and the seasons before leave. At most 10,000 evenly spread rows are used.

    Args:
        x (n,), y (n,): positions in any order, and values.

    Source: Lomb 1976, Scargle 1982 (the periodogram).
    """
    step = max(1, len(x) // 5000)
    at, values = x[::step].double().numpy(), y[::step].double().numpy()
    span = float(at.max() - at.min())
    short = span * max(SHORT, MIN_SHORT / len(x)) or LONG
    if len(at) < 20 or span == 0.0:
        return Decomposition((), float(values.var()), short)
    values = values - np.polyval(np.polyfit(at, values, 3), at)
    # imports scipy.stats, which takes a third of a second, for which other runs need not wait
    from scipy.signal import lombscargle

    def highest(cycles: NDArray[np.float64]) -> float:
        power = lombscargle(at, values, 2.0 * math.pi * cycles / span)
        return float(cycles[np.argmax(power)])

    # from three cycles over the data to two rows per cycle, in steps of a third of a peak's width
    grid = np.arange(3.0, len(at) / 2, 1 / 3)
    seasons: list[Season] = []
    while len(seasons) < NUM_SEASONS and len(grid) and values.any():
        peak = highest(grid)
        peak = highest(peak + np.linspace(-1 / 3, 1 / 3, 21))
        # the sinusoid with its first overtone
        angle = 2.0 * math.pi * peak / span * at[:, None] * np.array([1.0, 2.0])
        waves = np.hstack([np.cos(angle), np.sin(angle), np.ones((len(at), 1))])
        found = waves @ np.linalg.lstsq(waves, values, rcond=None)[0]
        seasons.append(Season(span / peak, float(found.var())))
        values = values - found
    return Decomposition(tuple(seasons), float(values.var()), short)
