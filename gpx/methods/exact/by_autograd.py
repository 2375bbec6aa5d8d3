"""The exact evidence and predictions in operations that autograd differentiates any way round.

They hold several n x n arrays and their graph, where ``log_marginal_likelihood`` and
``ExactPosterior`` hold one: for second derivatives, and for losses on predictions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.backends.entries import call_with
from gpx.constants import LOG_TWO_PI
from gpx.errors import NotAvailable
from gpx.inference.exact_solver import require_finite
from gpx.kernels.base import Kernel
from gpx.likelihoods.row_noise import training_noise
from gpx.linalg import cholesky
from gpx.methods.base.posterior import Marginals
from gpx.methods.exact.model import ExactModel


def log_density_again(kernel: Kernel, x: Tensor, jitter: float) -> Callable[..., Tensor]:
    """log N(r; 0, k(x, x) + noise) as a function of tensors.

    Args:
        kernel, x (n, d): define K = k(x, x).
        jitter: relative, that was needed.

    Returns:
        residual (n,), noise () or (n,), then the parameters of the kernel that require a gradient,
        in their order, then x if it does -> () in float64, differentiable twice in all of them.
        Cost: n^3/3 multiply-adds, twice that for each gradient; some n x n arrays.
    """
    names = [name for name, p in kernel.named_parameters() if p.requires_grad]
    moves = x.requires_grad
    # what is no argument, of which autograd knows nothing
    held = [p for p in kernel.parameters() if not p.requires_grad] + ([] if moves else [x])
    held = [tensor for tensor in held if not tensor.is_inference()]
    versions = [tensor._version for tensor in held]

    def again(residual: Tensor, noise: Tensor, *rest: Tensor) -> Tensor:
        if [tensor._version for tensor in held] != versions:
            raise NotAvailable(
                "inputs or fixed parameters of the kernel were changed in place between an "
                "evidence and its derivatives with create_graph=True, which need them as they "
                "were: change copies of them"
            )
        rows = rest[-1] if moves else x
        values = dict(zip(names, rest[: len(names)], strict=True))
        covariance = call_with(kernel, values, lambda own: own.evaluate(rows, rows))
        covariance = covariance + torch.diag_embed(noise.expand(len(rows)))
        if jitter:
            shift = jitter * covariance.diagonal().mean()
            covariance = covariance + torch.diag_embed(shift.expand(len(rows)))
        lower, _ = cholesky(covariance, name="the kernel matrix", ladder=(0.0,))
        half = torch.linalg.solve_triangular(lower, residual.unsqueeze(1), upper=False)
        fit = half.double().square().sum() + len(rows) * LOG_TWO_PI
        return -0.5 * fit - lower.diagonal().double().log().sum()

    return again


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
