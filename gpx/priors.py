"""Priors of hyperparameters: training then ends at the most probable ones, not the most likely.

On few rows the evidence alone may lead lengthscales and noise to values that nobody would believe.
With priors, optimisers add their log density to the evidence. It is taken in natural units, as in
GPyTorch and GPflow: the mode depends on that. The evidence itself, and what is reported as such,
stays what it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpx.constraints import Constrained, positive_parameters
from gpx.errors import ConfigError


class Prior(ABC):
    """The density of a positive hyperparameter; a subclass writes ``log_prob``."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of every entry, in natural units; shaped like ``value``."""


def _require_positive(prior: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not _is_number(number) or not 0.0 < number < math.inf:
            raise ConfigError(f"{name}={number} of a {prior} prior must be positive and finite")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class LogNormal(Prior):
    """log theta ~ N(log median, log(factor)^2): within ``factor`` of the median at 68 %.

    Args:
        median: of theta, in its own unit.
        factor: above one.
    """

    def __init__(self, median: float, factor: float) -> None:
        _require_positive("log-normal", median=median)
        if not _is_number(factor) or not 1.0 < factor < math.inf:
            raise ConfigError(f"factor={factor} of a log-normal prior must be above 1")
        self.median, self.factor = median, factor

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        logs, deviation = value.log(), math.log(self.factor)
        scaled = (logs - math.log(self.median)) / deviation
        return -0.5 * scaled.square() - logs - math.log(deviation * math.sqrt(2.0 * math.pi))


class Gamma(Prior):
    """theta ~ Gamma(shape, rate), of mean shape / rate.

    Args:
        shape: above one the density vanishes at zero.
        rate: in units of one over theta.
    """

    def __init__(self, shape: float, rate: float) -> None:
        _require_positive("gamma", shape=shape, rate=rate)
        self.shape, self.rate = shape, rate

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return (self.shape - 1.0) * value.log() - self.rate * value + constant


class Priors:
    """Priors of a model's hyperparameters, by name.

    Args:
        parameters: name -> prior, or None for none. ``lengthscale`` is that of every part of the
            model that learns one; ``kernel.kernels.0.lengthscale`` that of the first summand of
            its kernel.

    Example::

        model.hyperpriors = Priors({"lengthscale": LogNormal(1.0, 3.0), "outputscale": Gamma(2, 1)})
    """

    optional: ClassVar[tuple[str, ...]] = ()
    """Names that a model may lack."""

    def __init__(self, parameters: Mapping[str, Prior | None]) -> None:
        if not isinstance(parameters, Mapping):
            raise ConfigError(
                f"parameters={parameters} of priors: expected a prior for each name, such as "
                '{"lengthscale": LogNormal(1.0, 3.0)}'
            )
        self.parameters = {name: prior for name, prior in parameters.items() if prior is not None}
        for name, prior in self.parameters.items():
            if not isinstance(prior, Prior):
                raise ConfigError(
                    f"the prior of {name} is {prior!r}: expected one of gpx.priors, such as "
                    "LogNormal(median=1.0, factor=3.0)"
                )

    def require(self, model: nn.Module, trained: Iterable[Tensor]) -> None:
        """Raise ConfigError for a name that no positive hyperparameter of ``model`` has.

        Args:
            trained: parameters that are moved; others may only be where those start.
        """
        moved = {id(parameter) for parameter in trained}
        known = [each.name for each in _learned(model) if id(each.raw) in moved]
        for name in self.parameters:
            if name not in self.optional and not any(_is_meant(name, full) for full in known):
                raise ConfigError(
                    f"there is a prior of {name}, and the model learns no such positive "
                    f"hyperparameter; it has {', '.join(known) or 'none'}"
                )

    def log_prob(self, model: nn.Module) -> Tensor:
        """Sum of the log densities () of the model's hyperparameters, with gradients; float64."""
        found = [
            prior.log_prob(each.constraint(each.raw).double()).sum()
            for each in _learned(model)
            for name, prior in self.parameters.items()
            if _is_meant(name, each.name)
        ]
        return torch.stack(found).sum() if found else torch.zeros((), dtype=torch.float64)


class DimensionScaled(Priors):
    """A log-normal prior of lengthscales that grows with the number of inputs, and one of noise.

    For d inputs on the unit cube log lengthscale ~ N(sqrt(2) + log(d) / 2, 3): distances grow as
    sqrt(d), so that the prior functions are as smooth whatever d is. gpx's inputs have unit
    variance, where a uniform one is sqrt(12) wide: so much longer are the lengthscales here.
    log noise variance ~ N(-4, 1), of targets of unit variance, where the likelihood has one.

    Args:
        num_inputs: d.

    Source: Hvarfner, Hellsten and Nardi 2024, as in the defaults of BoTorch.
    """

    optional = ("noise_variance",)

    def __init__(self, num_inputs: int) -> None:
        if num_inputs < 1:
            raise ConfigError(f"num_inputs={num_inputs} must be at least 1")
        median = math.exp(math.sqrt(2.0)) * math.sqrt(12.0 * num_inputs)
        super().__init__(
            {
                "lengthscale": LogNormal(median, math.exp(math.sqrt(3.0))),
                "noise_variance": LogNormal(math.exp(-4.0), math.e),
            }
        )


def _learned(model: nn.Module) -> Iterator[Constrained]:
    """Positive parameters of the model that are learned; one that parts share once."""
    seen: set[int] = set()
    for parameter in positive_parameters(model):
        if parameter.raw.requires_grad and id(parameter.raw) not in seen:
            seen.add(id(parameter.raw))
            yield parameter


def _is_meant(name: str, full: str) -> bool:
    return full == name or full.endswith(f".{name}")
