"""All metrics of a task, on the standardised scale and in the original units."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.distributions import Distribution

from gpx.data.labels import Task
from gpx.data.standardiser import Standardiser
from gpx.likelihoods import target_marginals
from gpx.likelihoods.base import class_numbers, is_classification, log_class_probabilities
from gpx.metrics.classification import classification_metrics
from gpx.metrics.regression import observed_metrics, regression_metrics

_IN_TARGET_UNIT = ("rmse", "mae", "crps", "sharpness", "interval_score_95")


def evaluate(
    task: Task,
    predictive: Distribution,
    y: Tensor,
    scaler: Standardiser,
    target_names: Sequence[str] = (),
    *,
    trivial: Distribution | None = None,
) -> dict[str, float]:
    """All metrics of predictions for test targets.

    Every task has ``rmse`` and ``mnlp`` and, in original units, ``rmse_original`` and
    ``mnlp_original``. Regression and counts add ``mae``, ``smse`` and ``smae`` (errors relative to
    those of the mean of the test targets; left out if all targets are equal), ``sharpness`` (mean
    predictive standard deviation) and, if the distribution has a cumulative distribution function,
    ``coverage_95``, ``coverage_error``, ``crps`` and ``interval_score_95``. Metrics in the unit of
    the target are also given in original units (``crps_original``). See ``regression_metrics``.
    Regression adds ``msll``, the ``mnlp`` minus that of the trivial prediction, which does not
    depend on the unit. Classes add ``accuracy``, ``brier``, ``ece``, ``ece_midpoint``, ``mce`` and
    ``entropy``, and ordered classes ``mae`` in classes; their ``rmse`` is the root of the Brier
    score and has no unit.

    With several outputs each has its own metrics (``rmse.strength``), over the rows that have its
    target, and ``rmse`` is their mean. In original units this mean is dominated by outputs with
    large values. An output lacks the metrics that its targets do not allow.

    Args:
        task: of the likelihood.
        predictive: distribution of y from the likelihood, batch shape (n,) or (n, p); for classes
            it has ``probs`` or ``logits``, (n,) for the label 1, or (n, C).
        y (n,) or (n, p): targets as in ``Dataset``: standardised, or -1 and 1, or 0..C-1, or
            counts; with several outputs NaN for a missing target.
        scaler: of the data set.
        target_names: p names for several outputs; otherwise empty.
        trivial: ``gpx.metrics.trivial_law`` of the training targets, for ``msll``; not used for
            counts, since a density cannot be compared with probabilities.

    Raises:
        ConfigError: the distribution of a classifier has neither ``probs`` nor ``logits``.
    """
    if is_classification(task):
        known = class_log_probabilities(task, predictive, y)
        found = classification_metrics(*known, ordered=task == "ordinal")
        return found | {f"{name}_original": found[name] for name in ("rmse", "mnlp")}
    comparable = None if task == "count" else trivial
    gaps = bool(target_names) and bool(y.isnan().any())
    each = (observed_metrics if gaps else regression_metrics)(
        target_marginals(predictive), y, comparable
    )
    scale = scaler.target_scale.to(y.device)
    for name in _IN_TARGET_UNIT:
        if name in each:
            each[f"{name}_original"] = each[name] * scale
    # the density per original unit is the standardised density divided by the scale
    each["mnlp_original"] = each["mnlp"] + scale.log()
    found = {
        name: float(values.nanmean() if gaps else values.mean()) for name, values in each.items()
    }
    for place, target in enumerate(target_names):
        own = {f"{name}.{target}": float(values[place]) for name, values in each.items()}
        found |= {name: value for name, value in own.items() if not (gaps and math.isnan(value))}
    return found


def class_log_probabilities(
    task: Task, predictive: Distribution, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Log probabilities (n, C) and classes 0..C-1 (n,) of a classifier's predictions.

    Arguments as for ``evaluate``.

    Raises:
        ConfigError: the predictive distribution has neither probabilities nor their logits.
    """
    return log_class_probabilities(predictive), class_numbers(y, task)
