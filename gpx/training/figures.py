"""Pictures of a trained model, in the data's own units."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]

INK, BAND, TRUTH = "#1f4e79", "#9dc3e6", "#222222"


def predicted_against_observed(
    observed: Array, mean: Array, lower: Array, upper: Array, target: str
) -> Figure:
    """Scatter of predictions with 95 % intervals over observations, and their coverage.

    Args:
        observed, mean, lower, upper (n,): test targets, predictive means and interval ends.
        target: name of the target, for the axes.
    """
    shown = np.arange(len(observed))
    if len(shown) > 2000:  # more error bars than that are a blot
        shown = np.random.default_rng(0).choice(len(shown), 2000, replace=False)
    inside = (observed >= lower) & (observed <= upper)
    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes = figure.subplots()
    centre = mean[shown]
    axes.errorbar(
        observed[shown],
        centre,
        yerr=np.stack([centre - lower[shown], upper[shown] - centre]).clip(min=0.0),
        fmt=".",
        markersize=3,
        color=INK,
        ecolor=BAND,
        elinewidth=0.6,
        alpha=0.7,
    )
    ends = [float(min(observed.min(), mean.min())), float(max(observed.max(), mean.max()))]
    axes.plot(ends, ends, color=TRUTH, linewidth=1.0)
    axes.set_xlabel(f"observed {target}")
    axes.set_ylabel(f"predicted {target}, 95 % interval")
    axes.set_title(f"{len(observed)} test points, {100 * inside.mean():.1f} % inside the interval")
    return figure


def reliability_diagram(counts: Array, accuracy: Array, confidence: Array, error: float) -> Figure:
    """Accuracy over confidence with the diagonal of a calibrated model; below, where they are.

    Args:
        counts, accuracy, confidence (B,): of ``gpx.metrics.reliability``.
        error: the expected calibration error, for the title.
    """
    bins = len(counts)
    middle, width = (np.arange(bins) + 0.5) / bins, 1.0 / bins
    filled = counts > 0
    figure = Figure(figsize=(4.5, 5.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.bar(middle[filled], accuracy[filled], width, color=BAND, edgecolor=INK, linewidth=0.6)
    above.plot(confidence[filled], accuracy[filled], ".", color=INK)
    above.plot([0.0, 1.0], [0.0, 1.0], color=TRUTH, linewidth=1.0)
    above.set_ylabel("accuracy")
    above.set_title(f"{int(counts.sum())} test points, calibration error {error:.3f}")
    below.bar(middle, counts / counts.sum(), width, color=INK)
    below.set_ylabel("share of points")
    below.set_xlabel("probability of the predicted class")
    below.set_xlim(0.0, 1.0)
    return figure


def fitted_function(
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    grid: Array,
    mean: Array,
    lower: Array,
    upper: Array,
    names: tuple[str, str],
) -> Figure:
    """The fitted function of one input with its 95 % predictive band and the data.

    Args:
        train, test: inputs (n,) and targets (n,).
        grid, mean, lower, upper (g,): where and what is predicted.
        names: of the input and of the target.
    """
    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(grid, lower, upper, color=BAND, alpha=0.5, linewidth=0, label="95 % interval")
    axes.plot(grid, mean, color=INK, label="mean")
    axes.plot(*train, ".", color=TRUTH, markersize=3, alpha=0.5, label="training data")
    axes.plot(*test, "x", color="#c00000", markersize=4, label="test data")
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.legend(loc="best", fontsize="small")
    return figure
