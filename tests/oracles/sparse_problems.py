"""Regressions on three inputs with inducing points that are not placed but drawn."""

import torch

from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Linear


def sparse_problem(kind, n, m, *, kernel=None, noise=0.07, seed=0, dtype=torch.float64, **options):
    """A model of this kind with m inducing points, x (n, 3) and y (n,); all determined by the seed.

    It seeds torch's own generator, with which a test may go on.
    """
    torch.manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64)
    model = kind(
        kernel=kernel or Matern32(ard_num_dims=3, lengthscale=[0.8, 1.5, 2.0], outputscale=1.4),
        mean=Linear(3, bias=0.3),
        likelihood=Gaussian(noise),
        num_inputs=3,
        num_inducing=m,
        **options,
    ).to(dtype)
    with torch.no_grad():
        model.inducing_points.copy_(torch.randn(m, 3, dtype=torch.float64))
    return model, x.to(dtype), y.to(dtype)
