"""Priors of all hyperparameters of a model, as one density of a vector."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.sampled_hyperparameters.model import SampledHyperparameters
from gpx.methods.base.hyper_position import HyperPosition
from gpx.priors import (
    Gamma,
    LogNormal,
    Normal,
    Prior,
    SparseAxes,
    hyperparameters_of,
    inputs_of_lengthscale,
)
from gpx.priors.of_torch import OfTorch

FACTOR = 4.0
"""A positive hyperparameter without a prior is within this factor of its median, at 68 %, unless it
is one of the next two kinds."""

NOISE = "noise_variance"
"""Last part of the names of variances of which the root is half-Cauchy."""

LARGE = ("outputscale", "slope_variance")
"""Last parts of the names of variances of which the root is half-Cauchy above the median, while
below it they are log-normal."""

MEDIANS = {"lengthscale": 2.0, "outputscale": 1.0, NOISE: 0.05}
"""Medians of positive hyperparameters without a prior, by the last part of their name, for
standardised data; of all others it is the value with which the model was made. Medians of
lengthscales in the unit of inputs are multiplied by the square root of the number of inputs in the
distance that they divide, so that functions are equally smooth whatever this number is."""


class _Given(NamedTuple):
    """The priors of one parameter, whose entries of u are ``entries``."""

    entries: slice
    shape: torch.Size
    logarithm: bool  # whether u is the logarithm of the natural value
    priors: list[Prior]


class HyperPriors:
    """Independent priors of the hyperparameters in a ``HyperPosition``, as a density of u (k,).

    Those that ``model.hyperpriors`` names have the priors given there. Every other one is
    log-normal, with a median of ``MEDIANS`` and ``FACTOR``, if it is positive, and normal with
    deviation 1 if it is of any sign, around the value with which the model was made. Variances have
    heavier tails: the root of a noise variance, a standard deviation, is half-Cauchy about the same
    median, and so is that of the variance of functions or slopes where it is larger. Functions that
    are known without noise, and nearly polynomial ones, of long lengthscales and large
    outputscales, are common: light tails would keep noise and curvature in them. Where few rows
    leave open whether there is any function, heavy tails towards small outputscales would have
    chains wander there.

    Args:
        model: whose hyperparameters they are.
        place: which of them are sampled.
        num_inputs: of the data.

    Attributes:
        centre, deviation (k,): of the normal priors of u; the median of half-Cauchy ones.
        normal, half_cauchy (k,): 1 where a prior of this kind holds, else 0; of ``LARGE`` both.

    Source: Gelman 2006 (half-Cauchy standard deviations).
    """

    def __init__(
        self, model: SampledHyperparameters, place: HyperPosition, num_inputs: int
    ) -> None:
        named: dict[int, list[Prior]] = {}
        for _, each, prior in () if model.hyperpriors is None else model.hyperpriors.of(model):
            named.setdefault(id(each.raw), []).append(prior)
        full = {id(each.raw): each.name for each in hyperparameters_of(model)}
        self.given: list[_Given] = []
        learned = model.hyper_position(fixed=True).learned
        self.centre = model.made_with.to(place.read())[learned]
        self.deviation = torch.ones_like(self.centre)
        self.normal = torch.ones_like(self.centre)
        self.half_cauchy = torch.zeros_like(self.centre)
        first = 0
        for (raw, constraint), name in zip(place.entries, place.names, strict=True):
            own = slice(first, first + raw.numel())
            first = own.stop
            kind = name.rpartition(".")[2]
            if id(raw) in named:
                priors = named[id(raw)]
                self.given.append(_Given(own, raw.shape, constraint is not None, priors))
                self.normal[own] = 0.0
            elif constraint is not None:
                self.deviation[own] = math.log(FACTOR)
                self.half_cauchy[own] = float(kind == NOISE or kind in LARGE)
                self.normal[own] = float(kind != NOISE)
                if kind in MEDIANS:
                    inputs = None
                    if kind == "lengthscale":
                        inputs = inputs_of_lengthscale(model, full[id(raw)], num_inputs)
                    self.centre[own] = math.log(MEDIANS[kind] * math.sqrt(inputs or 1))

    def log_density(self, position: Tensor) -> Tensor:
        """Log densities (...) of u (..., k), with the Jacobian of its logarithms; differentiable.

        Cost: one call of every prior for all of them; of a ``Prior`` of one's own one for each, as
        it may take all entries together.
        """
        offset = position - self.centre
        # of both kinds: normal below the centre, half-Cauchy above it
        low = torch.where(self.half_cauchy > 0.0, offset.clamp_max(0.0), offset)
        total = -0.5 * (self.normal * (low / self.deviation).square()).sum(-1)
        high = torch.where(self.normal > 0.0, offset.clamp_min(0.0), offset)
        # t = exp(offset / 2), a standard deviation beside its median, has 2 / (pi (1 + t^2))
        cauchy = torch.logaddexp(0.5 * high, -0.5 * high)
        total = total - (self.half_cauchy * cauchy).sum(-1)
        for part in self.given:
            u = position[..., part.entries]
            value = (u.exp() if part.logarithm else u).unflatten(-1, part.shape or (1,))
            for prior in part.priors:
                total = total + _density(prior, value, position.shape[:-1])
            if part.logarithm:
                total = total + u.sum(-1)
        return total


_IN_BATCHES = {each.log_prob for each in (Normal, LogNormal, Gamma, SparseAxes, OfTorch)}
"""Densities of which the leading axes of their values are independent."""


def _density(prior: Prior, value: Tensor, lead: torch.Size) -> Tensor:
    """Log densities (*lead) of natural values (*lead, ...)."""
    if not lead:
        return prior.log_prob(value).sum()
    if type(prior).log_prob in _IN_BATCHES:
        found = prior.log_prob(value)
        return found.flatten(len(lead)).sum(-1) if found.ndim > len(lead) else found
    rows = value.flatten(0, len(lead) - 1)
    return torch.stack([prior.log_prob(row).sum() for row in rows]).view(lead)
