"""The published start of experiments on evidence bounds: every hyperparameter at one.

Scripts find this file as they find ``record``.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from gpx.inducing import GreedyConditionalVariance
from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR

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
