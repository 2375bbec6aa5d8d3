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
from gpx.methods.classification.model import DenseModel, no_targets
from gpx.tensor_checks import check_at_least


class LaplaceEvidence(DenseEvidence):
    """log q(y) = log p(y | f) - (f - m)^T a / 2 - log|I + K W| / 2 at the mode f of the posterior.

    The gradient accounts for the change of the mode with the hyperparameters.

    Args:
        tolerance: Newton decrement, in posterior standard deviations, at which the mode counts as
            found; the remaining error is of the order of its square.
        max_iterations: most Newton steps.

    Exactness: an approximation, exact for a Gaussian likelihood; neither a bound nor unbiased.
    Cost: n^3 / 3 multiply-adds per Newton step, 4 n^3 / 3 for the gradient; for p classes p times
    that and p arrays of n x n.
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
        """As in ``DenseEvidence``; the likelihood must be smooth and log-concave."""
        super().check(model)
        likelihood = model.likelihood
        if not likelihood.log_concave:
            raise ConfigError(
                f"LaplaceEvidence needs a log-concave likelihood, which {class_name(likelihood)} "
                "is not: its posterior can have several modes; model=SVGP() takes any likelihood"
            )
        nothing, p = no_targets(likelihood), likelihood.num_latents
        found = likelihood.curvature(nothing, nothing if p == 1 else nothing.view(0, p))
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(
                f"{class_name(likelihood)}.curvature gave a {type(found).__name__}; expected "
                "gpx.likelihoods.Curvature(gradient, information): d log p / df, and minus the "
                "second derivative"
            )

    def approximate(
        self, model: DenseModel, kernel: Tensor, mean: Tensor, x: Tensor, y: Tensor
    ) -> Approximation:
        """As in ``DenseEvidence``; facts: Newton steps, largest entry of d log p / df - a."""
        p, n = model.likelihood.num_latents, len(y)
        mode = find_mode(
            kernel,
            mean.double(),
            model.likelihood,
            y,
            self.start_if_shaped((n,) if p == 1 else (n, p)),
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        offset = mean.double() if p == 1 else mean.double().unsqueeze(1)
        quadratic = 0.5 * (mode.weights * (mode.latent - offset)).sum()
        parts = {
            "fit": mode.log_likelihood - quadratic,
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
    """Gradient by the mean (n,) and by the parameters of kernel and likelihood.

    S are the blocks of (K^-1 + W)^-1 at each point, s = -1/2 d <S, W(f)> / df, and
    t = (I + W K)^-1 s accounts for the change of the mode. The gradient by K is
    (a a^T - R + t a^T + a t^T) / 2, that by the mean is a + t, and that by likelihood parameters is
    the derivative of log p - <S, W> / 2 + (K t) . d log p / df at fixed f, S and t.
    """
    sites, weights, likelihood = mode.sites, mode.weights, model.likelihood
    with torch.no_grad():
        covariance = sites.posterior_variance(kernel)
    own = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    latent = mode.latent.detach().requires_grad_()
    with torch.enable_grad():
        gradient, information = likelihood.curvature(y, latent)
        volume = -0.5 * _inner(covariance, information)
        slope = torch.zeros_like(latent)  # stays zero for a Gaussian, of constant curvature
        if volume.requires_grad:
            (slope,) = torch.autograd.grad(
                volume, latent, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        with torch.no_grad():
            implicit = slope - sites.solve(kernel @ slope)  # t
            latent_shift = kernel @ implicit
        direct = likelihood.log_prob(y, latent).sum() + volume + (latent_shift * gradient).sum()
        by_likelihood = torch.autograd.grad(direct, own, allow_unused=True) if own else ()
    by_kernel = dense_gradient(model.kernel, x, sites.precision(), weights, implicit)
    by_mean = weights + implicit
    used = [(p, g) for p, g in zip(own, by_likelihood, strict=True) if g is not None]
    return (
        [mean, *by_kernel.inputs(), *(p for p, _ in used)],
        [
            (by_mean if by_mean.ndim == 1 else by_mean.sum(1)).to(mean.dtype),
            *by_kernel.gradients(),
            *(g for _, g in used),
        ],
    )


def _inner(covariance: Tensor, information: Tensor) -> Tensor:
    """sum_i <S_i, W_i>, with S = ``covariance`` and W in the form of ``Curvature``."""
    if information.ndim == 1:
        return (covariance * information).sum()
    diagonal = (covariance.diagonal(dim1=1, dim2=2) * information).sum()
    return diagonal - torch.einsum("nc,ncd,nd->", information, covariance, information)
