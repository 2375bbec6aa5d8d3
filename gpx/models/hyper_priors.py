"""Hyper-priors of a re-weighted basis, as densities of logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.models.log_normal import LogNormal


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
        weight, noise: of one of them.
    """

    weight: LogNormal | InverseGamma
    noise: LogNormal

    def density(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log p(u) at u = (log g, log noise) (k + 1,), and its gradient (k + 1,).

        The Jacobian of the logarithm is part of it.
        """
        value, slope = self.weight.density(position[:-1])
        noise, last = self.noise.density(position[-1:])
        return value + noise, torch.cat([slope, last])

    def variances(self, position: Tensor) -> Tensor:
        """Variance of every entry of u, shape of ``position`` (k + 1,)."""
        found = torch.full_like(position, self.weight.log_variance)
        found[-1] = self.noise.log_variance
        return found


@dataclass(frozen=True)
class WeightPriors:
    """Hyper-priors of a re-weighted basis: one for every prior variance of a weight, one for noise.

    Args:
        weight_mode, weight_variance: of the factor on the prior variance that the basis gives each
            weight (one is the basis as it is).
        weight_freedom: None: that factor is log-normal. Degrees of freedom: its inverse has a Gamma
            distribution, the weight is Student-t of scale sqrt(weight_mode), and
            ``weight_variance`` has no meaning.
        noise_mode: of the noise variance, in squared target units; None: its initial value.
        noise_variance: the prior's variance, in the square of that unit.

    Raises:
        ConfigError: not positive.

    Source: Evans thesis, section 5.4.2; Student-t weights: section 5.3.2.
    """

    weight_mode: float = 1.0
    weight_variance: float = 100.0
    weight_freedom: float | None = None
    noise_mode: float | None = None
    noise_variance: float = 0.04

    def __post_init__(self) -> None:
        """Check ranges."""
        self.weight()
        self.noise(1.0)

    def weight(self) -> LogNormal | InverseGamma:
        """Of every prior variance."""
        if self.weight_freedom is not None:
            return InverseGamma(self.weight_mode, self.weight_freedom)
        return LogNormal(self.weight_mode, self.weight_variance)

    def noise(self, start: float) -> LogNormal:
        """Of the noise variance, whose initial value is ``start``."""
        return LogNormal(start if self.noise_mode is None else self.noise_mode, self.noise_variance)
