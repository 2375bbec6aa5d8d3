"""Dense definitions: one expert at a time, by plain inverses in float64."""

import math

import torch

from gpx.kernels import RBF, Matern12
from gpx.likelihoods import Gaussian
from gpx.means import Constant

KERNELS = {
    "rbf": lambda: RBF(2, [0.7, 1.1], 1.3),
    "matern12": lambda: Matern12(2, [0.9, 1.4], 0.8),
    "sum": lambda: RBF(2, [0.7, 1.1], 1.3) + Matern12(None, 2.0, active_dims=[1]),
    "no distance": lambda: RBF(2, [0.7, 1.1], 1.3) + 0.4,
}


def parts(kernel="rbf", noise=0.03):
    return {
        "kernel": KERNELS[kernel]().double(),
        "mean": Constant(0.3).double(),
        "likelihood": Gaussian(noise).double(),
    }


def data(n=61, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1)
    y = y + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y, torch.randn(11, 2, generator=generator, dtype=torch.float64)


def log_density(kernel, mean, noise, x, y):
    """log N(y; m(x), k(x, x) + noise I), differentiable."""
    n = len(x)
    matrix = kernel.evaluate(x) + noise * torch.eye(n, dtype=x.dtype)
    residual = y - mean(x)
    fit = residual @ torch.linalg.solve(matrix, residual)
    return -0.5 * (fit + torch.logdet(matrix) + n * math.log(2.0 * math.pi))


def prediction(kernel, mean, noise, x, y, new):
    """Mean less the prior mean, and variance, of f at new points."""
    inverse = torch.linalg.inv(kernel.evaluate(x) + noise * torch.eye(len(x), dtype=x.dtype))
    cross = kernel.evaluate(new, x)
    variance = kernel.diagonal(new) - (cross @ inverse * cross).sum(1)
    return cross @ inverse @ (y - mean(x)), variance
