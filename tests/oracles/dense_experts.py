"""Dense definitions: one expert at a time, by plain inverses in float64."""

import math

import torch

from gpx.kernels import RBF, Matern12
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.sampling import Frequencies

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


def require_predictions_of_experts(posterior, model, x, y, new, experts, rows):
    """Each of the new points is predicted by its expert's process on ``rows[place]`` alone."""
    found = posterior.predict(new)
    spread = posterior.predictive(new, model.likelihood).variance
    for place, k in enumerate(experts.tolist()):
        kernel, mean, likelihood, _ = model.parts.of_expert(k)
        at, own, noise = new[place : place + 1], rows[place], likelihood.noise_variance
        with torch.no_grad():
            want = prediction(kernel, mean, noise, x[own], y[own], at)
            centre = mean(at)
        torch.testing.assert_close(found.mean[place], (want[0] + centre)[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.variance[place], want[1][0], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(spread[place], (want[1] + noise)[0], rtol=1e-8, atol=1e-10)


def require_moments_of_paths(posterior, new, num=1500):
    """Sampled functions have the predicted mean and variance at six points.

    False alarms once in 10^6 calls: 5.5 standard errors, 12 comparisons. Functions of few waves
    have heavier tails than a Gaussian's: the scatter of their squares is measured.
    """
    generator = torch.Generator().manual_seed(5)
    paths = posterior.sample_paths(
        num, generator=generator, frequencies=Frequencies(24, per_path=True)
    )
    values, want = paths(new[:6]), posterior.predict(new[:6])
    error = (want.variance / num).sqrt()
    assert ((values.mean(0) - want.mean).abs() < 5.5 * error).all()
    squares = (values - want.mean).square()
    assert ((squares.mean(0) - want.variance).abs() < 5.5 * squares.std(0) / num**0.5).all()
