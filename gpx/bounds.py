"""Bounds within which searches keep positive parameters.

Optimisers see the unconstrained tensors of ``gpx.constraints``: ``limits_within`` says how far they
may move, from the floor of each parameter and from bounds in natural units. The bounds of a run are
remembered by the constraints themselves, so that a search over a part of the model, or over a copy
of it, keeps them too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from gpx.constraints import MARGIN, positive_parameters
from gpx.errors import ConfigError


def lower_limits(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[float]:
    """Lower bounds for an optimiser of ``parameters`` of ``module``, one for each.

    ``Positive.lowest_raw`` for the unconstrained tensor of a positive parameter, -inf for any other
    parameter and for those that are fixed. Below it the gradient vanishes, so that after too large
    a step the optimiser would take the parameter for converged.
    """
    found = {
        id(c.raw): c.constraint.lowest_raw
        for c in positive_parameters(module)
        if c.raw.requires_grad
    }
    return [found.get(id(parameter), -math.inf) for parameter in parameters]


def limits_within(
    module: nn.Module,
    parameters: Sequence[nn.Parameter],
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> tuple[list[float], list[float]]:
    """``lower_limits`` and upper ones (inf: none), of which ``bounds`` are in natural units.

    Args:
        bounds: lowest and largest value by dotted name of a positive parameter of ``module``; a
            floor that is higher than the lowest value takes its place. None: those remembered.

    Raises:
        ConfigError: no positive parameter has this name, or its floor is at or above ``largest``.
    """
    known = {c.name: c for c in positive_parameters(module)}
    if bounds is None:
        held = {name: c.constraint.bounds for name, c in known.items()}
        bounds = {name: each for name, each in held.items() if each is not None}
    lower, upper = lower_limits(module, parameters), [math.inf] * len(parameters)
    places = {id(parameter): i for i, parameter in enumerate(parameters)}
    for name, (lowest, largest) in bounds.items():
        if name not in known:
            raise ConfigError(
                f"bounds of {name}: there is no such positive parameter; there are "
                f"{', '.join(known)}"
            )
        _, raw, constraint = known[name]
        if largest <= (1.0 + MARGIN) * constraint.floor:
            raise ConfigError(
                f"bounds of {name}: the largest value {largest:g} is not above the floor "
                f"{constraint.floor:.3g}"
            )
        if id(raw) not in places or not raw.requires_grad:  # not trained
            continue
        low, high = torch.tensor([max(lowest, constraint.floor), largest], dtype=torch.float64)
        place = places[id(raw)]
        lower[place] = max(lower[place], float(constraint.right_inverse(low)))
        upper[place] = float(constraint.right_inverse(high))
    return lower, upper


def bounds_of(module: nn.Module, name: str) -> tuple[float, float] | None:
    """Bounds that the positive parameter ``module.<name>`` remembers; None: none."""
    own = positive_parameters(module, below=False)
    return next((c.constraint.bounds for c in own if c.name == name), None)


def remember_bounds(module: nn.Module, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Let searches over parts of ``module`` or their copies keep ``bounds``, as ``limits_within``.

    Args:
        bounds: lowest and largest value by dotted name of a positive parameter of ``module``.

    Raises:
        ConfigError: as ``limits_within``.
    """
    limits_within(module, [], bounds)
    for name, _, constraint in positive_parameters(module):
        constraint.bounds = bounds.get(name)


@torch.no_grad()
def move_within_bounds(module: nn.Module) -> None:
    """Set trained values beyond a bound that ``module`` remembers to that bound."""
    bounded = [c.raw for c in positive_parameters(module) if c.constraint.bounds is not None]
    for raw, low, high in zip(bounded, *limits_within(module, bounded), strict=True):
        if raw.requires_grad:
            raw.clamp_(low, high)


def at_their_floor(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[str]:
    """Those of ``parameters`` with an entry within 2 MARGIN of the floor, as "name (1e-06)".

    Fixed ones are left out: no training brought them there.
    """
    chosen = {id(parameter) for parameter in parameters if parameter.requires_grad}
    return [
        f"{c.name} ({c.constraint.floor:.0e})"
        for c in positive_parameters(module)
        if id(c.raw) in chosen
        and bool((c.constraint(c.raw.detach()) <= (1.0 + 2.0 * MARGIN) * c.constraint.floor).any())
    ]
