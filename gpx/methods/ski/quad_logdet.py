"""r^T A^{-1} r and log |A| of an interpolated matrix, by solves with random probes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DidNotConverge
from gpx.linalg import (
    CGResult,
    SolveReport,
    chebyshev_logdet,
    enough_degree,
    largest_eigenvalue,
    log_error,
    probe_vectors,
    with_gradient,
)
from gpx.linalg.stochastic_lanczos_quadrature import quadrature_of_solve
from gpx.linalg.trace import mean_and_error
from gpx.methods.ski.control_variate import control_variate, reduced
from gpx.methods.ski.gradients import logdet_gradient, quad_gradient
from gpx.methods.ski.probed_slopes import ProbedSlopes
from gpx.methods.ski.system import NEGLIGIBLE, SKISystem


class QuadLogdet(NamedTuple):
    """r^T A^{-1} r and log |A|, differentiable, with the latter's standard error.

    ``slopes`` are the standard error and the size of its gradient by the hyperparameters
    (``ProbedSlopes.error``); None where these were not asked for.
    """

    quad: Tensor
    logdet: Tensor
    logdet_error: Tensor
    report: SolveReport
    probes: int
    slopes: tuple[float, float] | None = None


class _Probed(NamedTuple):
    """Of probes xi: samples of log |Q^{-1} A| (L,), xi's rows, A^{-1} w and Q^{-1} w (n, L)."""

    samples: Tensor
    rows: Tensor
    solved: Tensor
    whitened: Tensor
    solve: CGResult


def quad_of(
    system: SKISystem, target: Tensor, *, tolerance: float, max_iterations: int
) -> tuple[Tensor, SolveReport]:
    """r^T A^{-1} r for target r (n,), differentiable.

    Raises:
        DidNotConverge: more than ``max_iterations`` steps.
    """
    solved = system.solve(target.detach().unsqueeze(1), tolerance, max_iterations)
    return _quad(system, target, solved), solved.report


def _quad(system: SKISystem, target: Tensor, solved: CGResult) -> Tensor:
    """From a solve whose first column is that of the target."""
    v = solved.solution[:, :1]
    # v^T r + v^T (r - A v): the value to second order in the residual
    value = (v * (target.detach().unsqueeze(1) + solved.residual[:, :1])).sum()
    if not _wants_gradient(system, target):
        return value
    return with_gradient(
        value, [target, *system.tensors], [2.0 * v[:, 0], *quad_gradient(system, v)]
    )


def _wants_gradient(system: SKISystem, *others: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (*system.tensors, *others))


def quad_logdet(
    system: SKISystem,
    target: Tensor,
    *,
    probes: int,
    generator: torch.Generator,
    tolerance: float,
    max_iterations: int,
    chebyshev: bool = False,
    least_probes: int = 0,
    accuracy: float = math.inf,
    most_probes: int = 0,
    hyperparameters: Sequence[Tensor] = (),
    enough_of_slopes: Callable[[float], float] = lambda _: math.inf,
) -> QuadLogdet:
    """r^T A^{-1} r for target r (n,), and log |A|.

    Next to no scatter where C carries the whole matrix. Where it does not, ``control_variate``
    about halves the standard error of the value.

    Args:
        probes: drawn at a time; always the same ones for the same state of the generator.
        chebyshev: take log |A| from polynomials of A, of the same probes.
        least_probes: in all, before the error is looked at.
        accuracy: standard error of log |A| at which no more probes are drawn.
        most_probes: in all.
        hyperparameters: those of kernel and noise, by which the error of the gradient is looked
            at, too, where a gradient is wanted.
        enough_of_slopes: size of that gradient -> its standard error at which no more are drawn.

    Raises:
        DidNotConverge: more than ``max_iterations`` steps, or an error that is NaN.
    """
    right = target.detach().unsqueeze(1)
    found: list[_Probed] = []
    slopes = None
    if _wants_gradient(system) and any(p.requires_grad for p in hyperparameters):
        slopes = ProbedSlopes(system, hyperparameters)
    drawn, wanted = 0, max(probes, least_probes)
    while drawn < wanted:
        own = right[:, : 0 if found else 1]
        found.append(_probed(system, own, probes, generator, tolerance, max_iterations))
        drawn += probes
        if slopes is not None:
            slopes.add(found[-1].solved, found[-1].whitened)
        if drawn >= wanted:
            rows = _joined(found, "rows")
            logdet, error = _mean(system, _joined(found, "samples"), rows)
            excess = [float(error) / accuracy]
            if slopes is not None:
                off, size = slopes.error()
                excess.append(off / enough_of_slopes(size))
            wanted = max(wanted, _enough(drawn, excess, most_probes - most_probes % probes))
    logdet = logdet + system.preconditioner.logdet()
    if chebyshev:
        logdet, error = _chebyshev(system, rows)
    first = found[0].solve
    quad = _quad(system, target, first)
    if slopes is not None:
        logdet = with_gradient(logdet, system.tensors, slopes.mean())
        return QuadLogdet(quad, logdet, error, first.report, drawn, slopes.error())
    if _wants_gradient(system):
        given = logdet_gradient(system, _joined(found, "solved"), _joined(found, "whitened"))
        logdet = with_gradient(logdet, system.tensors, given)
    return QuadLogdet(quad, logdet, error, first.report, drawn)


def _enough(drawn: int, excess: Sequence[float], most: int) -> int:
    """Probes at which standard errors are as asked for, if ``drawn`` have these times as much.

    Raises:
        DidNotConverge: one of them is NaN: no number of probes would tell anything.
    """
    if any(math.isnan(e) for e in excess):
        raise DidNotConverge(
            f"the log-determinant or its gradient has no finite standard error after {drawn} "
            "probes; the hyperparameters are at the edge of what floating-point numbers hold: "
            "start from other ones, or take smaller steps"
        )
    times = max(excess)
    if times <= 1.0:
        return drawn
    if times > math.sqrt(most / drawn):  # before squares of large numbers, which overflow
        return most
    return math.ceil(drawn * times**2)


@torch.no_grad()
def _probed(
    system: SKISystem,
    right: Tensor,
    probes: int,
    generator: torch.Generator,
    tolerance: float,
    max_iterations: int,
) -> _Probed:
    """Solves with right (n, c) and, after it, new probes."""
    q, (rows, columns) = system.preconditioner, right.shape
    xi = probe_vectors(
        rows + q.rank, probes, generator=generator, dtype=right.dtype, device=right.device
    )
    w = q.draws(xi)
    solved = system.solve(
        torch.cat([right, w], 1), tolerance, max_iterations, keep_preconditioned=True
    )
    assert solved.preconditioned is not None
    z = solved.preconditioned[:, columns:]
    # |xi|^2 of the probes as seen through Q^{-1/2} is w^T z
    scale, node = (w * z).sum(0), system.least_eigenvalue
    lower, upper = quadrature_of_solve(solved, scale, columns=columns, node=node)
    return _Probed(0.5 * (lower + upper), xi[:rows], solved.solution[:, columns:], z, solved)


def _joined(found: list[_Probed], name: str) -> Tensor:
    return torch.cat([getattr(part, name) for part in found], -1)


@torch.no_grad()
def _mean(system: SKISystem, samples: Tensor, xi: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of log |Q^{-1} A| over probes xi (n, L) and its error, by a control variate if need be.

    Not where the low-rank part leaves out little.
    """
    logdet, error = mean_and_error(samples)
    if system.part.complete or float(error) <= NEGLIGIBLE:
        return logdet, error
    control = control_variate_of(system, xi)
    return (logdet, error) if control is None else reduced(samples, control)


@torch.no_grad()
def control_variate_of(system: SKISystem, xi: Tensor) -> Tensor | None:
    """``control_variate`` at probes xi (n, L), (L,); None where the rest of K is unknown."""
    lags, threshold = system.covariance.lags(), system.part.threshold
    if lags is None or threshold is None:
        return None
    (gram,) = system.data.grams_by_lag(1)
    seen = system.weights_alone.mT.matmul(xi)
    return control_variate(lags.detach(), system.noise.detach(), gram, threshold, seen)


@torch.no_grad()
def _chebyshev(system: SKISystem, probes: Tensor) -> tuple[Tensor, Tensor]:
    """log |A| and its standard error, with the polynomial's; nothing is preconditioned."""
    product = system.multiply
    low, high = float(system.noise), largest_eigenvalue(product, probes)
    degree = enough_degree(low, high)
    found = chebyshev_logdet(product, probes, low=low, high=high, degree=degree)
    return found.value, found.standard_error + len(probes) * log_error(low, high, degree)
