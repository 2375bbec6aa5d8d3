"""Models whose hyperparameters are all one, where the published experiments start.

Scripts import this file as described in ``record``.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from gpx.data import UCI, load
from gpx.inducing import GreedyConditionalVariance
from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR, ExactGP, IterativeOptions

Sparse = TypeVar("Sparse", bound=SGPR)


def sparse_at_ones(kind: type[Sparse], x: Tensor, y: Tensor, inducing: int) -> Sparse:
    """SGPR or CGLB with Matern 3/2, one lengthscale per input, and greedy inducing points."""
    model = kind(
        kernel=Matern32(x.shape[1]),
        mean=Constant(),
        likelihood=Gaussian(1.0),
        num_inputs=x.shape[1],
        num_data=len(y),
        num_inducing=inducing,
        selector=GreedyConditionalVariance(),
        fit_noise=False,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model


def exact_at_ones(
    x: Tensor, rank: int, noise_floor: float = 1e-6, solver: str = "iterative"
) -> ExactGP:
    """Exact GP with Matern 3/2, one lengthscale per input, and a preconditioner of ``rank``."""
    return ExactGP(
        kernel=Matern32(x.shape[1]),
        mean=Constant(),
        likelihood=Gaussian(1.0, noise_floor=noise_floor),
        solver=solver,
        iterative=IterativeOptions(rank=rank),
    ).double()


def small_set(name: str, rows: int, **source: Any) -> tuple[tuple[Tensor, Tensor], ...]:
    """Standardised inputs and targets: the first training rows of a set, and its test rows."""
    data = load(UCI(name, **source), task="regression")
    train = data.train_x[:rows].double(), data.train_y[:rows].double()
    return train, (data.test_x.double(), data.test_y.double())
