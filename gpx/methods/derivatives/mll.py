"""Log marginal likelihood of values and derivatives of one function."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.inference.several_targets import ObservedTargets, require_no_infinity, targets_log_density
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.derivatives.covariance import Inputs, ObservedDerivatives, prior_means

FEWEST_CELLS = 3
"""Cells of a target below which its noise variance is not learned: a function passes through one
value whatever its noise is."""
SOLVER = "cholesky of values and derivatives"
"""How they are solved with, for metrics."""


@runtime_checkable
class DerivativeModel(Protocol):
    """What ``DerivativeMLL`` needs of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: GaussianOutputs

    @property
    def inputs(self) -> Inputs:
        """What each target is differentiated by."""


class DerivativeMLL(Objective[DerivativeModel]):
    """Log marginal likelihood of a ``DerivativeGP`` for the values and derivatives that are there.

    The noise variance of a target of less than ``FEWEST_CELLS`` cells has no gradient, and stays.

    Exactness: exact; warns if float32 is too inaccurate (``FLOAT32_LIMIT``).
    Cost: N^3/3 multiply-adds for the value and N^3 with the gradient, for N observed values and
    derivatives, at most n (d + 1); one N x N array and blocks of rows of it.
    """

    batching = "full"
    kind = "exact"
    takes_missing_targets = True
    takes_row_noise = True
    models = (DerivativeModel,)
    made_for = "DerivativeGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (GaussianOutputs,)

    def evidence(
        self,
        model: DerivativeModel,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Log marginal likelihood in nats, in float64; parts are those of ``LogDensityTerms``.

        Args:
            y (n, p): values, then derivatives; NaN where one is missing.

        Raises:
            DataError: infinite targets, or none at all.
            ConfigError: the kernel has no derivatives, or x lacks an input.
        """
        inputs = model.inputs
        residual = y - prior_means(model.mean, x, inputs)
        require_no_infinity(residual.detach())
        targets = ObservedTargets(residual, some_empty=True)
        noise = learned_noise(model.likelihood.noise_variance.to(y), targets)
        known: RowNoise | None = getattr(model, "row_noise", None)
        noise = noise if known is None else known.like(y).variances(noise)
        covariance = ObservedDerivatives(model.kernel, inputs, x, targets)
        terms, found, report = targets_log_density(
            covariance, x, residual, noise, gradient=torch.is_grad_enabled()
        )
        value = terms.total()
        if found is not None:
            value = found.attached(value, residual, noise, ())
        facts: Facts = {
            "missing_targets": y.numel() - targets.count,
            "solver": SOLVER,
            "jitter": report.relative,
        }
        return Evidence(value, self.kind, terms._asdict(), report, facts)


def learned_noise(noise: Tensor, targets: ObservedTargets) -> Tensor:
    """Noise variances (p,), without gradients of those of targets with few cells."""
    few = [count < FEWEST_CELLS for count in targets.counts]
    return torch.where(noise.new_tensor(few) > 0.0, noise.detach(), noise) if any(few) else noise
