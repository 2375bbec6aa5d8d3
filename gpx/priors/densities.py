"""Densities of single hyperparameters."""

from __future__ import annotations

import math

from torch import Tensor

from gpx.errors import ConfigError
from gpx.priors.base import Prior
from gpx.tensor_checks import is_number


def require_positive(prior: str, **numbers: float) -> None:
    """Raise ConfigError, of the prior called so, unless all these are positive and finite."""
    for name, number in numbers.items():
        if not is_number(number) or not 0.0 < number < math.inf:
            raise ConfigError(f"{name}={number} of a {prior} prior must be positive and finite")


class Normal(Prior):
    """theta ~ N(mean, deviation^2), for hyperparameters of any sign such as ``mean.constant``.

    Args:
        mean, deviation: of theta; ``deviation`` is positive.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        require_positive("normal", deviation=deviation)
        if not is_number(mean) or not math.isfinite(mean):
            raise ConfigError(f"mean={mean} of a normal prior must be finite")
        self.mean, self.deviation = mean, deviation

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        scaled = (value - self.mean) / self.deviation
        return -0.5 * scaled.square() - math.log(self.deviation * math.sqrt(2.0 * math.pi))


class LogNormal(Prior):
    """log theta ~ N(log median, log(factor)^2): within ``factor`` of the median with 68 %.

    Args:
        median: of theta.
        factor: above one.
    """

    def __init__(self, median: float, factor: float) -> None:
        require_positive("log-normal", median=median)
        if not is_number(factor) or not 1.0 < factor < math.inf:
            raise ConfigError(f"factor={factor} of a log-normal prior must be above 1")
        self.median, self.factor = median, factor

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        logs, deviation = value.log(), math.log(self.factor)
        scaled = (logs - math.log(self.median)) / deviation
        return -0.5 * scaled.square() - logs - math.log(deviation * math.sqrt(2.0 * math.pi))


class Gamma(Prior):
    """theta ~ Gamma(shape, rate), with mean shape / rate.

    Args:
        shape: the density vanishes at zero if above one.
        rate: in units of 1 / theta.
    """

    def __init__(self, shape: float, rate: float) -> None:
        require_positive("gamma", shape=shape, rate=rate)
        self.shape, self.rate = shape, rate

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return (self.shape - 1.0) * value.log() - self.rate * value + constant
