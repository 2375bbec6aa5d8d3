"""kin40k at the hyperparameters that the scripts of this folder compare methods at."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.data import load
from gpx.data.sets.uci import UCI
from gpx.kernels import RBF

# type-II maximum of an exact SE-ARD GP on 1,000 training rows of kin40k, split 0
KIN40K_LENGTHSCALES = (3.28, 3.08, 1.60, 1.74, 1.70, 1.41, 1.38, 1.94)
KIN40K_OUTPUTSCALE = 1.73
KIN40K_NOISE = 0.0069


def kin40k(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Training inputs (36000, 8) and targets of split 0, standardised."""
    data = load(UCI("kin40k"), task="regression")
    return data.train_x.to(dtype), data.train_y.to(dtype)


def kin40k_kernel(lengthscale: tuple[float, ...] | float = KIN40K_LENGTHSCALES) -> RBF:
    """SE-ARD kernel at the reference hyperparameters, or at other lengthscales."""
    return RBF(ard_num_dims=8, lengthscale=lengthscale, outputscale=KIN40K_OUTPUTSCALE)
