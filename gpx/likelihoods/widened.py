"""A distribution scaled about its mean, its shape kept."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Laplace,
    MixtureSameFamily,
    Normal,
    StudentT,
)

from gpx.errors import ConfigError


def widened(distribution: Distribution, factor: Tensor) -> Distribution:
    """The distribution of m + factor (Y - m), m the mean of Y: same family, tails and skewness.

    The location of a Student t stands for its mean, also where it has none; the mean of a mixture
    is the weighted mean of its components' locations.

    Args:
        distribution: normal, Laplace, Student's t, or a mixture of these.
        factor (): above 0.

    Raises:
        ConfigError: any other distribution.
    """
    return _about(distribution, _centre(distribution), factor.to(_centre(distribution)))


def _centre(distribution: Distribution) -> Tensor:
    """(n,); for the components of mixtures with one more dimension."""
    if isinstance(distribution, MixtureSameFamily):
        weights: Tensor = distribution.mixture_distribution.probs
        return (weights * _centre(distribution.component_distribution)).sum(-1)
    if isinstance(distribution, (Normal, Laplace, StudentT)):
        centre: Tensor = distribution.loc
        return centre
    raise ConfigError(
        f"a {type(distribution).__name__} cannot be widened; expected a normal, Laplace or "
        "Student t distribution, or a mixture of these"
    )


def _about(distribution: Distribution, centre: Tensor, factor: Tensor) -> Distribution:
    if isinstance(distribution, MixtureSameFamily):
        components = _about(distribution.component_distribution, centre.unsqueeze(-1), factor)
        # the weights stay as they are, not normalised again
        weights: Categorical = distribution.mixture_distribution
        return MixtureSameFamily(weights, components)
    assert isinstance(distribution, (Normal, Laplace, StudentT))
    loc = torch.where(
        distribution.loc == centre, distribution.loc, centre + factor * (distribution.loc - centre)
    )
    if isinstance(distribution, StudentT):
        return StudentT(distribution.df, loc, factor * distribution.scale)
    return type(distribution)(loc, factor * distribution.scale)
