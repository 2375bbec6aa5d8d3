"""Golden problem G1 of certified bounds: one-dimensional, n = 200, closed form.

x_n = 10 n / 199, y_n = sin 2 x_n + 0.3 cos 7 x_n; squared exponential with lengthscale 0.7 and
variance 1.3, noise variance 0.05; every tenth point from the fifth is an inducing point.
"""

import torch

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero

NOISE = 0.05
VARIANCE = 1.3
LOGDET = -516.0157202
INV_QUAD = 173.1094506

x = torch.arange(200, dtype=torch.float64) * 10 / 199
y = torch.sin(2 * x) + 0.3 * torch.cos(7 * x)
z = x[5::10]


def covariance(a, b):
    return VARIANCE * torch.exp(-0.5 * (a[:, None] - b[None, :]).square() / 0.49)


K_xx = covariance(x, x)
K = K_xx + NOISE * torch.eye(200, dtype=torch.float64)
K_zz = covariance(z, z)
K_zx = covariance(z, x)
Q = K_zx.mT @ torch.linalg.solve(K_zz, K_zx) + NOISE * torch.eye(200, dtype=torch.float64)


def exact_model(kind, **options):
    """A model of gpx with these hyperparameters in float64."""
    made = kind(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), **options).double()
    made.kernel.lengthscale = torch.tensor(0.7, dtype=torch.float64)
    made.kernel.outputscale = torch.tensor(VARIANCE, dtype=torch.float64)
    made.likelihood.noise_variance = torch.tensor(NOISE, dtype=torch.float64)
    return made


def sparse_model(kind, **options):
    """The same with these inducing points."""
    made = exact_model(kind, num_inputs=1, num_inducing=len(z), **options)
    made.inducing_points.data.copy_(z[:, None])
    return made
