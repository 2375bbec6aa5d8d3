"""Metrics of regression.

Targets are (n,), or (n, p) for p outputs; a metric is then (), or (p,) with one value per output.
"""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, Normal

from gpx.constants import LOG_TWO_PI
from gpx.diagnostics.calibration import coverage_curve
from gpx.likelihoods.quantiles import RowsReplaced, cdf, cdf_before, quantile, select_rows
from gpx.metrics.ranked_probability import crps

SMALLEST_STD = 1e-6
"""Smallest predictive standard deviation of a baseline, in case it fits without error."""

MAX_MIXTURE_ROWS = 5_000
"""Most targets for which the CRPS and interval score of mixtures are computed."""


def rmse(mean: Tensor, y: Tensor) -> Tensor:
    """Root mean squared error of predictive means for targets y of the same shape; unit of y."""
    return (mean - y).square().mean(0).sqrt()


def mae(prediction: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error of predictions for targets y of the same shape; unit of y."""
    return (prediction - y).abs().mean(0)


def mnlp(predictive: Distribution, y: Tensor) -> Tensor:
    """Mean negative log predictive probability of targets y, in nats per point.

    Each point is scored by its marginal. For continuous targets it is a density and depends on the
    unit of y: in a unit that is ``scale`` times smaller it is larger by ``log(scale)``.
    """
    return -predictive.log_prob(y).mean(0)


def gaussian_mnlp(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """``mnlp`` of N(mean, variance), all of one shape, variances with noise; nats per point."""
    errors = (y - mean).square() / variance
    return 0.5 * (errors + variance.log() + LOG_TWO_PI).mean(0)


def smse(mean: Tensor, y: Tensor) -> Tensor:
    """Standardised mean squared error: divided by the population variance of the targets y.

    Predicting the mean of y gives 1, a perfect prediction 0. Shapes are equal; the targets of an
    output must not all be equal.

    Source: Rasmussen and Williams 2006, section 2.5.
    """
    return (mean - y).square().mean(0) / (y.mean(0) - y).square().mean(0)


def smae(prediction: Tensor, y: Tensor) -> Tensor:
    """Standardised mean absolute error: divided by the mean absolute deviation of y from its mean.

    Predicting the mean of y gives 1, a perfect prediction 0. Shapes are equal; the targets of an
    output must not all be equal.
    """
    return mae(prediction, y) / mae(y.mean(0), y)


def trivial_law(train_y: Tensor) -> Normal:
    """Prediction without inputs: N(mean, variance) of the training targets (n,) or (n, p).

    Uses the population variance, with a standard deviation of at least ``SMALLEST_STD``. Missing
    targets (NaN) are left out, and one of several without any has N(0, 1). Shape () or (p,).
    """
    if bool(train_y.isnan().any()):
        mean = train_y.nanmean(0)
        std = (train_y - mean).square().nanmean(0).sqrt().clamp_min(SMALLEST_STD)
        return Normal(mean.nan_to_num(0.0), std.nan_to_num(1.0))
    std = train_y.std(0, correction=0).clamp_min(SMALLEST_STD)
    return Normal(train_y.mean(0), std)


def msll(predictive: Distribution, trivial: Distribution, y: Tensor) -> Tensor:
    """Mean standardised log loss: ``mnlp`` minus that of ``trivial_law``, in nats per point.

    Predicting ``trivial_law`` gives 0, better predictions less. It does not depend on the unit of
    y. Also known as SNLP.

    Args:
        predictive: distribution of y, batch shape (n,) or (n, p).
        trivial: ``trivial_law`` of the training targets.
        y (n,) or (n, p): test targets on the same scale.

    Source: Rasmussen and Williams 2006, section 2.5.
    """
    return mnlp(predictive, y) - mnlp(trivial, y)


def coverage(predictive: Distribution, y: Tensor, level: float = 0.95) -> Tensor:
    """Share of targets y inside the central predictive interval of probability ``level``.

    A calibrated model gives ``level``, or more for counts, whose intervals end at whole numbers.
    Less than ``level`` means overconfidence.

    Raises:
        NotImplementedError: the distribution has no cumulative distribution function.
    """
    tail = 0.5 * (1.0 - level)
    inside = (cdf(predictive, y) >= tail) & (cdf_before(predictive, y) <= 1.0 - tail)
    return inside.to(y.dtype).mean(0)


def interval_score(predictive: Distribution, y: Tensor, level: float = 0.95) -> Tensor:
    """Mean width of the central interval plus 2 / (1 - level) times the distance of y outside it.

    In the unit of y; smaller is better.

    Raises:
        NotImplementedError: the distribution has no cumulative distribution function.

    Source: Gneiting and Raftery 2007, section 6.2.
    """
    tail = 0.5 * (1.0 - level)
    lower, upper = quantile(predictive, tail), quantile(predictive, 1.0 - tail)
    outside = (lower - y).clamp_min(0.0) + (y - upper).clamp_min(0.0)
    return (upper - lower + outside / tail).mean(0)


def sharpness(predictive: Distribution) -> Tensor:
    """Mean predictive standard deviation, including observation noise; unit of y."""
    return predictive.stddev.mean(0)


def gaussian_crps(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Mean continuous ranked probability score of N(mean, variance); unit of y.

    Source: Gneiting, Raftery, Westveld and Goldman 2005, equation 5.
    """
    return crps(Normal(mean, variance.sqrt()), y).mean(0).to(y.dtype)


def regression_metrics(
    predictive: Distribution, y: Tensor, trivial: Distribution | None = None
) -> dict[str, Tensor]:
    """``rmse``, ``mae``, ``mnlp``, ``sharpness``, and others that distribution and targets allow.

    ``smse`` and ``smae`` need targets that are not all equal, and ``msll`` needs ``trivial``.
    ``coverage_95``, ``coverage_error`` (mean distance of the coverage curve from the diagonal),
    ``crps`` and ``interval_score_95`` need a cumulative distribution function; for mixtures the
    last two use at most ``MAX_MIXTURE_ROWS`` evenly spaced targets.

    Args:
        predictive: distribution of every target, batch shape (n,) or (n, p).
        y (n,) or (n, p): targets on the same scale.
        trivial: ``trivial_law`` of the training targets.

    Returns:
        metrics by name, () or (p,) each, float64.
    """
    mean = predictive.mean
    found = {"rmse": rmse(mean, y), "mae": mae(mean, y), "mnlp": mnlp(predictive, y)}
    found["sharpness"] = sharpness(predictive)
    if bool((y.amax(0) > y.amin(0)).all()):
        found |= {"smse": smse(mean, y), "smae": smae(mean, y)}
    if trivial is not None:
        found["msll"] = msll(predictive, trivial, y)
    with contextlib.suppress(NotImplementedError):
        found["coverage_95"] = coverage(predictive, y)
        found["coverage_error"] = coverage_curve(predictive, y).error()
        few, some_y = _some_rows(predictive, y)
        found["interval_score_95"] = interval_score(few, some_y)
        found["crps"] = crps(few, some_y).mean(0)
    return {name: value.double() for name, value in found.items()}


def observed_outputs(predictive: Distribution, y: Tensor) -> list[tuple[Distribution, Tensor]]:
    """Distribution and targets of each output, restricted to the rows that have its target.

    Args:
        predictive: batch shape (n, p).
        y (n, p): NaN for missing targets.

    Raises:
        NotImplementedError: a distribution that ``select_rows`` does not know.
    """
    found = []
    for place, targets in enumerate(y.unbind(1)):
        rows = (~targets.isnan()).nonzero()[:, 0]
        law = select_rows(predictive, (rows, torch.full_like(rows, place)))
        found.append((law, targets[rows]))
    return found


def observed_metrics(
    predictive: Distribution, y: Tensor, trivial: Distribution | None = None
) -> dict[str, Tensor]:
    """``regression_metrics`` of each output over the rows that have its target.

    Args:
        predictive: as there, batch shape (n, p).
        y (n, p): NaN for missing targets.
        trivial: as there.

    Returns:
        metrics by name, (p,) each, float64; NaN for an output whose targets do not allow a metric.
    """
    each: list[dict[str, Tensor]] = []
    for place, (law, targets) in enumerate(observed_outputs(predictive, y)):
        alone = None
        if trivial is not None:
            alone = select_rows(trivial, torch.tensor(place, device=y.device))
        each.append(regression_metrics(law, targets, alone) if len(targets) else {})
    absent = torch.tensor(math.nan, dtype=torch.float64, device=y.device)
    names = dict.fromkeys(name for found in each for name in found)
    return {name: torch.stack([found.get(name, absent) for found in each]) for name in names}


def _some_rows(predictive: Distribution, y: Tensor) -> tuple[Distribution, Tensor]:
    """At most ``MAX_MIXTURE_ROWS`` evenly spaced rows of a mixture; all rows of others."""
    mixed = isinstance(predictive, (MixtureSameFamily, RowsReplaced))
    if len(y) <= MAX_MIXTURE_ROWS or not mixed:
        return predictive, y
    places = torch.linspace(0, len(y) - 1, MAX_MIXTURE_ROWS, dtype=torch.float64)
    rows = places.round().long().to(y.device)
    with contextlib.suppress(NotImplementedError):
        return select_rows(predictive, rows), y[rows]
    return predictive, y
