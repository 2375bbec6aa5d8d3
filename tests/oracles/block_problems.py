"""Waves of two inputs, features in blocks for them, and models on such features."""

from functools import partial

import torch

from gpx.bases import RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import QSGP


def waves(n, generator):
    """Inputs (n, 2) and targets (n,) in torch's default dtype."""
    x = torch.randn(n, 2, generator=generator)
    return x, torch.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(n, generator=generator)


def kernel():
    """The covariance of the models and features."""
    return RBF(ard_num_dims=2, lengthscale=0.8, outputscale=1.5)


def features(m=48, block_frequencies=3):
    """m random features that are not trained."""
    return RandomFourier(kernel(), m, 0, block_frequencies).requires_grad_(False)


def block_diagonal(noise, **options):
    """A ``QSGP`` of 48 features in cells of 12, not initialised."""
    settings = {
        "kernel": kernel(),
        "mean": Zero(),
        "likelihood": Gaussian(noise),
        "num_basis": 48,
        "covariance": "block_diagonal",
        "block_columns": 12,
        "covariance_storage": "float64",
        "warm_start": False,
        "basis": partial(RandomFourier, block_frequencies=3),
    }
    return QSGP(**{**settings, **options})
