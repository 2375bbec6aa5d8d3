"""Log-normal hyper-priors, given by what people know of them: mode and variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

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

    @cached_property
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

    def density(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the log densities of log theta (k,), and its gradient (k,)."""
        slope = (self.log_mean - logs) / self.log_variance
        constant = -0.5 * math.log(2.0 * math.pi * self.log_variance)
        return (constant - 0.5 * self.log_variance * slope.square()).sum(), slope
