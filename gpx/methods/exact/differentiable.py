"""Exact predictions in operations that autograd differentiates any way round.

They hold several n x n arrays and their graph, where ``ExactPosterior`` holds one: for losses on
predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inference.exact_solver import require_finite
from gpx.likelihoods.row_noise import training_noise
from gpx.linalg import cholesky
from gpx.methods.base.posterior import Marginals
from gpx.methods.exact.model import ExactModel


def differentiable_prediction(
    model: ExactModel, x: Tensor, y: Tensor, x_new: Tensor
) -> tuple[Marginals, Tensor]:
    """Predictions given x and y, as a function of hyperparameters, data and new inputs.

    For losses on held-out rows, meta-learning, and derivatives of predictions by anything; they
    are differentiable twice with the kernels that are (``Kernel.evaluate``). For predictions alone
    take ``model.condition(x, y).predict(x_new)``, which gives the same numbers in less memory.

    Args:
        model: an ``ExactGP`` with Gaussian noise, known noise of the rows x included.
        x (n, d), y (n,), x_new (t, d).

    Returns:
        the marginals of f at x_new, mean (t,) and variance (t,), and the learned noise variance (),
        to be added for targets.

    Raises:
        DataError: targets that are not finite. NotPositiveDefinite: see ``gpx.linalg.cholesky``,
        whose jitter counts as constant.

    Cost: n^3/3 + n^2 t multiply-adds, twice that for a gradient; some arrays n x n and n x t.
    """
    require_finite(y)
    covariance = model.kernel.evaluate(x, x)
    covariance = covariance + torch.diag_embed(training_noise(model, x).expand(len(x)))
    lower, _ = cholesky(covariance, name=f"the kernel matrix of {len(x)} training points")
    right = torch.cat([(y - model.mean(x)).unsqueeze(1), model.kernel.evaluate(x, x_new)], 1)
    half = torch.linalg.solve_triangular(lower, right, upper=False)
    cross = half[:, 1:]
    mean = model.mean(x_new) + cross.mT @ half[:, 0]
    variance = model.kernel.diagonal(x_new) - cross.square().sum(0)
    return Marginals(mean, variance), model.likelihood.noise_variance
