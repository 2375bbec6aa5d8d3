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
    msll,
    regression_metrics,
    rmse,
    smae,
    smse,
    trivial_law,
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
    "msll",
    "nlp",
    "regression_metrics",
    "rmse",
    "smae",
    "smse",
    "trivial_law",
]
