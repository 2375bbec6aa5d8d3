"""A law made wider or narrower about its mean, of the same shape."""

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


def widened(law: Distribution, factor: Tensor) -> Distribution:
    """The law of m + factor (Y - m), m the mean of Y: of the same kind, tails and skewness kept.

    The mean of a Student t is its centre, also where it has none, and that of a mixture is made of
    the centres of its parts.

    Args:
        law: normal, Laplace, Student's t, or a mixture of these.
        factor (): above 0.

    Raises:
        ConfigError: another law.
    """
    return _about(law, _centre(law), factor.to(_centre(law)))


def _centre(law: Distribution) -> Tensor:
    """(n,), or of the parts of mixtures one more dimension."""
    if isinstance(law, MixtureSameFamily):
        share: Tensor = law.mixture_distribution.probs
        return (share * _centre(law.component_distribution)).sum(-1)
    if isinstance(law, (Normal, Laplace, StudentT)):
        centre: Tensor = law.loc
        return centre
    raise ConfigError(
        f"a {type(law).__name__} cannot be made wider; expected a normal, Laplace or Student t law "
        "of numbers, or a mixture of these"
    )


def _about(law: Distribution, centre: Tensor, factor: Tensor) -> Distribution:
    if isinstance(law, MixtureSameFamily):
        parts = _about(law.component_distribution, centre.unsqueeze(-1), factor)
        # shares stay as they are, and are not normalised anew
        same: Categorical = law.mixture_distribution
        return MixtureSameFamily(same, parts)
    assert isinstance(law, (Normal, Laplace, StudentT))
    loc = torch.where(law.loc == centre, law.loc, centre + factor * (law.loc - centre))
    if isinstance(law, StudentT):
        return StudentT(law.df, loc, factor * law.scale)
    return type(law)(loc, factor * law.scale)
