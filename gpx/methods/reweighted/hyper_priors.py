"""Hyper-priors of a re-weighted basis, as densities of logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError

MAX_VARIANCE_RATIO = 1e100
"""Largest ratio of variance to squared mode (its inverse the smallest), against overflow."""


@dataclass(frozen=True)
class LogNormal:
    """theta with log theta ~ N(log_mean, log_variance), from its mode and its variance.

    With u = exp(log_variance) the mode is exp(log_mean) / u and the variance
    exp(2 log_mean) u (u - 1), so that u > 1 solves u^4 - u^3 = variance / mode^2.

    Args:
        mode, variance: of theta, both positive.

    Raises:
        ConfigError: one of them is not positive and finite, or variance / mode^2 overflows.
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
        if not 1.0 / MAX_VARIANCE_RATIO < self._ratio < MAX_VARIANCE_RATIO:
            raise ConfigError(
                f"a log-normal prior of mode={self.mode} and variance={self.variance} has a "
                f"variance of {self._ratio:.3g} squared modes; expected "
                f"{1.0 / MAX_VARIANCE_RATIO:.0e} to {MAX_VARIANCE_RATIO:.0e}"
            )

    @property
    def _ratio(self) -> float:
        return self.variance / self.mode / self.mode  # the square may overflow

    @cached_property
    def log_variance(self) -> float:
        """Variance of log theta, log u, with u by Newton's method."""
        ratio = self._ratio
        # solve v (1 + v)^3 = ratio for v = u - 1, which keeps digits for a small ratio; the start
        # is above the root and the function convex there, so iterates decrease to the root
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

    A weight with this prior variance is Student-t distributed with ``freedom`` degrees of freedom
    and scale sqrt(mode). This is the hyper-prior of the relevance vector machine.

    Args:
        mode: of the density of log theta.
        freedom: degrees of freedom of the weight; 1: Cauchy, infinity: Gaussian.

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
        weight, noise: prior of one g, and of the noise variance (None: it is fixed).
        tail_variances (num_tails,): variances of the Gaussian priors, of mean zero, of the
            parameters of reflections (``householder``), which are between log g and log noise in a
            position; None: there are no reflections.
    """

    weight: LogNormal | InverseGamma
    noise: LogNormal | None
    tail_variances: Tensor | None = None

    @property
    def num_tails(self) -> int:
        """Number of parameters of reflections."""
        return 0 if self.tail_variances is None else len(self.tail_variances)

    def density(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log p(u) at u = (log g, tails, log noise) (k + 1,), and its gradient (k + 1,).

        The Jacobian of the logarithm is included.
        """
        first = len(position) - 1 - self.num_tails
        value, slope = self.weight.density(position[:first])
        noise, last = torch.zeros_like(value), torch.zeros_like(position[-1:])
        if self.noise is not None:
            noise, last = self.noise.density(position[-1:])
        if self.tail_variances is None:
            return value + noise, torch.cat([slope, last])
        tails = position[first:-1]
        scaled = tails / self.tail_variances
        constant = (2.0 * math.pi * self.tail_variances).log().sum()
        of_tails = -0.5 * (torch.dot(scaled, tails) + constant)
        return value + noise + of_tails, torch.cat([slope, -scaled, last])

    def variances(self, position: Tensor) -> Tensor:
        """Variance of every entry of u, shape of ``position`` (k + 1,)."""
        found = torch.full_like(position, self.weight.log_variance)
        if self.tail_variances is not None:
            found[len(position) - 1 - self.num_tails : -1] = self.tail_variances
        found[-1] = 0.0 if self.noise is None else self.noise.log_variance
        return found


@dataclass(frozen=True)
class WeightPriors:
    """Options of the hyper-priors of prior variances and of the noise variance.

    Args:
        weight_mode, weight_variance: of the factor g on the prior variance that the basis gives
            each weight (g = 1 is the unchanged basis).
        weight_freedom: degrees of freedom of Student-t weights with scale sqrt(weight_mode), that
            is, an inverse-Gamma g (``weight_variance`` is not used); None: g is log-normal.
        rotation: for ``householder``, root mean square angle in radians by which the prior rotates
            the axes (of the leading eigenvector, and nearly all others) in weight space.
        noise_mode: of the noise variance, in squared target units; None: its initial value.
        noise_variance: variance of that prior, in squared units of ``noise_mode``.

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
        """Prior of every g."""
        if self.weight_freedom is not None:
            return InverseGamma(self.weight_mode, self.weight_freedom)
        return LogNormal(self.weight_mode, self.weight_variance)

    def noise(self, start: float) -> LogNormal:
        """Prior of the noise variance, whose initial value is ``start``."""
        return LogNormal(start if self.noise_mode is None else self.noise_mode, self.noise_variance)

    def tail_variances(self, values: Tensor) -> Tensor:
        """Prior variances of the entries of reflectors, (rank (rank - 1) / 2,), row by row.

        To first order entry t (i, j), i < j, of a reflector adds 2 (lambda_i / lambda_j)^(1/2) t to
        entry (j, i) of the axes A = Lambda^{-1/2} U Lambda^{1/2} of ``ReflectedWeights``, and
        4 lambda_i / lambda_j t^2 times the prior variance of axis i to that of direction j, which
        the data hardly restrict if lambda_j is small. So the prior variance of t is proportional to
        lambda_j / lambda_i, which gives all entries below the diagonal of A the same root mean
        square, rotation / (rank - 1)^(1/2).

        Args:
            values (rank,): lambda, the eigenvalues of Phi^T Phi, largest first.
        """
        rank = len(values)
        first, second = torch.triu_indices(rank, rank, 1, device=values.device).unbind()
        common = self.rotation**2 / (4.0 * max(1, rank - 1))
        return common * (values[second] / values[first])
