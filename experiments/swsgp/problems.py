"""Data of the published experiments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.data import ExtraTable, OriginalTable, load


class Fold(NamedTuple):
    """Training and test data.

    Attributes:
        truth (t,): the test function without noise, where known.
        unit: of the targets, in units of the data.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    truth: Tensor | None = None
    unit: float = 1.0


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


def original(name: str) -> tuple[Tensor, Tensor]:
    """All rows of a published set (``OriginalTable``), in the order of its file."""
    table = OriginalTable(name).table()
    return torch.from_numpy(table.x), torch.from_numpy(table.y)


def folds(data: tuple[Tensor, Tensor], count: int = 3) -> list[Fold]:
    """Every third row tests a fold; inputs and targets in units of the training rows."""
    x, y = data
    found = []
    for fold in range(count):
        test = torch.arange(len(x)) % count == fold
        x_mean, x_scale = x[~test].mean(0), x[~test].std(0)
        y_mean, y_scale = y[~test].mean(), y[~test].std()
        inputs, targets = (x - x_mean) / x_scale, (y - y_mean) / y_scale
        parts = (inputs[~test], targets[~test], inputs[test], targets[test])
        found.append(Fold(*parts, unit=float(y_scale)))
    return found
