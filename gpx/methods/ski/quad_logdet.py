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
from gpx.methods.ski.control_variate import control_variate, mean_with_control
from gpx.methods.ski.gradients import (
    carried_gradient,
    logdet_gradient,
    probed_gradients,
    quad_gradient,
)
from gpx.methods.ski.system import NEGLIGIBLE_TRACE, SKISystem


class QuadLogdet(NamedTuple):
    """r^T A^{-1} r and log |A|, differentiable, with the standard error of the latter.

    ``slopes`` are the standard error and the norm of the gradient of log |A| by the hyperparameters
    (``ProbedSlopes.error``); None if not requested.
    """

    quad: Tensor
    logdet: Tensor
    logdet_error: Tensor
    report: SolveReport
    probes: int
    slopes: tuple[float, float] | None = None


class _Probed(NamedTuple):
    """Results for probes xi: samples of log |Q^{-1} A| (L,), and A^{-1} w and Q^{-1} w (n, L)."""

    samples: Tensor
    rows: Tensor
    solved: Tensor
    whitened: Tensor
    solve: CGResult


def quadratic_form(
    system: SKISystem, target: Tensor, *, tolerance: float, max_iterations: int
) -> tuple[Tensor, SolveReport]:
    """r^T A^{-1} r for target r (n,), differentiable.

    Raises:
        DidNotConverge: more than ``max_iterations`` steps.
    """
    solved = system.solve(target.detach().unsqueeze(1), tolerance, max_iterations)
    return _quad(system, target, solved), solved.report


def _quad(system: SKISystem, target: Tensor, solved: CGResult) -> Tensor:
    """r^T A^{-1} r from a solve whose first column is that of the target."""
    v = solved.solution[:, :1]
    # v^T r + v^T (r - A v): the error is of second order in the residual
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
    gradient_error_target: Callable[[float], float] = lambda _: math.inf,
) -> QuadLogdet:
    """r^T A^{-1} r for target r (n,), and log |A|.

    The estimate hardly scatters if C carries nearly the whole matrix; otherwise
    ``control_variate`` about halves the standard error of the value.

    Args:
        probes: number drawn at a time; the same for the same state of the generator.
        chebyshev: compute log |A| from polynomials of A with the same probes.
        least_probes: fewest probes before the error is considered.
        accuracy: standard error of log |A| at which no more probes are drawn.
        most_probes: largest number of probes.
        hyperparameters: of kernel and noise; if a gradient is needed, its error by these is also
            considered.
        gradient_error_target: maps the norm of that gradient to the standard error at which no more
            probes are drawn.

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
        found.append(_solve_with_probes(system, own, probes, generator, tolerance, max_iterations))
        drawn += probes
        if slopes is not None:
            slopes.add(found[-1].solved, found[-1].whitened)
        if drawn >= wanted:
            rows = _joined(found, "rows")
            if chebyshev:
                logdet, error = _chebyshev(system, rows)
            else:
                logdet, error = _mean_logdet(system, _joined(found, "samples"), rows)
                logdet = logdet + system.preconditioner.logdet()
            excess = [float(error) / accuracy]
            if slopes is not None:
                off, size = slopes.error()
                excess.append(off / gradient_error_target(size))
            wanted = max(
                wanted, _num_probes_needed(drawn, excess, most_probes - most_probes % probes)
            )
    first = found[0].solve
    quad = _quad(system, target, first)
    if slopes is not None:
        logdet = with_gradient(logdet, system.tensors, slopes.mean())
        return QuadLogdet(quad, logdet, error, first.report, drawn, slopes.error())
    if _wants_gradient(system):
        given = logdet_gradient(system, _joined(found, "solved"), _joined(found, "whitened"))
        logdet = with_gradient(logdet, system.tensors, given)
    return QuadLogdet(quad, logdet, error, first.report, drawn)


def _num_probes_needed(drawn: int, excess: Sequence[float], most: int) -> int:
    """Number of probes that would reach the target errors.

    Args:
        drawn: probes so far.
        excess: their standard errors, divided by the targets.
        most: largest number of probes.

    Raises:
        DidNotConverge: an error is NaN.
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
    if times > math.sqrt(most / drawn):  # also keeps the square below from overflowing
        return most
    return math.ceil(drawn * times**2)


@torch.no_grad()
def _solve_with_probes(
    system: SKISystem,
    right: Tensor,
    probes: int,
    generator: torch.Generator,
    tolerance: float,
    max_iterations: int,
) -> _Probed:
    """Solve for right (n, c) and for new probes at once."""
    q, (rows, columns) = system.preconditioner, right.shape
    xi = probe_vectors(
        rows + q.rank, probes, generator=generator, dtype=right.dtype, device=right.device
    )
    w = q.draws(xi)
    solved = system.solve(
        torch.cat([right.mT, w.mT]).mT, tolerance, max_iterations, keep_preconditioned=True
    )
    assert solved.preconditioned is not None
    z = solved.preconditioned[:, columns:]
    # w^T z is the squared norm of Q^{-1/2} w
    scale, node = (w * z).sum(0), system.smallest_eigenvalue
    lower, upper = quadrature_of_solve(solved, scale, columns=columns, node=node)
    return _Probed(0.5 * (lower + upper), xi[:rows], solved.solution[:, columns:], z, solved)


def _joined(found: list[_Probed], name: str) -> Tensor:
    parts = [getattr(part, name) for part in found]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


@torch.no_grad()
def _mean_logdet(system: SKISystem, samples: Tensor, xi: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of log |Q^{-1} A| over probes xi (n, L) and its standard error.

    A control variate is used unless the low-rank part is complete or the error negligible.
    """
    logdet, error = mean_and_error(samples)
    if system.part.complete or float(error) <= NEGLIGIBLE_TRACE:
        return logdet, error
    control = control_variate_of(system, xi)
    return (logdet, error) if control is None else mean_with_control(samples, control)


@torch.no_grad()
def control_variate_of(system: SKISystem, xi: Tensor) -> Tensor | None:
    """``control_variate`` (L,) at probes xi (n, L); None if the rest of K is unknown."""
    lags, threshold = system.covariance.lags(), system.part.threshold
    if lags is None or threshold is None:
        return None
    (gram,) = system.data.grams_by_lag(1)
    seen = system.detached_weights.mT.matmul(xi)
    return control_variate(lags.detach(), system.noise.detach(), gram, threshold, seen)


@torch.no_grad()
def _chebyshev(system: SKISystem, probes: Tensor) -> tuple[Tensor, Tensor]:
    """log |A| by polynomials without preconditioning, and its error including the polynomial's."""
    product = system.multiply
    low, high = float(system.noise), largest_eigenvalue(product, probes)
    degree = enough_degree(low, high)
    found = chebyshev_logdet(product, probes, low=low, high=high, degree=degree)
    return found.value, found.standard_error + len(probes) * log_error(low, high, degree)


class ProbedSlopes:
    """Gradient of log |A| by ``system.tensors``, and its standard error by the hyperparameters.

    Args:
        system: A; the error does not include the gradient by a projection.
        parameters: of kernel and noise, as they are optimised.

    Cost: as ``logdet_gradient``, and for each probe a backward pass through the kernel's values at
    the lags of the grid.
    """

    def __init__(self, system: SKISystem, parameters: Sequence[Tensor]) -> None:
        self.system = system
        self._parameters = [p for p in parameters if p.requires_grad]
        self._carried = carried_gradient(system)
        self._sums = [torch.zeros_like(slope) for slope in self._carried]
        self._exact = self._by_parameter(self._carried)
        self._samples: list[Tensor] = []

    def add(self, u: Tensor, z: Tensor) -> None:
        """Add probes w, given as A^{-1} w and Q^{-1} w (n, L)."""
        for slopes in probed_gradients(self.system, u, z):
            torch._foreach_add_(self._sums, slopes)
            self._samples.append(self._by_parameter(slopes))

    def mean(self) -> list[Tensor]:
        """The gradient by ``system.tensors``."""
        count = len(self._samples)
        return [c + total / count for c, total in zip(self._carried, self._sums, strict=True)]

    def error(self) -> tuple[float, float]:
        """Euclidean norms of the standard error, and of the gradient, by the hyperparameters."""
        samples = torch.stack(self._samples)  # (L, p)
        errors = samples.std(0) / len(samples) ** 0.5
        error, size = torch.stack([errors.norm(), (self._exact + samples.mean(0)).norm()]).tolist()
        return error, size

    def _by_parameter(self, slopes: Sequence[Tensor]) -> Tensor:
        """Gradient by the hyperparameters (p,) from that by the covariance's tensors and noise."""
        given = [*self.system.covariance.tensors, self.system.noise]
        pairs = [pair for pair in zip(given, slopes, strict=False) if pair[0].requires_grad]
        found = torch.autograd.grad(
            [tensor for tensor, _ in pairs],
            self._parameters,
            [slope.reshape(tensor.shape) for tensor, slope in pairs],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.cat([slope.detach().double().flatten() for slope in found])
