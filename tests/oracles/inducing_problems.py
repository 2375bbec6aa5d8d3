"""Regression with a function per training point, solved for, and dense algebra to compare with."""

import math

import torch

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import QSGPInducing
from gpx.training import InducingSteps

NOISE = 0.02


def problem(n=200, kernel=None, d=2, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, -1] + math.sqrt(NOISE) * torch.randn(n, generator=generator)
    settings = {"rank": min(40, n), "variance_steps": 20, "variance": "augmented"}
    model = QSGPInducing(
        kernel=kernel or RBF(lengthscale=0.8, outputscale=1.5),
        mean=Zero(),
        likelihood=Gaussian(NOISE),
        num_data=n,
        num_inputs=d,
        **{**settings, **options},
    )
    model.initialise(x, y, generator=generator)
    return model, x, y


def solve(model, x, y, limit=10_000, **options):
    optimizer = InducingSteps(**options)
    optimizer.check(model, x.shape[0])
    optimizer.bind(model, x, 0)
    values = []
    for step in range(optimizer.max_steps(limit)):
        values.append(float(optimizer.step(step, x, y, generator=None).value))
        if optimizer.converged:
            break
    return optimizer, values


def dense(model, x, y):
    """K and (K + noise I)^-1 y."""
    k = model.kernel.evaluate(x).detach()
    return k, torch.linalg.solve(k + NOISE * torch.eye(x.shape[0]), y)
