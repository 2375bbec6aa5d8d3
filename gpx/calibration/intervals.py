"""Recalibration of predictive spread for regression, by likelihood or by interval coverage."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Laplace,
    MixtureSameFamily,
    Normal,
    StudentT,
)

from gpx.calibration.base import Recalibration, minimise_log_parameter, require_rows
from gpx.errors import ConfigError, DataError
from gpx.likelihoods.quantiles import RowsReplaced, central_interval
from gpx.tensor_checks import check_share

MIN_FACTOR = math.exp(-10.0)
"""Smallest factor, reached if held-out rows are predicted without error."""

MAX_ABS_LOG_FACTOR = 10.0
"""Largest absolute logarithm of the factor in the search for the largest likelihood."""


class Spread(Recalibration):
    """Scales the predictive distribution about its mean by one factor and keeps its shape.

    A normal distribution stays normal, and a heavy-tailed one keeps its tails (``widened``). Only
    for a single output.

    Attributes:
        factor (): multiplies distances from the mean.
    """

    tasks = ("regression",)
    factor: Tensor

    def __init__(self, fraction: float = 0.1) -> None:
        super().__init__(fraction)
        self.register_buffer("factor", torch.ones((), dtype=torch.float64))

    @torch.no_grad()
    def fit(self, predictive: Distribution, y: Tensor) -> None:
        """As in ``Recalibration``.

        Raises:
            DataError: no rows, or too few for the level.
            ConfigError: several outputs, or a distribution that cannot be scaled.
        """
        require_rows(y)
        self.require_one_output(max(y[0].numel(), math.prod(predictive.event_shape)))
        factor = torch.as_tensor(self.best_factor(predictive, y))
        self.factor.copy_(factor.clamp_min(MIN_FACTOR))

    def best_factor(self, predictive: Distribution, y: Tensor) -> Tensor | float:
        """The factor fitted to predictions of targets y (n,), n > 0."""
        raise NotImplementedError

    @torch.no_grad()
    def forward(self, predictive: Distribution) -> Distribution:
        """As in ``Recalibration``."""
        return widened(predictive, self.factor)

    def facts(self) -> dict[str, bool | int | float | str]:
        """``factor``."""
        return {"factor": float(self.factor)}


class Variance(Spread):
    """Scales the spread by the factor with the largest likelihood of the held-out rows.

    For normal distributions it is the root mean square of the standardised residuals; for others it
    is found numerically.

    Source: Laves et al., "Well-calibrated regression uncertainty in medical imaging with deep
    learning", 2020.
    """

    def best_factor(self, predictive: Distribution, y: Tensor) -> Tensor | float:
        """As in ``Spread``."""
        if isinstance(predictive, Normal):
            scaled = (y.double() - predictive.mean.double()) / predictive.stddev.double()
            return scaled.square().mean().sqrt()

        def loss(logarithm: float) -> float:
            factor = torch.tensor(math.exp(logarithm), dtype=torch.float64)
            return -float(widened(predictive, factor).log_prob(y).double().mean())

        return math.exp(minimise_log_parameter(loss, MAX_ABS_LOG_FACTOR))


class Conformal(Spread):
    """Scales the spread so that central intervals of one level have the right coverage.

    Split conformal prediction, where the score of a row is the factor by which its interval would
    have to grow to reach the target. A new row that is exchangeable with the n held-out rows lies
    in its interval with probability at least ``level``, and at most level + 1 / (n + 1) if scores
    have no ties, however bad the model, provided that its intervals contain its means. Those of a
    very skewed mixture, or of a low level, may not: they are scaled about the mean, so that a wider
    one does not contain a narrower one, and nothing is promised.

    Args:
        level: of the interval, in (0, 1); runs report 0.95.
        fraction: as in ``Recalibration``.

    Raises:
        ConfigError: a level out of range.

    Source: Lei et al., "Distribution-free predictive inference for regression", 2018.
    """

    def __init__(self, level: float = 0.95, fraction: float = 0.1) -> None:
        super().__init__(fraction)
        check_share(level=level)
        self.level = level

    def best_factor(self, predictive: Distribution, y: Tensor) -> Tensor | float:
        """As in ``Spread``.

        Raises:
            DataError: fewer than level / (1 - level) rows.
        """
        self.require_enough(len(y))
        lower, upper = (end.double() for end in central_interval(predictive, self.level))
        mean = predictive.mean.double()
        tiny = torch.finfo(torch.float64).tiny
        above, below = (upper - mean).clamp_min(tiny), (mean - lower).clamp_min(tiny)
        gap = y.double() - mean
        return self.factor_of_scores(torch.where(gap > 0, gap / above, -gap / below))

    def require_enough(self, count: int) -> None:
        """As in ``Recalibration``: the level needs level / (1 - level) rows."""
        if self._rank(count) > count:
            needed = math.ceil(self.level / (1.0 - self.level) - 1e-9)
            raise DataError(
                f"{count} held-out rows cannot promise intervals of {self.level:g}: that "
                f"takes {needed} or more; raise fraction={self.fraction:g}, or lower "
                f"level={self.level:g}"
            )

    def factor_of_scores(self, scores: Tensor) -> Tensor:
        """The factor () from the scores (n,): distance from the mean over half the interval."""
        return scores.sort().values[self._rank(len(scores)) - 1]

    def _rank(self, count: int) -> int:
        """Rank, from 1, of the score that is the factor."""
        return math.ceil((count + 1) * self.level - 1e-9)


def widened(distribution: Distribution, factor: Tensor) -> Distribution:
    """The distribution of m + factor (Y - m), m the mean of Y: same family, tails and skewness.

    The location of a Student t stands for its mean, also where it has none; the mean of a mixture
    is the weighted mean of its components' locations.

    Args:
        distribution: normal, Laplace, Student's t, or a mixture of these.
        factor (): above 0.

    Raises:
        ConfigError: any other distribution.
    """
    return _about(distribution, _centre(distribution), factor.to(_centre(distribution)))


def _centre(distribution: Distribution) -> Tensor:
    """(n,); for the components of mixtures with one more dimension."""
    if isinstance(distribution, MixtureSameFamily):
        weights: Tensor = distribution.mixture_distribution.probs
        return (weights * _centre(distribution.component_distribution)).sum(-1)
    if isinstance(distribution, RowsReplaced):
        return distribution.joined(_centre(distribution.base), _centre(distribution.other))
    if isinstance(distribution, (Normal, Laplace, StudentT)):
        centre: Tensor = distribution.loc
        return centre
    raise ConfigError(
        f"a {type(distribution).__name__} cannot be widened; expected a normal, Laplace or "
        "Student t distribution, or a mixture of these"
    )


def _about(distribution: Distribution, centre: Tensor, factor: Tensor) -> Distribution:
    if isinstance(distribution, RowsReplaced):
        rows = distribution.rows
        other = _about(distribution.other, centre[rows], factor)
        return RowsReplaced(_about(distribution.base, centre, factor), rows, other)
    if isinstance(distribution, MixtureSameFamily):
        components = _about(distribution.component_distribution, centre.unsqueeze(-1), factor)
        # the weights stay as they are, not normalised again
        weights: Categorical = distribution.mixture_distribution
        return MixtureSameFamily(weights, components)
    assert isinstance(distribution, (Normal, Laplace, StudentT))
    loc = torch.where(
        distribution.loc == centre, distribution.loc, centre + factor * (distribution.loc - centre)
    )
    if isinstance(distribution, StudentT):
        return StudentT(distribution.df, loc, factor * distribution.scale)
    return type(distribution)(loc, factor * distribution.scale)
