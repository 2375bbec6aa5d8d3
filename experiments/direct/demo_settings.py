"""Problems of figure 7.4: this project's, and those of the released code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.bases import RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import NoiseGrid, WeightGrid

FUNCTIONS = 100
MEAN_FIELD, BOUNDED = "(a) mean field, L-BFGS", "(b) bounded mixture"
SAMPLED = "(c) sampled mixture"


def truth(x: Tensor) -> Tensor:
    """The function (n,) at x (n, 1)."""
    return (2.0 * math.pi * x[:, 0]).cos() * (-x[:, 0].square()).exp()


def data(seed: int, n: int = 20) -> tuple[Tensor, Tensor]:
    """Inputs (n, 1) and targets (n,)."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=draws, dtype=torch.float64) * 2.0 - 1.0
    return x, truth(x) + 0.03 * torch.randn(n, generator=draws, dtype=torch.float64)


def released_data(seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (20, 1) and targets (20,) of the released code's settings."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.linspace(0.0, 1.0, 20, dtype=torch.float64).unsqueeze(1)
    return x, truth(x) + 0.1 * (torch.rand(20, generator=draws, dtype=torch.float64) - 0.5)


class Setting(NamedTuple):
    """A problem and its searches for q.

    Attributes:
        data: seed -> inputs (n, 1) and targets (n,).
        scales: of the kernel; an outputscale of m / 2 makes the functions plain sines and cosines.
        grid (t, 1), inside (t,), away (t,): inputs at which f is evaluated.
        restarts: of the mean field's search.
        families: name, deviation around the mean field that a mixture starts with (None: around
            the prior), a factor on the steps, and the rate of Adam with its fall (None: L-BFGS).
    """

    caption: str
    data: Callable[[int], tuple[Tensor, Tensor]]
    scales: dict[str, float]
    grid: Tensor
    inside: Tensor
    away: Tensor
    restarts: int
    families: tuple[tuple[str, float | None, int, float | None, float], ...]


def ours() -> Setting:
    """The problem with this project's ranges and noise, which the source does not give."""
    grid = torch.linspace(-2.0, 2.0, 401).double().unsqueeze(1)
    size = grid[:, 0].abs()
    return Setting(
        "This project's settings of ranges and noise",
        data,
        {"lengthscale": 0.3, "outputscale": 0.5 * FUNCTIONS},
        grid,
        size < 1.0,
        (size > 1.5) & (size < 2.0),
        3,
        (
            (MEAN_FIELD, None, 1, None, 1.0),
            (BOUNDED, 1.0, 1, None, 1.0),
            (SAMPLED, 1.0, 1, 0.05, 0.01),
        ),
    )


def released() -> Setting:
    """The problem with the settings of the released code."""
    grid = torch.linspace(0.0, 2.0, 401).double().unsqueeze(1)
    return Setting(
        "Settings of the released code",
        released_data,
        {"lengthscale": 0.1},
        grid,
        grid[:, 0] < 1.0,
        grid[:, 0] > 1.2,
        0,
        (
            (MEAN_FIELD, None, 3, None, 1.0),
            (BOUNDED, None, 3, None, 1.0),
            (SAMPLED, None, 5, 0.001, 1.0),
            (f"{SAMPLED}, begun around (a)", 0.1, 1, 0.001, 1.0),
        ),
    )


def made(cls: type[Any], setting: Setting, x: Tensor, y: Tensor, **options: Any) -> Any:
    """A model at its prior."""
    model = cls(
        kernel=RBF(1, **setting.scales),
        mean=Zero(),
        likelihood=Gaussian(0.03**2),
        basis=RandomFourier,
        num_basis=FUNCTIONS,
        weights=WeightGrid(values=torch.linspace(-1.0, 1.0, 15).tolist(), prior="uniform"),
        noise=NoiseGrid(lowest=1e-5, highest=1e-2),
        anneal=0,
        **options,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model
