"""Metrics of predictions, and baselines to compare them with."""

from gpx.metrics.baselines import baselines
from gpx.metrics.classification import (
    Reliability,
    accuracy,
    brier,
    classification_metrics,
    ece,
    entropy,
    entropy_ecdf,
    mce,
    nlp,
    reliability,
)
from gpx.metrics.evaluate import class_log_probabilities, evaluate
from gpx.metrics.ranked_probability import crps
from gpx.metrics.regression import (
    coverage,
    gaussian_crps,
    gaussian_mnlp,
    interval_score,
    mae,
    mnlp,
    msll,
    regression_metrics,
    rmse,
    sharpness,
    smae,
    smse,
    trivial_law,
)

__all__ = [
    "Reliability",
    "accuracy",
    "baselines",
    "brier",
    "class_log_probabilities",
    "classification_metrics",
    "coverage",
    "crps",
    "ece",
    "entropy",
    "entropy_ecdf",
    "evaluate",
    "gaussian_crps",
    "gaussian_mnlp",
    "interval_score",
    "mae",
    "mce",
    "mnlp",
    "msll",
    "nlp",
    "regression_metrics",
    "reliability",
    "rmse",
    "sharpness",
    "smae",
    "smse",
    "trivial_law",
]
