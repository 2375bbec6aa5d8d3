"""Results of a finished run: its figures, and the printed summary beside the baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from gpx.data import Dataset
from gpx.likelihoods import target_marginals
from gpx.likelihoods.base import is_classification
from gpx.likelihoods.quantiles import central_interval
from gpx.runs.figures.calibration import calibration_figures
from gpx.runs.predictor import Predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

NUM_GRID_POINTS = 400
"""Points at which a function of one input is drawn."""

MAX_OUTPUTS = 4
"""Of several outputs this many are drawn, in numbered figures."""


def draw_results(
    data: Dataset,
    predictor: Predictor,
    predictive: Distribution,
    before: Distribution | None = None,
) -> dict[str, Figure]:
    """Figures of predicted against observed targets, calibration, and a function of one input.

    For classes only the calibration. Of several outputs the first ``MAX_OUTPUTS`` are drawn.

    Args:
        data: the split the model was trained on.
        predictor: the trained model.
        predictive: its prediction at the test inputs.
        before: the same before recalibration; None without recalibration.
    """
    from gpx.runs.figures import predictions as figures

    calibration = calibration_figures(data, predictive, MAX_OUTPUTS, before)
    if is_classification(data.task):
        return calibration
    scaler = data.scaler

    def original(values: Tensor) -> Array:
        """Values (n, p) in the data's own units; p = 1 for a single output."""
        found = scaler.original_mean(values.double().cpu())
        return found.reshape(len(found), -1).numpy()

    def original_inputs(x: Tensor) -> Array:
        return scaler.original_inputs(x.double())[:, 0].numpy()

    def band(predictive: Distribution) -> tuple[Array, Array, Array]:
        marginals = target_marginals(predictive)
        lower, upper = central_interval(marginals, 0.95)
        return original(marginals.mean), original(lower), original(upper)

    def output(parts: tuple[Array, Array, Array], place: int) -> tuple[Array, Array, Array]:
        mean, lower, upper = parts
        return mean[:, place], lower[:, place], upper[:, place]

    names = (data.target_names or (data.target_name,))[:MAX_OUTPUTS]
    numbers = [f"_{place + 1}" if data.target_names else "" for place in range(len(names))]
    shown = list(enumerate(zip(numbers, names, strict=True)))
    observed, trained, predicted = original(data.test_y), original(data.train_y), band(predictive)
    drawn: dict[str, Figure] = {}
    for place, (number, name) in shown:
        there = ~np.isnan(observed[:, place])
        if there.any():
            mean, lower, upper = (part[there] for part in output(predicted, place))
            drawn[f"predicted_against_observed{number}"] = figures.predicted_against_observed(
                observed[there, place], mean, lower, upper, name
            )
    if data.num_inputs == 1:
        seen = torch.cat([data.train_x, data.test_x])
        low, high = float(seen.min()), float(seen.max())
        margin = 0.05 * (high - low)
        grid = torch.linspace(low - margin, high + margin, NUM_GRID_POINTS)[:, None]
        fitted = band(predictor.distribution(predictor.placed(grid)))
        drawn |= {
            f"fitted_function{number}": figures.fitted_function(
                (original_inputs(data.train_x), trained[:, place]),
                (original_inputs(data.test_x), observed[:, place]),
                original_inputs(grid),
                *output(fitted, place),
                (data.input_names[0], name),
            )
            for place, (number, name) in shown
        }
    return drawn | calibration


LARGE_MISFIT = 2.0
"""Error bars are reported as unreliable if the expected squared error of training rows exceeds this
many noise variances. They are too narrow where weights are sure of their values, and too wide where
weights are spread over several."""

LARGE_EVIDENCE = 1e9
"""Evidences of at least so many nats are printed with a power of ten."""

COVERAGE_TOLERANCE = 0.1
"""Coverage below 0.95 by more than this is reported."""

UNSTANDARDISED = {"count": "counts", "proportion": "proportions", "positive": "targets"}
"""Names of targets in test metrics, for tasks that do not standardise them."""


def summary(metrics: Mapping[str, Any]) -> list[str]:
    """Lines printed at the end of a run: table of model and baselines, warnings, evidence, cost.

    Args:
        metrics: contents of metrics.json.
    """
    classes = "test.accuracy" in metrics
    scale = UNSTANDARDISED.get(metrics.get("data.task", ""), "standardised targets")
    shown = ("accuracy", "mae", "mnlp", "brier", "ece") if classes else ("rmse", "mnlp")
    columns = [column for column in shown if f"test.{column}" in metrics]
    named = _baselines(metrics)
    tested = f" on {metrics['data.num_test']:,} rows" if "data.num_test" in metrics else ""
    rows = {metrics["model.name"]: "test"}
    if any(name.startswith("uncalibrated.") for name in metrics):
        rows["  before recalibration"] = "uncalibrated"
    rows |= {name: f"baseline.{name}" for name in named}
    width = max(len(name) for name in rows) + 2
    if columns:
        lines = [
            f"test metrics{tested}" + ("" if classes else f" ({scale}; lower is better)"),
            " " * width + "".join(column.rjust(10) for column in columns),
        ]
    else:
        lines, rows = ["no test metrics: all rows were trained on"], {}
    for name, prefix in rows.items():
        cells = [metrics.get(f"{prefix}.{column}") for column in columns]
        lines.append(name.ljust(width) + "".join(_cell(cell) for cell in cells))
    if "uncalibrated.coverage_95" in metrics:
        now, before = (
            f"{100.0 * metrics[f'{part}.coverage_95']:.1f} %" for part in ("test", "uncalibrated")
        )
        lines.append(f"95 % intervals hold {now} of the test targets, {before} before")
    if "test.mnlp_gap" in metrics:
        lines.append(
            f"mnlp of training targets {metrics['train.mnlp']:.4f}, of test targets "
            f"{metrics.get('uncalibrated.mnlp', metrics['test.mnlp']):.4f}: gap "
            f"{metrics['test.mnlp_gap']:.4f}"
        )
    if "predict.sparsity" in metrics:
        lines.append(f"zeros in a draw of the weights: {100.0 * metrics['predict.sparsity']:.1f} %")
    lines += coarse_weights(metrics)
    lines += narrow_intervals(metrics)
    lines += better_baselines(metrics)
    kind = str(metrics["train.evidence_kind"]).replace("_", " ")
    if "train.evidence_of" in metrics:
        kind += f"; {metrics['train.evidence_of']}"
    evidence = metrics["train.evidence"]
    nats = f"{evidence:.1f}" if abs(evidence) < LARGE_EVIDENCE else f"{evidence:.4g}"
    lines.append(
        f"log evidence {nats} nats ({kind}); "
        f"{metrics['train.steps']} steps in {metrics['train.seconds']:.1f} s{_ended(metrics)}; "
        f"peak memory {metrics['memory.peak_mib']:.0f} MiB"
    )
    return lines


def _ended(metrics: Mapping[str, Any]) -> str:
    """Why training ended, in brackets after its time; empty where that is not known."""
    reason = str(metrics.get("train.stopped", ""))
    if reason.startswith("CONVERGENCE"):  # as SciPy's L-BFGS-B says it, in capitals
        reason = "converged"
    return f" ({reason})" if reason else ""


def coarse_weights(metrics: Mapping[str, Any]) -> list[str]:
    """One line if the values of discrete weights are too far apart for the noise, else none.

    Args:
        metrics: contents of metrics.json.
    """
    misfit = metrics.get("train.misfit", 0.0)
    if misfit <= LARGE_MISFIT:
        return []
    return [
        "error bars are unreliable: the expected squared error of training rows is "
        f"{misfit:.3g} times the noise variance, as the values that weights may take are too far "
        "apart; bring them closer together (approx.weights.half_width=1), use a grid of noise "
        "variances ('approx.noise={_target_: gpx.models.NoiseGrid, lowest: 0.001, highest: 1}'), "
        "or use Gaussian weights (approx=exact, approx=sgpr)"
    ]


def narrow_intervals(metrics: Mapping[str, Any]) -> list[str]:
    """One line if 95 % intervals contain far fewer of the test targets, else none.

    That is below 85 %, and below 95 % by more than four standard errors.

    Args:
        metrics: contents of metrics.json.
    """
    covered, count = metrics.get("test.coverage_95"), metrics.get("data.num_test")
    if covered is None or not count:
        return []
    if covered >= 0.95 - max(COVERAGE_TOLERANCE, 4.0 * math.sqrt(0.95 * 0.05 / count)):
        return []
    recalibrated = any(name.startswith("calibration.") for name in metrics)
    several = any(name.startswith("test.rmse.") for name in metrics)
    possible = metrics.get("data.task", "regression") == "regression" and not (
        recalibrated or several
    )
    widened = "calibrate=variance or calibrate=conformal, or " if possible else ""
    return [
        f"error bars are too narrow: 95 % intervals contain only {100.0 * covered:.1f} % of the "
        f"test targets; use {widened}more basis functions or inducing points if the method has "
        "them (approx.num_basis, approx.num_inducing)"
    ]


def better_baselines(metrics: Mapping[str, Any]) -> list[str]:
    """One line on the best baseline if it predicts better than the model, else none.

    Test RMSE (accuracy for classes) is compared first; if no baseline is better, test MNLP.

    Args:
        metrics: contents of metrics.json.
    """
    error = ("rmse", "lower test RMSE", 1.0)
    if "test.accuracy" in metrics:
        error = ("accuracy", "higher test accuracy", -1.0)
    return _compare(metrics, *error) or _compare(metrics, "mnlp", "lower test MNLP", 1.0)


def _compare(metrics: Mapping[str, Any], column: str, word: str, sign: float) -> list[str]:
    own = metrics.get(f"test.{column}")
    scores = {
        name: metrics[f"baseline.{name}.{column}"]
        for name in _baselines(metrics)
        if metrics.get(f"baseline.{name}.{column}") is not None
    }
    if own is None or not scores:
        return []
    best = min(scores, key=lambda name: sign * scores[name])
    if not sign * scores[best] < sign * own or f"{scores[best]:.4f}" == f"{own:.4f}":
        return []
    prefix = f"baseline.{best}"
    theirs, ours = (_cell(score).strip() for score in (scores[best], own))
    text = f"{BASELINE_NAMES.get(best, best)} has a {word}: {theirs} against {ours}"
    if f"{prefix}.seconds" in metrics:
        text += f", in {metrics[f'{prefix}.seconds']:.1f} s"
    if f"{prefix}.rows" in metrics:
        text += f", fitted to {metrics[f'{prefix}.rows']:,} rows"
    return [text]


BASELINE_NAMES = {
    "boosting": "histogram boosting",
    "linear": "a linear model",
    "mean": "predicting the training mean",
    "5-nn": "the mean of the 5 nearest neighbours",
}
"""Names of baselines in a sentence."""


def _baselines(metrics: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(k.split(".")[1] for k in metrics if k.startswith("baseline.")))


def _cell(value: float | None) -> str:
    if value is None:
        return "-".rjust(10)
    return f"{value:10.4f}" if abs(value) < 1e3 else f"{value:10.3g}"  # at most 9 characters
