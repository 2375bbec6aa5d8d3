"""Log marginal likelihood of an exact Gaussian process through one Cholesky factorisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.exact_solver import require_finite
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityGradient, LogDensityTerms
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import CholeskyReport, inverse_from_factor, upper_solve
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Kind, Objective
from gpx.methods.exact.by_autograd import log_density_again
from gpx.methods.exact.model import ExactModel, noisy_cholesky, row_blocks


def log_marginal_likelihood(
    kernel: Kernel, x: Tensor, residual: Tensor, noise: Tensor, *, gradient: bool
) -> tuple[LogDensityTerms, LogDensityGradient | None, CholeskyReport]:
    """log N(r; 0, K), K = k(x, x) + noise, a diagonal, and its gradient in closed form.

    With alpha = K^{-1} r the derivative with respect to K is G = (alpha alpha^T - K^{-1}) / 2. One
    n x n array is kept: the lower triangle of K, then its factor, then K^{-1}, all in place. G is
    contracted with the kernel's derivative in blocks of rows of the lower triangle.

    Args:
        x (n, d), residual (n,), noise () or (n,): inputs, y - m(x), noise variance of all rows or
            of each.
        gradient: whether to compute the gradient (two thirds of the work).

    Exactness: exact up to rounding; if jitter was needed, value and gradient are those of the
    matrix with that jitter. Second derivatives: ``log_density_again``.
    Cost: n^3/3 multiply-adds for the value, n^3 in all with the gradient; memory one n x n array.
    Raises: NotPositiveDefinite; ConfigError when the array does not fit.
    Source: Burt thesis, sections 1.1.1 and 1.3.
    """
    n = x.shape[0]
    with torch.no_grad():
        upper, report = noisy_cholesky(kernel, x.detach(), noise.detach())
        target = residual.detach()
        alpha = upper_solve(upper, target.unsqueeze(1)).squeeze(1)
        terms = LogDensityTerms(
            fit=-0.5 * torch.dot(target, alpha).double(),
            complexity=-upper.diagonal().double().log().sum(),
            constant=upper.new_tensor(-0.5 * n * LOG_TWO_PI, dtype=torch.float64),
        )
        if not gradient:
            return terms, None, report
        inverse = inverse_from_factor(upper)

        def twice_gradient(rows: slice, columns: slice) -> Tensor:
            return torch.addr(inverse[rows, columns], alpha[rows], alpha[columns], beta=-1.0)

        diagonal = 0.5 * (alpha.square() - inverse.diagonal())
        found = matrix_gradient(kernel, x, noise, -alpha, twice_gradient, diagonal, report)
        again = log_density_again(kernel, x, report.relative)
        return terms, found._replace(again=again), report


def matrix_gradient(
    kernel: Kernel,
    x: Tensor,
    noise: Tensor,
    residual: Tensor,
    twice_gradient: Callable[[slice, slice], Tensor],
    diagonal: Tensor,
    report: CholeskyReport,
) -> LogDensityGradient:
    """Gradient of a function of K = k(x, x) + noise (+ jitter), given G = d / dK.

    Args:
        kernel, x (n, d), noise () or (n,): define K.
        residual (n,): gradient with respect to the residuals.
        twice_gradient: rows, columns -> that block of 2 G (``KernelGradient.add_symmetric``).
        diagonal (n,): of G.
        report: of the factorisation of K.
    """
    n = x.shape[0]
    kernel_gradient, trace = KernelGradient(kernel, x), diagonal.sum()
    kernel_gradient.add_symmetric(row_blocks(n, n, x), twice_gradient)
    if report.relative:  # the jitter is a multiple of the mean of K's diagonal
        kernel_gradient.add_diagonal(slice(0, n), (trace * report.relative / n).expand(n))
    of_noise = (
        diagonal + trace * report.relative / n if noise.ndim else trace * (1.0 + report.relative)
    )
    return LogDensityGradient(residual, of_noise, kernel_gradient)


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
