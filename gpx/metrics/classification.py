"""Metrics of class probabilities."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

ECE_BINS = 20
"""Number of bins of confidence in calibration errors."""


def accuracy(probabilities: Tensor, classes: Tensor) -> Tensor:
    """Share of points whose most probable class is the true one.

    Args:
        probabilities (n, C): rows sum to one.
        classes (n,): true classes 0..C-1.
    """
    return (probabilities.argmax(-1) == classes.long()).to(probabilities.dtype).mean()


def nlp(log_probabilities: Tensor, classes: Tensor) -> Tensor:
    """Mean negative log probability of the true class, in nats per point.

    Args:
        log_probabilities (n, C): of each class.
        classes (n,): true classes 0..C-1.
    """
    return nll_loss(log_probabilities, classes.long())


def brier(
    probabilities: Tensor, classes: Tensor, over_classes: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """Brier score: mean squared distance to the indicator of the true class.

    Summed over classes it goes from 0 to 2, and for two classes it is twice the mean squared error
    of one class's probability. Some authors state the ``mean`` over classes, which is the sum
    divided by C. Arguments as for ``accuracy``. Source: Brier 1950.
    """
    truth = one_hot(classes.long(), probabilities.shape[-1])
    squares = (probabilities - truth).square()
    return (squares.sum(-1) if over_classes == "sum" else squares.mean(-1)).mean()


class Reliability(NamedTuple):
    """Predictions sorted by the probability of their most probable class, in bins of equal width.

    Attributes:
        counts (B,): predictions in each bin ((b - 1) / B, b / B]; zero belongs to the first.
        accuracy (B,), confidence (B,): share of correct predictions, and mean of that probability;
            NaN for an empty bin.
    """

    counts: Tensor
    accuracy: Tensor
    confidence: Tensor


def reliability(probabilities: Tensor, classes: Tensor, bins: int = ECE_BINS) -> Reliability:
    """Data of a reliability diagram. Arguments as for ``accuracy``."""
    confidence, chosen = probabilities.max(-1)
    right = (chosen == classes.long()).to(confidence.dtype)
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    sums = torch.zeros(3, bins, dtype=confidence.dtype, device=confidence.device)
    sums.index_add_(1, place, torch.stack([torch.ones_like(right), right, confidence]))
    return Reliability(sums[0], sums[1] / sums[0], sums[2] / sums[0])


def ece(
    probabilities: Tensor,
    classes: Tensor,
    bins: int = ECE_BINS,
    confidence: Literal["mean", "midpoint"] = "mean",
) -> Tensor:
    """Expected calibration error of the most probable class.

    Points are sorted into ``bins`` of equal width by confidence; the absolute differences between
    accuracy and confidence are averaged, weighted by the number of points. The confidence of a bin
    is the mean of its points, or its ``midpoint``. Arguments as for ``accuracy``. Source: Guo et
    al. 2017, equation 3.
    """
    found = reliability(probabilities, classes, bins)
    return (found.counts * _gaps(found, confidence)).sum() / len(classes)


def mce(probabilities: Tensor, classes: Tensor, bins: int = ECE_BINS) -> Tensor:
    """Maximum calibration error: the largest gap between accuracy and confidence of a bin.

    Arguments as for ``ece``; the confidence of a bin is the mean of its points.
    """
    return _gaps(reliability(probabilities, classes, bins), "mean").max()


def _gaps(found: Reliability, confidence: Literal["mean", "midpoint"]) -> Tensor:
    """|accuracy - confidence| of each bin (B,), zero for empty bins."""
    bins = len(found.counts)
    middle = (torch.arange(bins, device=found.counts.device).to(found.counts) + 0.5) / bins
    expected = found.confidence if confidence == "mean" else middle
    return (found.accuracy - expected).abs().masked_fill(found.counts == 0, 0.0)


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy (n,) of each prediction in nats, from 0 to log C; probabilities (n, C)."""
    return -torch.xlogy(probabilities, probabilities).sum(-1)


def entropy_ecdf(probabilities: Tensor, thresholds: Tensor) -> Tensor:
    """Share (k,) of predictions whose entropy is at most each threshold.

    The empirical distribution function of the entropy. Inputs unlike the training data should have
    the lower curve: few certain predictions.

    Args:
        probabilities (n, C): rows sum to one.
        thresholds (k,): entropies in nats, in any order.
    """
    ordered = entropy(probabilities).sort().values
    counts = torch.searchsorted(ordered, thresholds.to(ordered).contiguous(), right=True)
    return counts.to(ordered.dtype) / len(ordered)


def class_distance(probabilities: Tensor, classes: Tensor) -> Tensor:
    """Mean distance of the most probable class from the true one, for ordered classes.

    Arguments as for ``accuracy``. Source: Chu and Ghahramani 2005 (mean absolute error).
    """
    return (probabilities.argmax(-1) - classes.long()).abs().to(probabilities.dtype).mean()


def classification_metrics(
    log_probabilities: Tensor, classes: Tensor, *, ordered: bool = False
) -> dict[str, float]:
    """``accuracy``, ``brier``, ``mnlp``, ``rmse``, calibration errors and ``entropy``.

    ``rmse`` is the root of the Brier score; ``ece``, ``ece_midpoint`` and ``mce`` are calibration
    errors; ``entropy`` is the mean over predictions.

    Args:
        log_probabilities (n, C): of each class.
        classes (n,): true classes 0..C-1.
        ordered: add ``mae``, see ``class_distance``.
    """
    probabilities = log_probabilities.exp()
    score = brier(probabilities, classes)
    found = {
        "rmse": score.sqrt(),
        "mnlp": nlp(log_probabilities, classes),
        "accuracy": accuracy(probabilities, classes),
        "brier": score,
        "ece": ece(probabilities, classes),
        "ece_midpoint": ece(probabilities, classes, confidence="midpoint"),
        "mce": mce(probabilities, classes),
        "entropy": entropy(probabilities).mean(),
    }
    if ordered:
        found["mae"] = class_distance(probabilities, classes)
    return {name: float(value) for name, value in found.items()}
