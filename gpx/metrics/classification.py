"""How good predicted class probabilities are."""

from __future__ import annotations

import torch
from torch import Tensor

ECE_BINS = 20
"""Bins of confidence."""


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
    return -log_probabilities.gather(-1, classes.long()[:, None]).mean()


def brier(probabilities: Tensor, classes: Tensor) -> Tensor:
    """Brier score: mean squared distance to the indicator of the true class, summed over classes.

    From 0 to 2. For two classes it is twice the mean squared error of one class's probability.
    Arguments as for ``accuracy``. Source: Brier 1950.
    """
    truth = torch.nn.functional.one_hot(classes.long(), probabilities.shape[-1])
    return (probabilities - truth).square().sum(-1).mean()


def ece(probabilities: Tensor, classes: Tensor, bins: int = ECE_BINS) -> Tensor:
    """Expected calibration error of the most probable class.

    Points are sorted into ``bins`` of equal width by confidence; the absolute differences between
    accuracy and mean confidence are averaged, weighted by the number of points. Arguments as for
    ``accuracy``. Source: Guo et al. 2017, equation 3.
    """
    confidence, chosen = probabilities.max(-1)
    right = (chosen == classes.long()).to(confidence.dtype)
    # bins are open below and closed above, as in the source
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=confidence.dtype, device=confidence.device)
    gap.index_add_(0, place, right - confidence)
    return gap.abs().sum() / len(classes)


def classification_metrics(log_probabilities: Tensor, classes: Tensor) -> dict[str, float]:
    """``accuracy``, ``brier``, ``ece``, ``mnlp`` and ``rmse``, the root of the Brier score.

    Args:
        log_probabilities (n, C): of each class.
        classes (n,): true classes 0..C-1.
    """
    probabilities = log_probabilities.exp()
    score = brier(probabilities, classes)
    found = {
        "rmse": score.sqrt(),
        "mnlp": nlp(log_probabilities, classes),
        "accuracy": accuracy(probabilities, classes),
        "brier": score,
        "ece": ece(probabilities, classes),
    }
    return {name: float(value) for name, value in found.items()}
