"""Laplace's approximation of the log marginal likelihood, with its gradient in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError, class_name
from gpx.methods.base.objective import Facts
from gpx.methods.classification.evidence import (
    Approximation,
    DenseEvidence,
    Gradients,
    dense_gradient,
)
from gpx.methods.classification.mode import Mode, find_mode
from gpx.methods.classification.model import DenseModel
from gpx.tensor_checks import check_at_least


class LaplaceEvidence(DenseEvidence):
    """log q(y) = log p(y | f) - (f - m)^T a / 2 - log|I + K W| / 2 at the mode f of the posterior.

    The gradient includes how the mode moves with the hyperparameters.

    Args:
        tolerance: Newton decrement at which the mode counts as found, posterior standard
            deviations; the error that is left is of the order of its square.
        max_iterations: Newton steps at most.

    Exactness: an approximation, exact for a Gaussian likelihood; neither a bound nor unbiased.
    Cost: n^3 / 3 multiply-adds a Newton step, 4 n^3 / 3 for the gradient; p times that and p
    arrays n x n for p classes.
    Raises: DidNotConverge, ConfigError, DataError.
    Source: Rasmussen and Williams 2006, algorithm 5.1 and equations 5.20 to 5.24; for p classes
    the same derivation with ``ClassSites``.
    """

    made_for = "LaplaceGP"

    def __init__(self, tolerance: float = 1e-6, max_iterations: int = 100) -> None:
        super().__init__(tolerance)
        check_at_least(1, max_iterations=max_iterations)
        self.max_iterations = max_iterations

    def check(self, model: DenseModel) -> None:
        """As in ``DenseEvidence``; the likelihood is smooth and log-concave."""
        super().check(model)
        likelihood = model.likelihood
        if not likelihood.log_concave:
            raise ConfigError(
                f"LaplaceEvidence needs a log-concave likelihood, which {class_name(likelihood)} "
                "is not: its posterior can have several modes; model=SVGP() takes any likelihood"
            )
        p = likelihood.num_latents
        likelihood.curvature(torch.zeros(0), torch.zeros(0) if p == 1 else torch.zeros(0, p))

    def approximate(
        self, model: DenseModel, kernel: Tensor, mean: Tensor, x: Tensor, y: Tensor
    ) -> Approximation:
        """As in ``DenseEvidence``; facts: Newton steps, and what is left of d log p / df - a."""
        p, n = model.likelihood.num_latents, len(y)
        mode = find_mode(
            kernel,
            mean.double(),
            model.likelihood,
            y,
            self.start_of((n,) if p == 1 else (n, p)),
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        offset = mean.double() if p == 1 else mean.double().unsqueeze(1)
        pull = 0.5 * (mode.weights * (mode.latent - offset)).sum()
        parts = {
            "fit": mode.log_likelihood - pull,
            "complexity": -0.5 * mode.sites.log_determinant,
        }
        facts: Facts = {
            "newton_steps": mode.report.iterations,
            "mode_residual": mode.report.residual,
        }
        return Approximation(
            mode.weights,
            parts,
            mode.report,
            facts,
            lambda: _gradients(model, kernel, mean, x, y, mode),
        )


def _gradients(
    model: DenseModel, kernel: Tensor, mean: Tensor, x: Tensor, y: Tensor, mode: Mode
) -> Gradients:
    """Gradient in mean (n,), kernel and likelihood.

    S holds the blocks of (K^-1 + W)^-1 at each point, s = -1/2 d <S, W(f)> / df, and t = (I + W
    K)^-1 s is how the mode moves. The gradient in K is (a a^T - R + t a^T + a t^T) / 2, in the mean
    a + t, in parameters of the likelihood that of log p - <S, W> / 2 + (K t) . d log p / df at
    fixed f, S and t.
    """
    sites, weights, likelihood = mode.sites, mode.weights, model.likelihood
    with torch.no_grad():
        taken = sites.covariance(kernel)
        prior = kernel.diagonal()
        if weights.ndim == 1:
            spread = prior - taken
        else:
            spread = prior[:, None, None] * torch.eye(weights.shape[1]).to(taken) - taken
    own = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    latent = mode.latent.detach().requires_grad_()
    with torch.enable_grad():
        gradient, information = likelihood.curvature(y, latent)
        volume = -0.5 * _inner(spread, information)
        slope = torch.zeros_like(latent)  # the curvature of a Gaussian is the same everywhere
        if volume.requires_grad:
            (slope,) = torch.autograd.grad(
                volume, latent, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        with torch.no_grad():
            turned = slope - sites.solve(kernel @ slope)
            moved = kernel @ turned
        direct = likelihood.log_prob(y, latent).sum() + volume + (moved * gradient).sum()
        found = torch.autograd.grad(direct, own, allow_unused=True) if own else ()
    by_kernel = dense_gradient(model.kernel, x, sites.precision(), weights, turned)
    by_mean = weights + turned
    used = [(p, g) for p, g in zip(own, found, strict=True) if g is not None]
    return (
        [mean, *by_kernel.inputs(), *(p for p, _ in used)],
        [
            (by_mean if by_mean.ndim == 1 else by_mean.sum(1)).to(mean.dtype),
            *by_kernel.gradients(),
            *(g for _, g in used),
        ],
    )


def _inner(spread: Tensor, information: Tensor) -> Tensor:
    """sum_i <S_i, W_i> with W in the form of ``Curvature``."""
    if information.ndim == 1:
        return (spread * information).sum()
    own = (spread.diagonal(dim1=1, dim2=2) * information).sum()
    return own - torch.einsum("nc,ncd,nd->", information, spread, information)
