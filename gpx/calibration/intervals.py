"""Recalibration of the spread of numbers: by likelihood, or by the coverage of intervals."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from gpx.calibration.base import Recalibration, most_likely, require_rows
from gpx.errors import ConfigError, DataError
from gpx.likelihoods.quantiles import central_interval
from gpx.likelihoods.widened import widened

LEAST_FACTOR = math.exp(-10.0)
"""Of the spread, where held-out rows are predicted without any error."""
RANGE = 10.0
"""The logarithm of the factor of largest likelihood is looked for within this of zero."""


class Spread(Recalibration):
    """The model's law about its mean, wider or narrower by one factor: its shape stays.

    Normal laws stay normal, heavy tails stay as heavy as they are (``widened``). Of several outputs
    each is to be calibrated in a model of its own.

    Attributes:
        factor (): on the distances from the mean.
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
            ConfigError: several outputs, or a law that has no such shape.
        """
        require_rows(y)
        self.require_one_output(max(y[0].numel(), math.prod(predictive.event_shape)))
        factor = torch.as_tensor(self.best_factor(predictive, y))
        self.factor.copy_(factor.clamp_min(LEAST_FACTOR))

    def best_factor(self, predictive: Distribution, y: Tensor) -> Tensor | float:
        """The factor, for predictions of targets y (n,), n > 0."""
        raise NotImplementedError

    @torch.no_grad()
    def forward(self, predictive: Distribution) -> Distribution:
        """As in ``Recalibration``."""
        return widened(predictive, self.factor)

    def facts(self) -> dict[str, bool | int | float | str]:
        """``factor``."""
        return {"factor": float(self.factor)}


class Variance(Spread):
    """The factor of largest likelihood of the held-out rows.

    Of normal laws it is the root mean square of the standardised residuals; of others it is
    searched for.

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

        return math.exp(most_likely(loss, RANGE))


class Conformal(Spread):
    """The factor that makes central intervals of one level cover as they should.

    A new row that is exchangeable with the n held-out ones lies in its interval with a probability
    of ``level`` or more, and at most level + 1 / (n + 1) where residuals have no ties, whatever the
    model is worth (split conformal prediction, by how far the model's own intervals would have to
    reach).

    Args:
        level: of the interval, in (0, 1); 0.95 is the one that runs report.
        fraction: of ``Recalibration``.

    Raises:
        ConfigError: a level out of range.

    Source: Lei et al., "Distribution-free predictive inference for regression", 2018.
    """

    def __init__(self, level: float = 0.95, fraction: float = 0.1) -> None:
        super().__init__(fraction)
        if not 0.0 < level < 1.0:
            raise ConfigError(f"level={level} of an interval must be between 0 and 1")
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
        return self.factor_of(torch.where(gap > 0, gap / above, -gap / below))

    def require_enough(self, count: int) -> None:
        """As in ``Recalibration``: too few cannot promise the level."""
        if self._place(count) > count:
            needed = math.ceil(self.level / (1.0 - self.level) - 1e-9)
            raise DataError(
                f"{count} held-out rows cannot promise intervals of {self.level:g}: that "
                f"takes {needed} or more; raise fraction={self.fraction:g}, or lower "
                f"level={self.level:g}"
            )

    def factor_of(self, reach: Tensor) -> Tensor:
        """The factor () for the shares (n,) of its interval's half that each row is away."""
        return reach.sort().values[self._place(len(reach)) - 1]

    def _place(self, count: int) -> int:
        return math.ceil((count + 1) * self.level - 1e-9)
