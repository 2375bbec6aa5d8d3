"""Recalibration of the spread of numbers: by likelihood, or by the coverage of intervals."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from gpx.calibration.base import Recalibration, require_rows
from gpx.errors import ConfigError, DataError


class Spread(Recalibration):
    """Normal laws with the model's means and its deviations times one factor.

    A predictive distribution that is no normal one is taken by its mean and deviation. Of several
    outputs each is to be calibrated in a model of its own.

    Attributes:
        factor (): on the deviation.
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
            ConfigError: several outputs.
        """
        require_rows(y)
        if y.ndim != 1 or predictive.event_shape:
            raise ConfigError(
                f"calibration {type(self).__name__} takes one output, and there are several; "
                "leave calibrate= out"
            )
        scaled = (y.double() - predictive.mean.double()) / predictive.stddev.double()
        self.factor.copy_(self.factor_of(scaled))

    def factor_of(self, scaled: Tensor) -> Tensor:
        """The factor () for standardised residuals (n,)."""
        raise NotImplementedError

    @torch.no_grad()
    def forward(self, predictive: Distribution) -> Distribution:
        """As in ``Recalibration``."""
        mean, deviation = predictive.mean, predictive.stddev
        return Normal(mean, (deviation.double() * self.factor).to(deviation))

    def facts(self) -> dict[str, bool | int | float | str]:
        """``factor``."""
        return {"factor": float(self.factor)}


class Variance(Spread):
    """The factor of largest likelihood of the held-out rows: their root mean square, standardised.

    Source: Laves et al., "Well-calibrated regression uncertainty in medical imaging with deep
    learning", 2020.
    """

    def factor_of(self, scaled: Tensor) -> Tensor:
        """As in ``Spread``."""
        return scaled.square().mean().sqrt()


class Conformal(Spread):
    """The factor that makes central intervals of one level cover as they should.

    A new row that is exchangeable with the n held-out ones lies in its interval with a probability
    of ``level`` or more, and at most level + 1 / (n + 1) where residuals have no ties, whatever the
    model is worth (split conformal prediction with standardised residuals).

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

    def factor_of(self, scaled: Tensor) -> Tensor:
        """As in ``Spread``.

        Raises:
            DataError: fewer than level / (1 - level) rows.
        """
        place = math.ceil((len(scaled) + 1) * self.level - 1e-9)
        if place > len(scaled):
            needed = math.ceil(self.level / (1.0 - self.level) - 1e-9)
            raise DataError(
                f"{len(scaled)} held-out rows cannot promise intervals of {self.level:g}: that "
                f"takes {needed} or more; raise fraction, or lower level"
            )
        width = math.sqrt(2.0) * torch.erfinv(torch.tensor(self.level, dtype=torch.float64))
        return scaled.abs().sort().values[place - 1] / width.to(scaled)
