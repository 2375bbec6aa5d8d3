"""Stochastic Lanczos quadrature: tr f(K), and log det K, with error bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg.conjugate_gradients import CGResult
from gpx.linalg.lanczos import Lanczos, tridiagonal_of_cg
from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.quadrature import gauss, gauss_radau
from gpx.linalg.trace import mean_and_error

STEPS_PER_CHECK = 5
"""Lanczos steps between two checks whether the bracket is narrow enough."""


@dataclass(frozen=True)
class QuadratureEstimate:
    """tr f(K) from L probes and t Lanczos steps: two kinds of error, kept apart.

    For users of the package, as the two functions that return it.

    Attributes:
        value (): mean over the probes of the middle of the bracket (of the Gauss rule alone when
            there is no node).
        standard_error (): from the scatter of the probes; no number of steps removes it.
        bracket: mean over the probes of the Gauss-Radau and the Gauss rule, (lower, upper) for
            f = log: the exact mean for these probes lies between. Equal when there is no node.
            No number of probes narrows it.
        gauss (L,), radau (L,): per probe, without any log det Q.
        steps: t.
        converged: whether the bracket met the width asked for (True when none was asked for).
    """

    value: Tensor
    standard_error: Tensor
    bracket: tuple[Tensor, Tensor]
    gauss: Tensor
    radau: Tensor
    steps: int
    converged: bool

    def interval(self, deviations: float = 2.0) -> tuple[Tensor, Tensor]:
        """The bracket widened by ``deviations`` standard errors on both sides."""
        margin = deviations * self.standard_error
        return self.bracket[0] - margin, self.bracket[1] + margin


def stochastic_lanczos_quadrature(
    matmul: Callable[[Tensor], Tensor],
    function: Callable[[Tensor], Tensor],
    probes: Tensor,
    *,
    steps: int = 20,
    node: float | None = None,
    width: float | None = None,
) -> QuadratureEstimate:
    """tr f(K) for symmetric K as the mean of w^T f(K) w over the probes w.

    For users of the package: models take the quadrature from a solve (``quadrature_of_solve``).

    Args:
        matmul: (n, L) -> K times it.
        function: f, elementwise on eigenvalues.
        probes (n, L): of ``probe_vectors``, E[w w^T] = I.
        steps: largest number of Lanczos steps t.
        node: lower bound of K's spectrum, for the Gauss-Radau end of the bracket.
        width: stop early once the bracket is this narrow, checked every few steps; needs ``node``.
            ``converged`` says whether it was reached.

    Exactness: the Gauss rule is biased upwards for f = log, the Gauss-Radau rule downwards; both
    become exact with the steps.
    Cost: t products with L columns, 8 n L t^2 / 2 for the orthogonalisation; memory n L t.
    Source: Burt thesis, section 4.1.5.
    """
    if width is not None and node is None:
        raise ConfigError(
            "a width without a node cannot be judged: give a lower bound of the spectrum "
            "(the noise variance, or 1 with a preconditioner below the kernel)"
        )
    process = Lanczos(matmul, probes, steps)
    converged = width is None
    while True:
        before = process.steps
        process.extend(STEPS_PER_CHECK if width is not None else steps)
        scale = process.norms.square()
        upper = scale * gauss(function, process.alphas, process.betas)
        if node is None:
            lower = upper
        else:
            lower = scale * gauss_radau(function, process.alphas, process.betas, node)
        if width is None:
            break
        converged = bool((upper - lower).mean().abs() <= width)
        if converged or process.steps in (before, process.capacity):
            break
    value, error = mean_and_error(0.5 * (upper + lower))
    bracket = (lower.mean(), upper.mean())
    return QuadratureEstimate(value, error, bracket, upper, lower, process.steps, converged)


def logdet_quadrature(
    matmul: Callable[[Tensor], Tensor],
    probes: Tensor,
    *,
    steps: int = 20,
    node: float | None = None,
    preconditioner: Preconditioner | None = None,
    width: float | None = None,
) -> QuadratureEstimate:
    """log det K in nats; with a preconditioner log det Q + log det (R^{-1} K R^{-T}).

    For users of the package.

    Args:
        node: lower bound of K's spectrum (the noise variance). With a preconditioner that is below
            the kernel it defaults to 1, the bound of the preconditioned spectrum; with another
            preconditioner it is the bound of that spectrum or None.
        Others: as for ``stochastic_lanczos_quadrature``; ``width`` in nats.

    Raises:
        NotPositiveDefinite: a Ritz value below the node (it is no lower bound).

    Source: Burt thesis, section 4.1.5.
    """
    if preconditioner is None:
        return stochastic_lanczos_quadrature(
            matmul, torch.log, probes, steps=steps, node=node, width=width
        )
    if node is None and preconditioner.below_kernel:
        node = 1.0
    q = preconditioner

    def whitened(vectors: Tensor) -> Tensor:
        return q.inverse_root_matmul(matmul(q.inverse_root_matmul(vectors, transpose=True)))

    found = stochastic_lanczos_quadrature(
        whitened, torch.log, probes, steps=steps, node=node, width=width
    )
    offset = q.logdet()
    return QuadratureEstimate(
        found.value + offset,
        found.standard_error,
        (found.bracket[0] + offset, found.bracket[1] + offset),
        found.gauss,
        found.radau,
        found.steps,
        found.converged,
    )


def quadrature_of_solve(
    solved: CGResult, scale: Tensor, *, columns: int = 0, node: float | None = None
) -> tuple[Tensor, Tensor]:
    """Brackets of xi^T log(R^{-1} K R^{-T}) xi, from a solve whose last columns were probes R xi.

    Their mean over the probes, plus log det Q, estimates log det K without a further product.

    Args:
        solved: result of conjugate gradients with the preconditioner Q = R R^T, from zero.
        scale (L,): |xi|^2 of the probes, or half of that for half of the logarithm.
        columns: right-hand sides before the probes.
        node: lower bound of the preconditioned spectrum; None for none.

    Returns:
        lower and upper end (L,) each, equal where there is no node.

    Raises:
        NotPositiveDefinite: a Ritz value below the node (it is no lower bound).

    Source: Burt thesis, sections 4.1.4 and 4.1.5.
    """
    # small eigenproblems and recurrences are faster on the host: one transfer
    steps, ratios = torch.stack([solved.step_sizes, solved.ratios]).cpu()
    found = tridiagonal_of_cg(replace(solved, step_sizes=steps, ratios=ratios))
    alphas, betas = (part[columns:].cpu() for part in found)
    upper = gauss(torch.log, alphas, betas)
    lower = upper if node is None else gauss_radau(torch.log, alphas, betas, node)
    lower, upper = scale * torch.stack([lower, upper]).to(scale)
    return lower, upper
