"""How good predictions of numbers are.

Targets are (n,), or (n, p) for p outputs; a metric is then (), or (p,): one for each output.
"""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal


def rmse(mean: Tensor, y: Tensor) -> Tensor:
    """Root mean squared error of predictive means for targets y, same shape; in the unit of y."""
    return (mean - y).square().mean(0).sqrt()


def mae(prediction: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error of predictions for targets y, same shape; in the unit of y."""
    return (prediction - y).abs().mean(0)


def mnlp(predictive: Distribution, y: Tensor) -> Tensor:
    """Mean negative log predictive probability of targets y, in nats per point.

    Marginal, point by point: correlations between test points play no part. For continuous targets
    it is of a density, so it depends on the unit of y: in a unit ``scale`` times smaller it is
    larger by ``log(scale)``.
    """
    return -predictive.log_prob(y).mean(0)


def gaussian_mnlp(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """``mnlp`` of N(mean, variance), variances with the noise, shapes alike; in nats per point."""
    errors = (y - mean).square() / variance
    return 0.5 * (errors + variance.log() + math.log(2.0 * math.pi)).mean(0)


def coverage(predictive: Distribution, y: Tensor, level: float = 0.95) -> Tensor:
    """Share of targets y inside the central predictive interval of probability ``level``.

    A calibrated model gives ``level``; the sign of the difference tells over- from
    under-confidence.

    Raises:
        NotImplementedError: the distribution has no cumulative distribution function.
    """
    probability = predictive.cdf(y)
    tail = 0.5 * (1.0 - level)
    inside = (probability >= tail) & (probability <= 1.0 - tail)
    return inside.to(probability.dtype).mean(0)


def gaussian_crps(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Mean continuous ranked probability score of N(mean, variance); in the unit of y.

    Source: Gneiting, Raftery, Westveld and Goldman 2005, equation 5.
    """
    std = variance.sqrt()
    z = (y - mean) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    inside = z * torch.erf(z / math.sqrt(2.0)) + 2.0 * density - 1.0 / math.sqrt(math.pi)
    return (std * inside).mean(0)


def regression_metrics(predictive: Distribution, y: Tensor) -> dict[str, Tensor]:
    """``rmse``, ``mae`` and ``mnlp``; ``coverage_95`` and ``crps`` where the law allows it.

    Coverage needs a cumulative distribution function, the CRPS here is that of a Gaussian.

    Args:
        predictive: of y, batch shape (n,) or (n, p): the law of every single target.
        y (n,) or (n, p): targets on the same scale.

    Returns:
        each () or (p,), float64.
    """
    mean = predictive.mean
    found = {"rmse": rmse(mean, y), "mae": mae(mean, y), "mnlp": mnlp(predictive, y)}
    with contextlib.suppress(NotImplementedError):
        found["coverage_95"] = coverage(predictive, y)
    if isinstance(predictive, Normal):
        found["crps"] = gaussian_crps(mean, predictive.variance, y)
    return {name: value.double() for name, value in found.items()}
