"""Hyper-priors of a re-weighted basis, as densities of logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.reweighted.log_normal import LogNormal


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
        tails: numbers between log g and log noise that turn the axes of the prior; Gaussian.
        tail_variance: of each of them, about zero.
    """

    weight: LogNormal | InverseGamma
    noise: LogNormal
    tails: int = 0
    tail_variance: float = 1.0

    def density(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log p(u) at u = (log g, tails, log noise) (k + 1,), and its gradient (k + 1,).

        The Jacobian of the logarithm is part of it.
        """
        first = len(position) - 1 - self.tails
        value, slope = self.weight.density(position[:first])
        noise, last = self.noise.density(position[-1:])
        if not self.tails:
            return value + noise, torch.cat([slope, last])
        turned = position[first:-1] / self.tail_variance
        constant = self.tails * math.log(2.0 * math.pi * self.tail_variance)
        turns = -0.5 * (torch.dot(turned, position[first:-1]) + constant)
        return value + noise + turns, torch.cat([slope, -turned, last])

    def variances(self, position: Tensor) -> Tensor:
        """Variance of every entry of u, shape of ``position`` (k + 1,)."""
        found = torch.full_like(position, self.weight.log_variance)
        found[len(position) - 1 - self.tails : -1] = self.tail_variance
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
        rotation: root mean square angle, in radians, by which the prior of ``householder`` turns
            an axis; of no meaning for other structures.
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
                raise ConfigError(f"approx.priors.{name}_*: {error}") from error
        if not 0.0 < self.rotation < math.inf:
            raise ConfigError(
                f"approx.priors.rotation={self.rotation} is an angle in radians and must be "
                "positive and finite"
            )

    def weight(self) -> LogNormal | InverseGamma:
        """Of every prior variance."""
        if self.weight_freedom is not None:
            return InverseGamma(self.weight_mode, self.weight_freedom)
        return LogNormal(self.weight_mode, self.weight_variance)

    def noise(self, start: float) -> LogNormal:
        """Of the noise variance, whose initial value is ``start``."""
        return LogNormal(start if self.noise_mode is None else self.noise_mode, self.noise_variance)

    def tail_variance(self, rank: int) -> float:
        """Of every entry of the tails of reflections of ``rank`` axes.

        To first order entry (i, j) turns axes i and j by twice its size: an axis has rank - 1.
        """
        return self.rotation**2 / (4.0 * max(1, rank - 1))
