"""Predictions in the data's own units: numbers with intervals, or classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributions import Distribution

from gpx.data import Standardiser
from gpx.data.labels import Label
from gpx.likelihoods.quantiles import central_interval


class Prediction(NamedTuple):
    """Predictive distribution of y per row, in the data's own units.

    Attributes:
        mean (n,), std (n,): of y, observation noise included; (n, p) for p > 1 outputs.
        lower (n,), upper (n,): ends of the central 95 % interval, of the same shape; the intervals
            of several outputs are not joint.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class ClassPrediction(NamedTuple):
    """Predictive distribution of the class per row, in the data's own labels.

    Attributes:
        label (n,): of the most probable class; text if the classes have names.
        probability (n, C): of every class, in the order of ``Predictor.labels``.
    """

    label: NDArray[Any]
    probability: NDArray[np.float64]


def summary(law: Distribution, scaler: Standardiser) -> Prediction:
    """The ``Prediction`` for a distribution of standardised targets."""
    ends = central_interval(law, 0.95)
    mean, lower, upper = (scaler.original_mean(t.double().cpu()) for t in (law.mean, *ends))
    std = scaler.original_std(law.stddev.double().cpu())
    return Prediction(mean.numpy(), std.numpy(), lower.numpy(), upper.numpy())


def class_summary(law: Distribution, labels: tuple[Label, ...]) -> ClassPrediction:
    """The ``ClassPrediction`` for a distribution of classes coded as numbers."""
    probability = law.probs.double().cpu()  # type: ignore[attr-defined]
    if probability.ndim == 1:  # of the second class
        probability = torch.stack([1.0 - probability, probability], dim=1)
    else:  # float32 probabilities add up to one only approximately
        probability = probability / probability.sum(1, keepdim=True)
    return ClassPrediction(np.array(labels)[probability.argmax(1).numpy()], probability.numpy())
