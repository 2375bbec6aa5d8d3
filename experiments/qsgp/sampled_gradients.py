"""AdaGrad on sampled gradients of the weights, as published; hyperparameters stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gpx.models import QSGP
from gpx.objectives import QuadruplyStochasticELBO
from gpx.training import FirstOrder

BATCH = 500  # rows per step


def descend(
    model: QSGP,
    objective: QuadruplyStochasticELBO,
    x: Tensor,
    y: Tensor,
    *,
    rate: float,
    schedule: Mapping[str, Any],
    steps: int,
    generator: torch.Generator,
    see: Callable[[int, FirstOrder], None],
) -> None:
    """Train the weight means of ``model``; ``see`` is called after every step."""
    objective.prepare(model, x, y, generator=generator)
    for parameter in model.parameter_groups()["hyperparameters"]:
        parameter.requires_grad_(False)
    optimiser = FirstOrder({"variational": {"algorithm": "adagrad", "lr": rate}}, schedule)
    optimiser.bind({"variational": model.parameter_groups()["variational"]}, steps)
    for step in range(steps):
        optimiser.before_step(step)
        rows = torch.randint(x.shape[0], (BATCH,), generator=generator)
        objective(model, x[rows], y[rows], generator=generator).backward()
        optimiser.step(step)
        objective.after_step(model)
        see(step, optimiser)
