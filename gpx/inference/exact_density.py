"""Log density of Gaussian targets under a kernel through one Cholesky factorisation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.backends.entries import call_with
from gpx.constants import LOG_TWO_PI
from gpx.errors import NotAvailable
from gpx.inference.dense_factor import noisy_cholesky, row_blocks
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityGradient, LogDensityTerms
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport, cholesky, inverse_from_factor, upper_solve


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


def log_density_again(kernel: Kernel, x: Tensor, jitter: float) -> Callable[..., Tensor]:
    """log N(r; 0, k(x, x) + noise) as a function of tensors, for second derivatives.

    In operations that autograd differentiates any way round, with several n x n arrays and their
    graph, where ``log_marginal_likelihood`` holds one.

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
