"""Metrics of predictions, and the baselines to read them beside."""

from gpx.metrics.baselines import baselines
from gpx.metrics.classification import accuracy, brier, classification_metrics, ece, nlp
from gpx.metrics.evaluate import evaluate
from gpx.metrics.regression import (
    coverage,
    gaussian_crps,
    gaussian_mnlp,
    mae,
    mnlp,
    regression_metrics,
    rmse,
)

__all__ = [
    "accuracy",
    "baselines",
    "brier",
    "classification_metrics",
    "coverage",
    "ece",
    "evaluate",
    "gaussian_crps",
    "gaussian_mnlp",
    "mae",
    "mnlp",
    "nlp",
    "regression_metrics",
    "rmse",
]
