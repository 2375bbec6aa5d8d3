"""Log marginal likelihood of an exact Gaussian process through one Cholesky factorisation."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gpx.inference.exact_density import log_marginal_likelihood
from gpx.inference.exact_solver import require_finite
from gpx.inference.log_density import LogDensityGradient, LogDensityTerms
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import CholeskyReport
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Kind, Objective
from gpx.methods.exact.model import ExactModel


class LogDensity(Protocol):
    """A function that gives a log density of residuals (n,) under kernel and noise."""

    def __call__(
        self, kernel: Kernel, x: Tensor, residual: Tensor, noise: Tensor, *, gradient: bool
    ) -> tuple[LogDensityTerms, LogDensityGradient | None, CholeskyReport]:
        """Terms, the gradient if it is asked for, and the report of the factorisation."""


class GaussianRegression(Protocol):
    """The parts of a model that exact evidence needs."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian


def exact_evidence(
    model: GaussianRegression,
    x: Tensor,
    y: Tensor,
    kind: Kind,
    row_noise: RowNoise | None = None,
    density: LogDensity = log_marginal_likelihood,
) -> Evidence:
    """Evidence of this kind for x (n, d), y (n,) from a log density with its gradient.

    Args:
        row_noise: known noise variances or weights of the rows; None: nothing is known.
        density: ``log_marginal_likelihood``, or another function with its signature.

    Raises:
        DataError: targets that are not finite.
    """
    residual, noise = y - model.mean(x), model.likelihood.noise_variance
    if row_noise is not None:
        noise = row_noise.like(noise).variance(noise)
    require_finite(residual)
    terms, gradient, report = density(
        model.kernel, x, residual, noise, gradient=torch.is_grad_enabled()
    )
    value = terms.total()
    if gradient is not None:
        value = gradient.attached(value, residual, noise)
    facts: Facts = {"solver": "cholesky", "jitter": report.relative}
    return Evidence(value, kind, terms._asdict(), report, facts)


class ExactMLL(Objective[ExactModel]):
    """Log marginal likelihood of an ``ExactGP`` with Gaussian noise.

    Exactness: exact. Cost and source: ``log_marginal_likelihood``.
    """

    batching = "full"
    takes_row_noise = True
    kind = "exact"
    models = (ExactModel,)
    made_for = "ExactGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self, model: ExactModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Log marginal likelihood in nats, in float64; parts are those of ``LogDensityTerms``."""
        return exact_evidence(model, x, y, self.kind, getattr(model, "row_noise", None))
