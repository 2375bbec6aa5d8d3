"""Log density of the observed targets of several outputs, and its gradient in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityTerms
from gpx.inference.several_targets.observed import ObservedTargets
from gpx.linalg import CholeskyReport, inverse_from_factor, upper_solve, with_gradient


class OutputsGradient(NamedTuple):
    """Gradient of the log density of the targets of several outputs.

    Attributes:
        residual (n, p), noise (p,) or (n, p): with respect to y - m(x) and the noise variances.
        betweens (p, p), kernels: with respect to B_q and the parameters of k_q, of each q.
    """

    residual: Tensor
    noise: Tensor
    betweens: Sequence[Tensor]
    kernels: Sequence[KernelGradient]

    def attached(
        self, value: Tensor, residual: Tensor, noise: Tensor, betweens: Sequence[Tensor]
    ) -> Tensor:
        """``value`` () with this gradient."""
        inputs, gradients = (
            [residual, noise, *betweens],
            [self.residual, self.noise, *self.betweens],
        )
        for kernel in self.kernels:
            inputs += kernel.inputs()
            gradients += kernel.gradients()
        return with_gradient(value, inputs, gradients)


class TargetsCovariance(Protocol):
    """What ``targets_log_density`` needs of the covariance C of the observed targets."""

    targets: ObservedTargets

    def factor(self, noise: Tensor) -> tuple[Tensor, CholeskyReport]:
        """Upper factor U (N, N), U^T U = C (+ reported jitter), given noise (p,) or (n, p)."""

    def gradient(self, twice: Tensor, x: Tensor) -> tuple[list[Tensor], list[KernelGradient]]:
        """Gradients with respect to matrices between outputs, and to parameters of kernels.

        Args:
            twice (N, N): two times the gradient with respect to C; symmetric.
            x (n, d): the inputs, which may require a gradient.
        """


@torch.no_grad()
def targets_log_density(
    covariance: TargetsCovariance, x: Tensor, residual: Tensor, noise: Tensor, *, gradient: bool
) -> tuple[LogDensityTerms, OutputsGradient | None, CholeskyReport]:
    """log N(r; 0, C) of the observed targets, and its gradient.

    With a = C^{-1} r the derivative with respect to C is G = (a a^T - C^{-1}) / 2; 2 G is written
    over the factor, and ``covariance`` contracts it with the derivatives of C.

    Args:
        covariance: factorises C, and knows its derivatives.
        x (n, d), residual (n, p): NaN where a target is missing.
        noise (p,) or (n, p): variances of the outputs, or of every cell.
        gradient: whether to compute the gradient (two thirds of the work).

    Exactness: as ``log_marginal_likelihood``.
    Cost: N^3/3 multiply-adds for the value and N^3 with the gradient, for N targets, and what
    ``covariance`` takes; one N x N array.
    """
    targets = covariance.targets
    upper, report = covariance.factor(noise)
    known = residual.detach()[targets.rows, targets.outputs]
    alpha = upper_solve(upper, known.unsqueeze(1)).squeeze(1)
    terms = LogDensityTerms(
        fit=-0.5 * torch.dot(known, alpha).double(),
        complexity=-upper.diagonal().double().log().sum(),
        constant=upper.new_tensor(-0.5 * len(known) * LOG_TWO_PI, dtype=torch.float64),
    )
    if not gradient:
        return terms, None, report
    twice = inverse_from_factor(upper)
    torch.addr(twice, alpha, alpha, beta=-1.0, out=twice)
    if report.relative:  # the jitter is a multiple of the mean of C's diagonal
        twice.diagonal().add_(twice.diagonal().sum() * report.relative / len(known))
    of_targets = 0.5 * twice.diagonal()
    if noise.ndim == 1:
        each = [of_targets[targets.of_output(place)].sum() for place in range(len(noise))]
        of_noise = torch.stack(each)
    else:
        of_noise = torch.zeros_like(noise)
        of_noise[targets.rows, targets.outputs] = of_targets
    of_residual = torch.zeros_like(known.new_empty(residual.shape))
    of_residual[targets.rows, targets.outputs] = -alpha
    found = covariance.gradient(twice, x)
    return terms, OutputsGradient(of_residual, of_noise, *found), report
