"""Figures of predictions, in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]

INK, BAND, TRUTH, BEFORE = "#1f4e79", "#9dc3e6", "#222222", "#c55a11"
WAS = "before recalibration"
FEW = 5
"""Points of a bin of the reliability diagram whose accuracy says little."""


MANY_BARS = 300
"""Error bars beyond which they are drawn thin."""


def predicted_against_observed(
    observed: Array, mean: Array, lower: Array, upper: Array, target: str
) -> Figure:
    """Scatter of predictions with 95 % intervals over observations, and their coverage.

    Args:
        observed, mean, lower, upper (n,): test targets, predictive means and interval ends.
        target: name of the target, for the axes.
    """
    shown = np.arange(len(observed))
    if len(shown) > 2000:  # more error bars would be illegible
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
        elinewidth=0.6 if len(shown) > MANY_BARS else 1.2,
        alpha=0.7,
    )
    ends = [float(min(observed.min(), mean.min())), float(max(observed.max(), mean.max()))]
    axes.plot(ends, ends, color=TRUTH, linewidth=1.0)
    axes.set_xlabel(f"observed {target}")
    axes.set_ylabel(f"predicted {target}, 95 % interval")
    axes.set_title(
        f"{len(observed):,} test points, {100 * inside.mean():.1f} % inside the interval"
    )
    return figure


def reliability_diagram(
    counts: Array,
    accuracy: Array,
    confidence: Array,
    error: float,
    before: tuple[Array, Array, Array, float] | None = None,
) -> Figure:
    """Accuracy over confidence with the diagonal of a calibrated model, and a histogram below.

    Bins of few points are pale, and not drawn of what was before.

    Args:
        counts, accuracy, confidence (B,): of ``gpx.metrics.reliability``.
        error: the expected calibration error, for the title.
        before: the same before recalibration, drawn as lines; None without recalibration.
    """
    bins = len(counts)
    middle, width = (np.arange(bins) + 0.5) / bins, 1.0 / bins
    figure = Figure(figsize=(4.5, 5.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    filled = counts > 0
    strength = np.where(counts[filled] < FEW, 0.3, 1.0)
    above.bar(
        middle[filled],
        accuracy[filled],
        width,
        color=[to_rgba(BAND, alpha) for alpha in strength],
        edgecolor=[to_rgba(INK, alpha) for alpha in strength],
        linewidth=0.6,
    )
    low, high = _wilson(accuracy[filled], counts[filled])
    above.errorbar(
        confidence[filled],
        accuracy[filled],
        yerr=np.stack([accuracy[filled] - low, high - accuracy[filled]]).clip(min=0.0),
        fmt=".",
        color=INK,
        elinewidth=0.8,
    )
    above.plot([0.0, 1.0], [0.0, 1.0], color=TRUTH, linewidth=1.0)
    above.set_ylabel("accuracy, 95 % interval")
    above.set_ylim(-0.03, 1.03)
    title = f"{int(counts.sum()):,} test points, calibration error {error:.3f}"
    below.bar(middle, counts / counts.sum(), width, color=INK)
    if before is not None:
        old_counts, old_accuracy, old_confidence, old_error = before
        seen = old_counts >= FEW  # fewer would scatter all over
        above.plot(
            *(old_confidence[seen], old_accuracy[seen], "D--"),
            color=BEFORE,
            markersize=4,
            linewidth=0.8,
            label=WAS,
        )
        above.legend(loc="upper left", fontsize="small")
        edges = np.linspace(0.0, 1.0, bins + 1)
        below.stairs(old_counts / old_counts.sum(), edges, color=BEFORE, linestyle="--")
        title += f" ({old_error:.3f} before)"
    above.set_title(title, fontsize="medium")
    below.set_ylabel("share of points")
    below.set_xlabel("probability of the predicted class")
    below.set_xlim(0.0, 1.0)
    return figure


def _wilson(share: Array, count: Array) -> tuple[Array, Array]:
    """Ends of Wilson's 95 % interval of shares of so many each."""
    spread = 1.96**2 / count
    middle = (share + 0.5 * spread) / (1.0 + spread)
    half = np.sqrt(spread * share * (1.0 - share) + 0.25 * spread**2) / (1.0 + spread)
    return middle - half, middle + half


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
        grid, mean, lower, upper (g,): inputs, and predictions there.
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


MAX_BARS = 30
"""Bars of a chart of lengthscales; the longest lengthscales are left out."""


def lengthscale_bars(names: Sequence[str], lengthscales: Array) -> Figure:
    """How quickly the function varies along each input: 1 / lengthscale, the largest first.

    Args:
        names: of the d inputs.
        lengthscales (d,): in standard deviations of the inputs.
    """
    rates = 1.0 / lengthscales
    order = np.argsort(-rates)[:MAX_BARS]
    figure = Figure(figsize=(5.5, 1.0 + 0.25 * len(order)), layout="constrained")
    axes = figure.subplots()
    axes.barh([names[k] for k in order], rates[order], color=BAND, edgecolor=INK, linewidth=0.6)
    axes.invert_yaxis()
    axes.set_xlabel("1 / lengthscale")  # the names take their share of the width
    shown = f"{len(order)} of {len(names)} inputs: " if len(order) < len(names) else ""
    figure.suptitle(f"{shown}how fast the function varies along each", fontsize="medium")
    return figure


def intervals_of_samples(names: Sequence[str], samples: Array) -> Figure:
    """Median, middle half and 95 % interval of every positive hyperparameter, on a log axis.

    Args:
        names: of the k hyperparameters; the first ``MAX_BARS`` are drawn.
        samples (S, k): positive.
    """
    shown = min(len(names), MAX_BARS)
    quantiles = np.quantile(samples[:, :shown], [0.025, 0.25, 0.5, 0.75, 0.975], axis=0)
    outer, inner, rows = quantiles[[0, 4]], quantiles[[1, 3]], np.arange(shown)
    figure = Figure(figsize=(6.5, 1.2 + 0.3 * shown), layout="constrained")
    axes = figure.subplots()
    axes.hlines(rows, *outer, color=BAND, linewidth=2.0, label="95 %")
    axes.hlines(rows, *inner, color=INK, linewidth=5.0, label="50 %")
    axes.plot(quantiles[2], rows, "o", color="white", markeredgecolor=INK, label="median")
    axes.set_yticks(rows, names[:shown])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.legend(fontsize="small")
    of = f"{shown} of {len(names)}" if shown < len(names) else "the"
    figure.suptitle(f"{len(samples)} samples of {of} hyperparameters", fontsize="medium")
    return figure


def sampled_functions(
    train: tuple[Array, Array],
    grid: Array,
    functions: Array,
    names: tuple[str, str],
    inducing: Array | None = None,
) -> Figure:
    """Functions drawn from the posterior over one input, with the data.

    Args:
        train: inputs (n,) and targets (n,).
        grid (g,), functions (k, g): inputs, and values of the functions there.
        names: of the input and of the target.
        inducing (M,): inducing points, marked on the axis.
    """
    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(*train, ".", color=TRUTH, markersize=3, alpha=0.5, label="training data")
    axes.plot(grid, functions.T, linewidth=0.9)
    if inducing is not None:
        floor = np.full(len(inducing), axes.get_ylim()[0])
        axes.plot(inducing, floor, "|", color=INK, markersize=10, label="inducing points")
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.set_title(f"{len(functions)} functions drawn from the posterior")
    axes.legend(loc="best", fontsize="small")
    return figure


def field_map(
    edges: tuple[Array, Array],
    mean: Array,
    deviation: Array,
    test: Array,
    errors: Array,
    names: tuple[str, str],
    target: str,
    inducing: Array | None = None,
) -> Figure:
    """Maps of predictive mean and standard deviation over two inputs, and of test errors.

    Args:
        edges: (g,) and (h,), coordinates of rows and columns.
        mean, deviation (g, h): of a new observation.
        test (n, 2), errors (n,): test inputs and absolute errors there.
        names: of the inputs.
        target: name of the target.
        inducing (M, 2): inducing points, drawn over the mean.
    """
    figure = Figure(figsize=(13.0, 4.0), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axes, values, title in (
        (left, mean, f"mean of {target}"),
        (middle, deviation, "standard deviation"),
    ):
        image = axes.pcolormesh(edges[0], edges[1], values.T, shading="nearest")
        axes.set_title(title)
        figure.colorbar(image)
    found = right.scatter(*test.T, c=errors, s=8)
    right.set_title("absolute error at test points")
    figure.colorbar(found)
    if inducing is not None:
        left.plot(*inducing.T, "+", color="#ffffff", markersize=4)
    for axes in (left, middle, right):
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
    return figure


def decision_map(
    edges: tuple[Array, Array],
    probability: Array,
    points: Array,
    classes: NDArray[np.bool_],
    names: tuple[str, str],
    inducing: Array | None = None,
    labels: tuple[str, str] = ("class 0", "class 1"),
) -> Figure:
    """Probability of the class coded 1 over two inputs, its level 1/2, and the training points.

    Args:
        edges: (g,) and (h,), coordinates of rows and columns.
        probability (g, h): of the class coded 1.
        points (n, 2), classes (n,): training inputs, and whether each is of that class.
        names: of the inputs.
        inducing (M, 2): inducing points.
        labels: of the classes coded 0 and 1.
    """
    figure = Figure(figsize=(6.0, 5.4), layout="constrained")
    axes = figure.subplots()
    levels = np.linspace(0.0, 1.0, 11)
    image = axes.contourf(*edges, probability.T, levels=levels, cmap="RdBu_r", alpha=0.8)
    if probability.min() < 0.5 < probability.max():
        axes.contour(*edges, probability.T, levels=[0.5], colors=TRUTH, linewidths=1.2)
    for wanted, marker, color in ((False, "o", "#2166ac"), (True, "^", "#b2182b")):
        own = points[classes == wanted]
        axes.plot(*own.T, marker, color=color, markersize=3, label=labels[wanted])
    if inducing is not None:
        axes.plot(*inducing.T, "+", color=TRUTH, markersize=6, label="inducing points")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    figure.colorbar(image, label=f"probability of {labels[1]}")
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    return figure
