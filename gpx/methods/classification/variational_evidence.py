"""Evidence lower bound of the closest Gaussian on all rows, with its gradient in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.methods.base.objective import Facts
from gpx.methods.classification.evidence import (
    Approximation,
    DenseEvidence,
    Gradients,
    dense_gradient,
)
from gpx.methods.classification.model import DenseModel, require_log_concave
from gpx.methods.classification.variational import Fitted, expected_fit, fit_gaussian
from gpx.tensor_checks import check_at_least


class VGPELBO(DenseEvidence):
    """max over Gaussians q of E_q log p(y | f) - KL(q || p).

    At the maximum the bound is stationary in q, so its gradient is that at fixed q:
    (a a^T - R) / 2 by K and a by the mean, summed over the latent functions.

    Args:
        tolerance: on the natural gradient of q, in posterior standard deviations; the gradient's
            error is of this order, that of the bound of the order of its square.
        max_iterations: most natural gradient steps.

    Exactness: a lower bound, up to errors of the likelihood's quadrature; exact for a Gaussian
    likelihood.
    Cost: p n^3 multiply-adds per step, and p n^3 for the gradient.
    Raises: DidNotConverge, ConfigError, DataError.
    Source: Opper and Archambeau 2009, section 2.
    """

    kind = "lower_bound"
    made_for = "VGP"

    def __init__(self, tolerance: float = 1e-4, max_iterations: int = 200) -> None:
        super().__init__(tolerance)
        check_at_least(1, max_iterations=max_iterations)
        self.max_iterations = max_iterations

    def check(self, model: DenseModel) -> None:
        """As in ``DenseEvidence``; the likelihood must be log-concave."""
        super().check(model)
        require_log_concave(model.likelihood)

    def approximate(
        self, model: DenseModel, kernel: Tensor, mean: Tensor, x: Tensor, y: Tensor
    ) -> Approximation:
        """As in ``DenseEvidence``; facts: steps, and the largest natural gradient."""
        p, n = model.likelihood.num_latents, len(y)
        found = fit_gaussian(
            kernel,
            mean.double(),
            model.likelihood,
            y,
            self.start_if_shaped((2, n) if p == 1 else (2, p, n)),
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        facts: Facts = {
            "natural_steps": found.report.iterations,
            "natural_gradient": found.report.residual,
        }
        return Approximation(
            found.sites,
            found.parts,
            found.report,
            facts,
            lambda: _gradients(model, mean, x, y, found),
        )


def _gradients(model: DenseModel, mean: Tensor, x: Tensor, y: Tensor, found: Fitted) -> Gradients:
    """Gradient by mean (n,), kernel and likelihood, at fixed q."""
    weights, precision = found.moments.weights, found.matrix.precision()
    if weights.ndim == 2:
        weights, precision = weights.mT, precision.sum(0)
    by_kernel = dense_gradient(model.kernel, x, precision, weights)
    by_mean = weights if weights.ndim == 1 else weights.sum(1)
    tensors = [mean, *by_kernel.inputs()]
    gradients = [by_mean.to(mean.dtype), *by_kernel.gradients()]
    own = [parameter for parameter in model.likelihood.parameters() if parameter.requires_grad]
    if own:
        centre = mean.detach().double() + found.moments.mean
        with torch.enable_grad():
            fit = expected_fit(model.likelihood, y, centre, found.moments.variance)
            gradients += torch.autograd.grad(fit, own, allow_unused=True, materialize_grads=True)
        tensors += own
    return tensors, gradients
