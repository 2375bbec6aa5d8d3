"""Hyper-priors of a re-weighted basis, as densities of logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError

LARGEST_RATIO = 1e100
"""Variances over the squared mode are at most this and at least its inverse: none overflows."""


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
        if not 1.0 / LARGEST_RATIO < self._ratio < LARGEST_RATIO:
            raise ConfigError(
                f"a log-normal prior of mode={self.mode} and variance={self.variance} has a "
                f"variance of {self._ratio:.3g} squared modes; expected "
                f"{1.0 / LARGEST_RATIO:.0e} to {LARGEST_RATIO:.0e}"
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


@dataclass(frozen=True)
class InverseGamma:
    """theta with 1 / theta ~ Gamma(freedom / 2, rate freedom mode / 2).

    As the prior variance of a weight it makes the weight itself Student-t, with ``freedom`` degrees
    of freedom and scale sqrt(mode): the hyper-prior of the relevance vector machine.

    Args:
        mode: of the density of log theta.
        freedom: degrees of freedom; one is a Cauchy weight, infinitely many a Gaussian one.

    Raises:
        ConfigError: one of them is not positive and finite.

    Source: Tipping 2001, section 2.1 and 5.1.
    """

    mode: float
    freedom: float

    def __post_init__(self) -> None:
        """Check ranges."""
        if not (0.0 < self.mode < math.inf and 0.0 < self.freedom < math.inf):
            raise ConfigError(
                "Student-t weights need a positive and finite scale and freedom, got "
                f"mode={self.mode} and freedom={self.freedom}"
            )

    @cached_property
    def log_variance(self) -> float:
        """Variance of log theta."""
        return float(torch.special.polygamma(1, torch.tensor(0.5 * self.freedom).double()))

    def density(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the log densities of log theta (k,), and its gradient (k,)."""
        shape = 0.5 * self.freedom
        ratio = shape * self.mode * (-logs).exp()
        constant = shape * math.log(shape * self.mode) - math.lgamma(shape)
        return (constant - shape * logs - ratio).sum(), ratio - shape


class HyperPriors(NamedTuple):
    """Independent priors of every g and of the noise variance.

    Attributes:
        weight, noise: of one of them; no noise: its variance is fixed.
        tail_variances (tails,): variances of the Gaussian priors, of mean zero, of the parameters
            of reflections (``householder``), between log g and log noise; None: there are none.
    """

    weight: LogNormal | InverseGamma
    noise: LogNormal | None
    tail_variances: Tensor | None = None

    @property
    def tails(self) -> int:
        """How many numbers turn the axes of the prior."""
        return 0 if self.tail_variances is None else len(self.tail_variances)

    def density(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log p(u) at u = (log g, tails, log noise) (k + 1,), and its gradient (k + 1,).

        The Jacobian of the logarithm is part of it.
        """
        first = len(position) - 1 - self.tails
        value, slope = self.weight.density(position[:first])
        noise, last = torch.zeros_like(value), torch.zeros_like(position[-1:])
        if self.noise is not None:
            noise, last = self.noise.density(position[-1:])
        if self.tail_variances is None:
            return value + noise, torch.cat([slope, last])
        turned = position[first:-1] / self.tail_variances
        constant = (2.0 * math.pi * self.tail_variances).log().sum()
        turns = -0.5 * (torch.dot(turned, position[first:-1]) + constant)
        return value + noise + turns, torch.cat([slope, -turned, last])

    def variances(self, position: Tensor) -> Tensor:
        """Variance of every entry of u, shape of ``position`` (k + 1,)."""
        found = torch.full_like(position, self.weight.log_variance)
        if self.tail_variances is not None:
            found[len(position) - 1 - self.tails : -1] = self.tail_variances
        found[-1] = 0.0 if self.noise is None else self.noise.log_variance
        return found


@dataclass(frozen=True)
class WeightPriors:
    """Hyper-priors of a re-weighted basis: one for every prior variance of a weight, one for noise.

    Args:
        weight_mode, weight_variance: of the factor on the prior variance that the basis gives each
            weight (one is the basis as it is).
        weight_freedom: None: that factor is log-normal. Degrees of freedom: its inverse has a Gamma
            distribution, the weight is Student-t of scale sqrt(weight_mode), and
            ``weight_variance`` is not used.
        rotation: for ``householder``, root mean square angle in radians by which the prior turns
            the axis of the leading eigenvector in the space of the weights, and nearly every other.
        noise_mode: of the noise variance, in squared target units; None: its initial value.
        noise_variance: the prior's variance, in the square of that unit.

    Raises:
        ConfigError: not positive.

    Source: Evans thesis, section 5.4.2; Student-t weights: section 5.3.2.
    """

    weight_mode: float = 1.0
    weight_variance: float = 100.0
    weight_freedom: float | None = None
    rotation: float = 0.2
    noise_mode: float | None = None
    noise_variance: float = 0.04

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, prior in (("weight", self.weight), ("noise", partial(self.noise, 1.0))):
            try:
                prior()
            except ConfigError as error:
                raise ConfigError(
                    f"{name}_mode= and {name}_variance= of the priors: {error}"
                ) from error
        if not 0.0 < self.rotation < math.inf:
            raise ConfigError(
                f"rotation={self.rotation} is an angle in radians and must be positive and finite"
            )

    def weight(self) -> LogNormal | InverseGamma:
        """Of every prior variance."""
        if self.weight_freedom is not None:
            return InverseGamma(self.weight_mode, self.weight_freedom)
        return LogNormal(self.weight_mode, self.weight_variance)

    def noise(self, start: float) -> LogNormal:
        """Of the noise variance, whose initial value is ``start``."""
        return LogNormal(start if self.noise_mode is None else self.noise_mode, self.noise_variance)

    def tail_variances(self, values: Tensor) -> Tensor:
        """Of the tails of reflections, (rank (rank - 1) / 2,), row by row.

        To first order tail (i, j), i < j, puts 2 (lambda_i / lambda_j)^(1/2) times itself into
        entry (j, i) of the axes A = Lambda^{-1/2} U Lambda^{1/2} of ``ReflectedWeights``, and
        4 lambda_i / lambda_j times its square of the prior variance of axis i into that of
        direction j. Where lambda_j is small the data hardly limit that term. So the prior variance
        of tail (i, j) goes with lambda_j / lambda_i, which gives every entry below the diagonal of
        A the same root mean square, rotation / (rank - 1)^(1/2).

        Args:
            values (rank,): lambda, the eigenvalues of Phi^T Phi, largest first.
        """
        rank = len(values)
        first, second = torch.triu_indices(rank, rank, 1, device=values.device).unbind()
        common = self.rotation**2 / (4.0 * max(1, rank - 1))
        return common * (values[second] / values[first])
