"""Pictures of how calibrated predictions of numbers are: PIT histogram and coverage curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributions import Distribution

from gpx.data import Dataset
from gpx.diagnostics.calibration import coverage_curve, pit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 20
"""Of the histogram."""


def calibration_figures(data: Dataset, predictive: Distribution, outputs: int) -> dict[str, Figure]:
    """``calibration``, or ``calibration_1``, ... for several outputs; none without test targets.

    A law without a distribution function has none.

    Args:
        data: whose test targets are predicted, numbers or counts.
        predictive: at the test inputs.
        outputs: how many are drawn, where there are several.
    """
    from matplotlib.figure import Figure  # slow to import

    from gpx.training.figures import BAND, INK, TRUTH

    y = data.test_y.to(predictive.mean.device)
    if not len(y):
        return {}
    try:
        values = pit(predictive, y).cpu()
    except NotImplementedError:
        return {}
    curve = coverage_curve(predictive, y)
    levels, errors = curve.levels.cpu().numpy(), curve.error().cpu().reshape(-1)
    shares = curve.coverage.cpu().reshape(len(levels), -1)
    values = values.reshape(len(values), -1)
    names = data.target_names or (data.target_name,)
    drawn = {}
    for place in range(min(len(names), outputs)):
        counts = torch.histc(values[:, place], BINS, 0.0, 1.0)
        figure = Figure(figsize=(8.0, 4.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        middles = (torch.arange(BINS) + 0.5) / BINS
        height = (counts * BINS / counts.sum()).numpy()
        left.bar(middles.numpy(), height, 1.0 / BINS, color=BAND, edgecolor=INK, linewidth=0.6)
        left.axhline(1.0, color=TRUTH, linewidth=1.0)
        left.set_xlabel(f"predicted probability of a smaller {names[place]}")
        left.set_ylabel("density of test points")
        left.set_title(f"{len(y)} test points; flat: calibrated", fontsize="medium")
        right.plot(levels, shares[:, place].numpy(), ".-", color=INK)
        right.plot([0.0, 1.0], [0.0, 1.0], color=TRUTH, linewidth=1.0)
        right.set_xlabel("probability of the central interval")
        right.set_ylabel("share of test points inside")
        right.set_title(f"mean distance {float(errors[place]):.3f}", fontsize="medium")
        drawn[f"calibration_{place + 1}" if data.target_names else "calibration"] = figure
    return drawn
