"""Evidence of expectation propagation, with its gradient in closed form."""

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
from gpx.methods.classification.model import DenseModel, require_tilted
from gpx.methods.classification.propagation import Propagated, propagate
from gpx.tensor_checks import check_at_least


class EPEvidence(DenseEvidence):
    """log Z of expectation propagation.

    At the fixed point log Z is stationary in the sites, so its gradient is that at fixed sites:
    (a a^T - R) / 2 by K and a by the mean.

    Args:
        tolerance: on the moments, see ``propagate``; the gradient's error is of this order.
        max_sweeps: most sweeps over all sites.

    Exactness: an approximation, exact for a Gaussian likelihood; neither a bound nor unbiased. For
    classes its error is usually a small fraction of a nat.
    Cost: n^3 multiply-adds per sweep, and n^3 for the gradient.
    Raises: DidNotConverge, ConfigError, DataError.
    Source: Minka 2001; Rasmussen and Williams 2006, algorithm 5.2 and equation 3.65.
    """

    made_for = "ExpectationPropagationGP"

    def __init__(self, tolerance: float = 1e-8, max_sweeps: int = 200) -> None:
        super().__init__(tolerance)
        check_at_least(1, max_sweeps=max_sweeps)
        self.max_sweeps = max_sweeps

    def check(self, model: DenseModel) -> None:
        """As in ``DenseEvidence``; the likelihood must know its moments."""
        super().check(model)
        require_tilted(model.likelihood)

    def approximate(
        self, model: DenseModel, kernel: Tensor, mean: Tensor, x: Tensor, y: Tensor
    ) -> Approximation:
        """As in ``DenseEvidence``; facts: sweeps, mismatch of moments, damping."""
        found = propagate(
            kernel,
            mean.double(),
            model.likelihood,
            y,
            self.start_if_shaped((2, len(y))),
            tolerance=self.tolerance,
            max_sweeps=self.max_sweeps,
        )
        facts: Facts = {
            "sweeps": found.report.iterations,
            "moment_mismatch": found.report.residual,
            "damping": found.damping,
        }
        return Approximation(
            found.sites,
            found.parts,
            found.report,
            facts,
            lambda: _gradients(model, mean, x, y, found),
        )


def _gradients(
    model: DenseModel, mean: Tensor, x: Tensor, y: Tensor, found: Propagated
) -> Gradients:
    """Gradient by mean (n,), kernel and likelihood (through log Z_i at fixed cavities)."""
    by_kernel = dense_gradient(model.kernel, x, found.matrix.precision(), found.weights)
    tensors = [mean, *by_kernel.inputs()]
    gradients = [found.weights.to(mean.dtype), *by_kernel.gradients()]
    own = [parameter for parameter in model.likelihood.parameters() if parameter.requires_grad]
    if own:
        centre = mean.detach().double() + found.cavities.cavity_mean
        with torch.enable_grad():
            tilted = model.likelihood.tilted(y, centre, found.cavities.cavity_variance)
            tensors += own
            gradients += torch.autograd.grad(
                tilted.log_normaliser.sum(), own, allow_unused=True, materialize_grads=True
            )
    return tensors, gradients
