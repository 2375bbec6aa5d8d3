"""Figures of calibration: reliability diagram, PIT histogram and coverage curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from gpx.data import Dataset
from gpx.diagnostics.calibration import coverage_curve, pit
from gpx.likelihoods import target_marginals
from gpx.likelihoods.base import is_classification
from gpx.metrics import class_log_probabilities, ece, reliability
from gpx.metrics.regression import observed_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

MOST_BINS, FEWEST_BINS, ROWS_PER_BIN = 20, 5, 10
"""Bins of the PIT histogram: at most, at least, and test rows for each in between."""


def calibration_figures(
    data: Dataset,
    predictive: Distribution,
    outputs: int,
    before: Distribution | None = None,
) -> dict[str, Figure]:
    """Figures of the calibration of test predictions, by name; empty without test targets.

    For classes ``reliability``; for numbers and counts ``calibration``, or for several outputs
    ``calibration_1``, ... A distribution without a distribution function has no figure.

    Args:
        data: whose test targets are predicted.
        predictive: prediction at the test inputs.
        outputs: most outputs to draw.
        before: the same before recalibration; None without recalibration.
    """
    if not data.num_test:
        return {}
    if is_classification(data.task):
        return {"reliability": _reliability(data, predictive, before)}
    try:
        found = _curves(data, predictive)
        earlier = None if before is None else _curves(data, before)
    except NotImplementedError:
        return {}
    names = data.target_names or (data.target_name,)
    return {
        f"calibration_{place + 1}" if data.target_names else "calibration": _calibration(
            found[place], None if earlier is None else earlier[place], names[place]
        )
        for place in range(min(len(names), outputs))
        if len(found[place].values)
    }


def _reliability(data: Dataset, predictive: Distribution, before: Distribution | None) -> Figure:
    from gpx.runs.figures.predictions import reliability_diagram  # Matplotlib is slow to import

    def parts(law: Distribution) -> tuple[Array, Array, Array, float]:
        y = data.test_y.to(law.probs.device)  # type: ignore[attr-defined]
        log_probabilities, classes = class_log_probabilities(data.task, law, y)
        probabilities, classes = log_probabilities.double().exp().cpu(), classes.cpu()
        counts, accuracy, confidence = (
            part.numpy() for part in reliability(probabilities, classes)
        )
        return counts, accuracy, confidence, float(ece(probabilities, classes))

    return reliability_diagram(*parts(predictive), before=None if before is None else parts(before))


class _Curves(NamedTuple):
    """PIT values (m,) of one output; levels (L,), coverage (L,) at these and its error ()."""

    values: Tensor
    levels: Tensor
    shares: Tensor
    error: Tensor


def _curves(data: Dataset, predictive: Distribution) -> list[_Curves]:
    """The curves of each output, over the test rows that have its target."""
    y, law = data.test_y.to(predictive.mean.device), target_marginals(predictive)
    found = []
    for own, targets in [(law, y)] if y.ndim == 1 else observed_outputs(law, y):
        values, curve = pit(own, targets).cpu(), coverage_curve(own, targets)
        shares, error = curve.coverage.cpu(), curve.error().cpu()
        found.append(_Curves(values, curve.levels.cpu(), shares, error))
    return found


def _calibration(found: _Curves, before: _Curves | None, name: str) -> Figure:
    from matplotlib.figure import Figure  # slow to import

    from gpx.runs.figures.predictions import BAND, BEFORE, INK, TRUTH, WAS

    bins = max(FEWEST_BINS, min(MOST_BINS, len(found.values) // ROWS_PER_BIN))

    def density(curves: _Curves) -> Array:
        counts = torch.histc(curves.values, bins, 0.0, 1.0)
        height: Array = (counts * bins / counts.sum()).numpy()
        return height

    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    middles = ((torch.arange(bins) + 0.5) / bins).numpy()
    left.bar(middles, density(found), 1.0 / bins, color=BAND, edgecolor=INK, linewidth=0.6)
    left.axhline(1.0, color=TRUTH, linewidth=1.0)
    left.set_xlabel(f"predicted probability of a smaller {name}")
    left.set_ylabel("density of test points")
    left.set_title(
        f"PIT of {len(found.values):,} test points: level if calibrated", fontsize="medium"
    )
    levels = found.levels.numpy()
    right.plot(levels, found.shares.numpy(), ".-", color=INK)
    right.plot([0.0, 1.0], [0.0, 1.0], color=TRUTH, linewidth=1.0)
    right.set_xlabel("probability of the central interval")
    right.set_ylabel("share of test points inside")
    title = f"coverage, off by {float(found.error):.3f} on average"
    if before is not None:
        edges = torch.linspace(0.0, 1.0, bins + 1).numpy()
        left.stairs(density(before), edges, color=BEFORE, linestyle="--", label=WAS)
        right.plot(levels, before.shares.numpy(), ".--", color=BEFORE, label=WAS)
        right.legend(loc="upper left", fontsize="small")
        title += f" ({float(before.error):.3f} before)"
    right.set_title(title, fontsize="medium")
    return figure
