"""Data of the published experiments, or generated stand-ins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.data import ExtraTable, load

POINTS = 6000
"""Rows of each regression stand-in, of which two thirds train a fold."""


class Fold(NamedTuple):
    """Training and test data; ``truth`` (t,) is the test function without noise, where known."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    truth: Tensor | None = None


def sine() -> Fold:
    """y = sin 12 x + 0.66 cos 25 x + noise of variance 0.1, 1,000 and 500 rows in [-2, 2]."""
    draws = torch.Generator().manual_seed(0)
    x = 4.0 * torch.rand(1500, 1, generator=draws, dtype=torch.float64) - 2.0
    f = (12.0 * x[:, 0]).sin() + 0.66 * (25.0 * x[:, 0]).cos()
    y = f + 0.1**0.5 * torch.randn(1500, generator=draws, dtype=torch.float64)
    return Fold(x[:1000], y[:1000], x[1000:], y[1000:], f[1000:])


def banana(split: int = 0) -> Fold:
    """The 400 rows, labels -1 and 1."""
    data = load(ExtraTable("banana", split=split), task="binary")
    return Fold(*(t.double() for t in (data.train_x, data.train_y, data.test_x, data.test_y)))


def teacher(num_inputs: int = 4, noise: float = 0.06) -> tuple[Tensor, Tensor]:
    """POWERPLANT's stand-in: a function of 2,000 Matern 5/2 features, and noise."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(POINTS, num_inputs, generator=draws, dtype=torch.float64)
    places = torch.arange(1, num_inputs + 1)
    lengthscale = num_inputs**0.5 * (1.0 + places / num_inputs)
    normals = torch.randn(num_inputs, 2000, generator=draws, dtype=torch.float64)
    # the spectral density of Matern 5/2 is that of Student's t with five degrees of freedom
    chi = torch.randn(5, 2000, generator=draws, dtype=torch.float64).square().sum(0)
    frequencies = normals / lengthscale.unsqueeze(1) * (5.0 / chi).sqrt()
    phases = 2.0 * torch.pi * torch.rand(2000, generator=draws, dtype=torch.float64)
    weights = torch.randn(2000, generator=draws, dtype=torch.float64)
    f = (x @ frequencies + phases).cos() @ weights
    f = (f - f.mean()) / f.std()
    return x, f + noise**0.5 * torch.randn(POINTS, generator=draws, dtype=torch.float64)


def arm(noise: float = 0.05) -> tuple[Tensor, Tensor]:
    """KIN8NM's stand-in: distance of an arm of eight links from a point, and noise.

    Args:
        noise: standard deviation, in standard deviations of the distance.
    """
    draws = torch.Generator().manual_seed(0)
    x = torch.pi * (torch.rand(POINTS, 8, generator=draws, dtype=torch.float64) - 0.5)
    angles = x.cumsum(1)
    east, north = angles.cos().mean(1), angles.sin().mean(1)
    distance = ((east - 0.1).square() + (north - 0.1).square()).sqrt()
    f = (distance - distance.mean()) / distance.std()
    return x, f + noise * torch.randn(POINTS, generator=draws, dtype=torch.float64)


def folds(data: tuple[Tensor, Tensor], count: int = 3) -> list[Fold]:
    """Every third row tests a fold; inputs and targets in units of the training rows."""
    x, y = data
    found = []
    for fold in range(count):
        test = torch.arange(len(x)) % count == fold
        x_mean, x_scale = x[~test].mean(0), x[~test].std(0)
        y_mean, y_scale = y[~test].mean(), y[~test].std()
        inputs, targets = (x - x_mean) / x_scale, (y - y_mean) / y_scale
        found.append(Fold(inputs[~test], targets[~test], inputs[test], targets[test]))
    return found
