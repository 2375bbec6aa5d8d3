"""A small exact Gaussian process whose evidence is estimated with a bias below a bound."""

import torch

from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP, IterativeOptions


def problem(rank=8, n=60, noise=0.02):
    """Model, inputs (n, 2) and targets (n,)."""
    torch.manual_seed(0)
    x = torch.randn(n, 2, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64)
    model = ExactGP(
        kernel=Matern32(ard_num_dims=2, lengthscale=[0.8, 1.5], outputscale=1.4),
        mean=Zero(),
        likelihood=Gaussian(noise),
        solver="barely_biased",
        iterative=IterativeOptions(rank=rank),
    ).double()
    return model, x, y
