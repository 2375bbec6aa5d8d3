"""Initial hyperparameters: one lengthscale for all inputs unless the data support several."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gpx.kernels.stationary import Stationary
from gpx.likelihoods import Gaussian
from gpx.models import Model
from gpx.objectives import ExactMLL
from gpx.training.exact_outputs import draw_rows, exact_outputs, know_noise_of_outputs, take_over
from gpx.training.initialisation import SubsetInitialisation
from gpx.training.maximise import Say

RAW = "parametrizations.lengthscale.original"
"""Name of the unconstrained parameter behind ``lengthscale``."""


class ParsimoniousInitialisation(SubsetInitialisation):
    """An exact GP on a subset, with d lengthscales or a shared one (``init=parsimonious``).

    With few rows and many inputs, maximising the evidence over d lengthscales over-fits. Both
    kernels are fitted, and the d lengthscales are used if they gain more than the
    (d - 1) log(n) / 2 nats that the Bayesian information criterion requires. Otherwise all inputs
    start with the shared lengthscale; training may still make them differ.

    Args:
        num_points, max_evaluations, num_starts: as for ``SubsetInitialisation``.

    Cost: one more fit.
    Source: Schwarz 1978 (the criterion).
    """

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator, say: Say
    ) -> None:
        """As in ``SubsetInitialisation``, then the comparison."""
        parts = model.hyperparameters()
        count = 0 if parts is None else _lengthscales(parts.kernel)
        if parts is None or count < 2 or not isinstance(parts.likelihood, Gaussian):
            super().__call__(model, x, y, generator=generator, say=say)
            return
        rows = draw_rows(x, self.num_points, generator)
        x, y = x[rows].double(), y[rows].double()
        noise = None if model.row_noise is None else model.row_noise.of(rows)
        (start,) = exact_outputs(parts)
        know_noise_of_outputs([start], y, noise)
        self._start(parts, x, y, model.hyperpriors, say, noise=noise)
        (fitted,) = exact_outputs(parts)
        know_noise_of_outputs([fitted], y, noise)
        with torch.no_grad():
            many = float(ExactMLL().evidence(fitted, x, y).value)
        _tie(start.kernel, math.sqrt(count))
        self._fit([start], x, y, model.hyperpriors, say)
        with torch.no_grad():
            one = float(ExactMLL().evidence(start, x, y).value)
        price = 0.5 * (count - 1) * math.log(len(y))
        decision = "all are used" if many - one > price else "one for all inputs is used"
        say(
            f"init: {count} lengthscales gain {many - one:.1f} nats of evidence over a shared one "
            f"and {price:.1f} are required: {decision}"
        )
        if many - one > price:
            return
        raw = start.kernel.get_parameter(RAW)
        raw.data = raw.data.expand(count).clone()
        take_over([start], parts)


def _lengthscales(kernel: nn.Module) -> int:
    """Number of learned lengthscales of a stationary kernel; 0 for any other."""
    known = isinstance(kernel, Stationary) and RAW in dict(kernel.named_parameters())
    if not known or not kernel.get_parameter(RAW).requires_grad:
        return 0
    return kernel.get_parameter(RAW).numel()


@torch.no_grad()
def _tie(kernel: nn.Module, factor: float) -> None:
    """Replace the lengthscales by one: ``factor`` times their geometric mean."""
    assert isinstance(kernel, Stationary)
    shared = factor * kernel.lengthscale.log().mean().exp()
    raw = kernel.get_parameter(RAW)
    kernel.get_submodule("parametrizations.lengthscale").original = nn.Parameter(raw.mean())
    kernel.ard_num_dims = None
    kernel.lengthscale = shared
