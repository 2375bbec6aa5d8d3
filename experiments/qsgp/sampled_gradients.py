"""First-order steps on sampled gradients of a weight-space model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gpx.models import Model
from gpx.objectives import Objective
from gpx.training import FirstOrder

BATCH = 500  # rows per step


def descend(
    model: Model,
    objective: Objective,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    generator: torch.Generator,
    schedule: Mapping[str, Any] | None = None,
    rows: Callable[[int], Tensor] | None = None,
    see: Callable[[int, FirstOrder], None] = lambda *_: None,
    **groups: tuple[str, float],
) -> None:
    """Train the named groups of parameters, all others stay as they are.

    Args:
        model: it and its objective are ready.
        objective: to be maximised.
        x: training inputs (n, d).
        y: training targets (n,).
        steps: how many.
        generator: of rows and functions.
        schedule: of all rates; None: constant.
        rows: of a step; None: ``BATCH`` rows drawn with replacement.
        see: called after every step with its number.
        groups: name of a group -> algorithm and rate.
    """
    parameters = model.parameter_groups()
    for name in parameters.keys() - groups.keys():
        for parameter in parameters.pop(name):
            parameter.requires_grad_(False)
    chosen = {name: {"algorithm": kind, "lr": rate} for name, (kind, rate) in groups.items()}
    optimiser = FirstOrder(chosen, schedule) if schedule else FirstOrder(chosen)
    optimiser.bind(parameters, steps)
    for step in range(steps):
        optimiser.before_step(step)
        if rows is None:
            chosen_rows = torch.randint(x.shape[0], (BATCH,), generator=generator)
        else:
            chosen_rows = rows(step)
        objective.before_step(model, x, y, chosen_rows)
        objective(model, x[chosen_rows], y[chosen_rows], generator=generator).backward()
        optimiser.step(step)
        objective.after_step(model)
        see(step, optimiser)
