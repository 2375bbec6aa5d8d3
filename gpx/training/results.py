"""What a finished run shows people: figures, and the model beside the baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from gpx.data import Dataset
from gpx.training.predictor import Predictor, central_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

GRID = 400
"""Points at which a function of one input is drawn."""


def draw_results(
    data: Dataset, predictor: Predictor, predictive: Distribution
) -> dict[str, Figure]:
    """Predicted against observed and, for one input, the fitted function; none for classes.

    Args:
        data: the split the model was trained on.
        predictor: the trained model.
        predictive: its prediction at the test inputs.
    """
    from gpx.training import figures  # Matplotlib is slow to import; the first line must be early

    if data.task not in ("regression", "count"):
        return {}
    scaler = data.scaler

    def original(values: Tensor) -> Array:
        return scaler.original_mean(values.double().cpu()).numpy()

    def original_inputs(x: Tensor) -> Array:
        return scaler.original_inputs(x.double())[:, 0].numpy()

    def band(predictive: Distribution) -> tuple[Array, Array, Array]:
        lower, upper = central_interval(predictive, 0.95)
        return original(predictive.mean), original(lower), original(upper)

    observed = original(data.test_y)
    drawn = {
        "predicted_against_observed": figures.predicted_against_observed(
            observed, *band(predictive), data.target_name
        )
    }
    if data.num_inputs == 1:
        low, high = float(data.train_x.min()), float(data.train_x.max())
        margin = 0.05 * (high - low)
        grid = torch.linspace(low - margin, high + margin, GRID)[:, None]
        drawn["fitted_function"] = figures.fitted_function(
            (original_inputs(data.train_x), original(data.train_y)),
            (original_inputs(data.test_x), observed),
            original_inputs(grid),
            *band(predictor.distribution(grid.to(predictive.mean))),
            (data.input_names[0], data.target_name),
        )
    return drawn


def summary(metrics: Mapping[str, Any]) -> list[str]:
    """The lines a person reads at the end: a table of model and baselines, evidence, cost.

    Args:
        metrics: contents of metrics.json.
    """
    columns = [c for c in ("rmse", "mnlp", "accuracy") if f"test.{c}" in metrics]
    named = dict.fromkeys(k.split(".")[1] for k in metrics if k.startswith("baseline."))
    rows = {metrics["model.name"]: "test"} | {name: f"baseline.{name}" for name in named}
    width = max(len(name) for name in rows) + 2
    lines = [
        "test metrics (standardised targets)",
        " " * width + "".join(column.rjust(10) for column in columns),
    ]
    for name, prefix in rows.items():
        cells = [metrics.get(f"{prefix}.{column}") for column in columns]
        lines.append(name.ljust(width) + "".join(_cell(cell) for cell in cells))
    lines.append(
        f"evidence {metrics['train.evidence']:.1f} nats ({metrics['train.evidence_kind']}), "
        f"{metrics['train.steps']} steps in {metrics['train.seconds']:.1f} s, "
        f"peak memory {metrics['memory.peak_mib']:.0f} MiB"
    )
    return lines


def _cell(value: float | None) -> str:
    if value is None:
        return "-".rjust(10)
    return f"{value:10.4f}" if abs(value) < 1e3 else f"{value:10.3g}"  # never without a gap
