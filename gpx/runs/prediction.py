"""Predictions in the data's own units: numbers with intervals, or classes."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributions import Distribution

from gpx.data import Standardiser
from gpx.data.labels import Label
from gpx.likelihoods.quantiles import central_interval
from gpx.warned_line import users_line


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


def warn_of_tails(predicted: Prediction, spacing: float) -> None:
    """Warn of means above their own 95 % interval, which a far tail makes, not the data.

    The mean of a count or of a target whose logarithm is modelled is that of exp(f). Where the
    deviation of f exceeds 2 * 1.96 it lies above the interval, and grows as exp of the variance.

    Args:
        spacing: of the values of the target, as the interval of a rare count ends at zero.
    """
    above = predicted.mean > predicted.upper + spacing + 1e-6 * np.abs(predicted.upper)
    if above.any():
        warnings.warn(
            f"{int(above.sum()):,} of {above.size:,} predicted means lie above their 95 % interval "
            f"(up to {predicted.mean[above].max():.3g}, where it ends at "
            f"{predicted.upper[above].max():.3g} at most): they are dominated by the far tail of "
            "the predictive distribution, which the data do not determine; use the interval, or "
            "bound the outputscale in training (optimizer.bounds)",
            stacklevel=users_line(),
        )


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
