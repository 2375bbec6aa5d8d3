"""Log-normal hyper-priors, given by what people know of them: mode and variance."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpx.errors import ConfigError

MOST_SPREAD = 1e100
"""Largest variance in squared modes, and the inverse of the smallest: within, nothing overflows."""


@dataclass(frozen=True)
class LogNormal:
    """theta with log theta ~ N(log_mean, log_variance), from its mode and its variance.

    With u = exp(log_variance) the mode is exp(log_mean) / u and the variance
    exp(2 log_mean) u (u - 1), so that u > 1 solves u^4 - u^3 = variance / mode^2.

    Args:
        mode, variance: of theta, both positive.

    Raises:
        ConfigError: one of them is not positive and finite, or variance / mode^2 is no number.
    """

    mode: float
    variance: float

    def __post_init__(self) -> None:
        """Check ranges."""
        if not (0.0 < self.mode < math.inf and 0.0 < self.variance < math.inf):
            raise ConfigError(
                f"a log-normal prior needs a positive mode and variance, got mode={self.mode} and "
                f"variance={self.variance}"
            )
        if not 1.0 / MOST_SPREAD < self._ratio < MOST_SPREAD:
            raise ConfigError(
                f"a log-normal prior of mode={self.mode} and variance={self.variance} has a "
                f"variance of {self._ratio:.3g} squared modes; expected {1.0 / MOST_SPREAD:.0e} to "
                f"{MOST_SPREAD:.0e}"
            )

    @property
    def _ratio(self) -> float:
        return self.variance / self.mode / self.mode  # the square may overflow

    @property
    def log_variance(self) -> float:
        """Variance of log theta: the logarithm of the root, by Newton's method."""
        ratio = self._ratio
        # in v = u - 1, so that a small ratio loses no digits: v (1 + v)^3 = ratio; the start is
        # above the root, where the function is convex, and iterates fall onto it
        v = min(ratio, ratio**0.25)
        for _ in range(100):
            u = 1.0 + v
            step = (v * u**3 - ratio) / (u**3 + 3.0 * v * u**2)
            v -= step
            if abs(step) <= 1e-16 * v:
                break
        return math.log1p(v)

    @property
    def log_mean(self) -> float:
        """Mean of log theta."""
        return math.log(self.mode) + self.log_variance


@dataclass(frozen=True)
class WeightPriors:
    """Hyper-priors of a re-weighted basis: one for every prior variance of a weight, one for noise.

    Args:
        weight_mode, weight_variance: of the factor on the prior variance that the basis gives each
            weight (one is the basis as it is).
        noise_mode: of the noise variance, in squared target units; None: its initial value.
        noise_variance: the prior's variance, in the square of that unit.

    Raises:
        ConfigError: not positive.

    Source: Evans thesis, section 5.4.2.
    """

    weight_mode: float = 1.0
    weight_variance: float = 100.0
    noise_mode: float | None = None
    noise_variance: float = 0.04

    def __post_init__(self) -> None:
        """Check ranges."""
        self.weight()
        self.noise(1.0)

    def weight(self) -> LogNormal:
        """Of every prior variance."""
        return LogNormal(self.weight_mode, self.weight_variance)

    def noise(self, start: float) -> LogNormal:
        """Of the noise variance, whose initial value is ``start``."""
        return LogNormal(start if self.noise_mode is None else self.noise_mode, self.noise_variance)
