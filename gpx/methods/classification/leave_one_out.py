"""Leave-one-out predictions of Laplace's approximation, at the cost of one evaluation of it."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.methods.classification.mode import find_mode
from gpx.methods.classification.model import LaplaceGP, kernel_matrix
from gpx.methods.classification.site_matrix import not_zero


@torch.no_grad()
def left_out_log_density(model: LaplaceGP, x: Tensor, y: Tensor) -> Tensor:
    """log p(y_i | all other targets) (n,) in nats, at the hyperparameters of ``model``.

    The Gaussian that stands for the likelihood term of a row is taken away from the posterior of
    its latents, N(f_i, S_i) -> N(f_i - V_i g_i, V_i) with V_i = (S_i^-1 - W_i)^-1, where g and W
    are the gradient and the negative Hessian of the term at the mode. The mode itself is not moved.

    Args:
        model: Laplace's approximation.
        x (n, d), y (n,): all rows.

    Cost: that of the mode, and a triangular solve with n columns (p of them for p classes).
    Raises: DidNotConverge, DataError.
    Source: Vehtari et al. 2016, section 3.2 (LA-LOO).
    """
    kernel, likelihood = kernel_matrix(model, x, y), model.likelihood
    mode = find_mode(
        kernel, model.mean(x).double(), likelihood, y, max_iterations=model.max_iterations
    )
    # at the mode the weights are the gradient
    gradient, information = mode.weights, mode.sites.information
    posterior = mode.sites.posterior_variance(kernel)
    if information.ndim == 1:
        variance = not_zero(posterior) / not_zero(1.0 - posterior * information)
        mean = mode.latent - variance * gradient
    else:
        identity = torch.eye(information.shape[1]).to(kernel)
        terms = torch.diag_embed(information) - information[:, :, None] * information[:, None, :]
        without = torch.linalg.solve(identity - posterior @ terms, posterior)
        mean = mode.latent - (without @ gradient.unsqueeze(2)).squeeze(2)
        variance = not_zero(without.diagonal(dim1=1, dim2=2))
    return likelihood.log_predictive_of_rows(y, mean, variance, None)
