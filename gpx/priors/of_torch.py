"""Distributions of torch as priors."""

from __future__ import annotations

import copy
from typing import TypeGuard

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.transforms import Transform, _InverseTransform

from gpx.errors import ShapeError
from gpx.priors.base import Prior


class OfTorch(Prior):
    """A distribution of torch with constant parameters, in float64 on the device of the values.

    Args:
        law: of one variable; ``is_prior`` of it holds.
    """

    def __init__(self, law: Distribution) -> None:
        self.law, self.device = _constant(law, torch.device("cpu")), torch.device("cpu")

    def log_prob(self, value: Tensor) -> Tensor:
        """As in ``Prior``.

        Raises:
            ShapeError: the distribution is a batch of another shape.
        """
        if self.device != value.device:
            self.law, self.device = _constant(self.law, value.device), value.device
        self.require_shape(value)
        return self.law.log_prob(value.double())

    def require_shape(self, value: Tensor) -> None:
        """Raise ShapeError unless there is one prior for all entries of ``value``, or for each."""
        batch = tuple(self.law.batch_shape)
        # sizes are compared from the last on, as in torch, and value may have further ones
        pairs = zip(reversed(batch), reversed(value.shape), strict=False)
        if len(batch) > value.ndim or any(own not in (1, size) for own, size in pairs):
            raise ShapeError(
                f"{self.law!r} is a batch of {batch} priors, for a "
                f"hyperparameter of shape {tuple(value.shape)}: give one prior, or one per entry"
            )


def is_prior(law: object) -> TypeGuard[Distribution]:
    """Whether it is a distribution of torch over all numbers, or over all positive ones."""
    if not isinstance(law, Distribution) or law.event_shape:
        return False
    support = getattr(law.support, "base_constraint", law.support)  # of a mixture: of its parts
    return support in (constraints.real, constraints.positive, constraints.nonnegative)


def _constant(law: Distribution, device: torch.device) -> Distribution:
    """A copy without gradients and without checks of values, for which a GPU would wait."""
    held = copy.copy(law)
    for name, part in vars(law).items():
        if isinstance(part, Distribution):
            vars(held)[name] = _constant(part, device)
        elif isinstance(part, Tensor):
            dtype = torch.float64 if part.is_floating_point() else part.dtype
            vars(held)[name] = part.detach().to(device, dtype)
        elif name == "transforms":
            vars(held)[name] = [_constant_transform(each, device) for each in part]
    held._validate_args = False
    return held


def _constant_transform(transform: Transform, device: torch.device) -> Transform:
    """The same of a transform of ``TransformedDistribution``, or of the parts of one."""
    inverted = isinstance(transform, _InverseTransform)
    held = copy.copy(transform)
    for name, part in vars(transform).items():
        if name == "_inv":  # the transform that an inverse inverts; of others its inverse, if made
            vars(held)[name] = _constant_transform(part, device) if inverted else None
        elif name == "_cached_x_y":
            vars(held)[name] = None, None
        elif isinstance(part, Tensor):
            vars(held)[name] = part.detach().to(device, torch.float64)
        elif isinstance(part, Transform):
            vars(held)[name] = _constant_transform(part, device)
        elif name == "parts":
            vars(held)[name] = [_constant_transform(each, device) for each in part]
    return held
