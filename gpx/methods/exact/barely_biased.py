"""Evidence and its gradient from a Krylov space that is grown until the bias bound is met."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.log_density import LogDensityGradient
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.kernels.base import Kernel
from gpx.linalg import BlockLanczos, SolveReport, UnconvergedWarning, block_gauss, block_radau
from gpx.linalg.trace import mean_and_error
from gpx.methods.exact.iterative_mll import IterativeTerms
from gpx.methods.exact.preconditioned_gradient import preconditioned_gradient
from gpx.warned_line import users_line

NEGLIGIBLE_MODE = 1e-10
"""Eigenvalues of the gradient matrix below this fraction of the largest are dropped."""

CANCELLATION_ERROR = 16.0 * torch.finfo(torch.float64).eps
"""Relative rounding error of the difference of two quadrature rules."""

Estimate = Literal["below", "middle"]
"""Which point of the bracket is the estimate: its lower end or its centre."""


@dataclass(frozen=True)
class BarelyBiased:
    """The estimate and the Krylov space that its gradient needs.

    Attributes:
        terms, report: value, certified gaps, and whether the bias bound was met.
        bias_bound: nats; E[value] is at most this much below the log marginal likelihood, and
            never above it ("below"), or at most this much off ("middle").
        process: space of Q^{-1/2} K Q^{-1/2} started at the probes and at Q^{-1/2} r.
        solution (n,), correction (n,): v ~ K^{-1} r and u = Q^{-1} (r - K v).
        share: fraction of r^T Q^{-1} r / 2 that was subtracted from ``fit``.
        probes (n, L): w.
    """

    terms: IterativeTerms
    report: SolveReport
    bias_bound: float
    process: BlockLanczos
    solution: Tensor
    correction: Tensor
    share: float
    probes: Tensor


def barely_biased_log_marginal_likelihood(
    system: PreconditionedKernel,
    residual: Tensor,
    probes: Tensor,
    *,
    bias: float,
    max_steps: int,
    estimate: Estimate = "below",
) -> BarelyBiased:
    """Grow the Krylov space of all probes and of r until the bracket is narrower than ``bias``.

    All start vectors share one space: a step is one product of L + 1 columns, and each term is the
    Galerkin value in the whole space. L probes cost L times as much as r, so they are allowed
    L / (L + 1) of the bias; once they are within it, only r is extended until the sum is below the
    bound.

    The quadratic term is bracketed by the same rules as the determinant: with the node 1 below the
    spectrum, Gauss-Radau for 1/x is an upper bound of b^T A^{-1} b, which on ill-conditioned
    systems is tighter than r^T Q^{-1} r of the iterate by one to two orders of magnitude.

    Args:
        system: K and Q, products in float64.
        residual (n,): r = y - m(x).
        probes (n, L): w, with E[w w^T] = I.
        bias: epsilon in nats: E[value] <= log N(r; 0, K) <= E[value] + epsilon ("below"), or
            |E[value] - log N(r; 0, K)| <= epsilon ("middle": a bracket twice as wide suffices).
        max_steps: most steps; if they do not suffice, an ``UnconvergedWarning`` and the report
            state the bound that was reached.

    Exactness: the expectation is within ``bias_bound`` of the result.
    Cost: t products (columns) in all, 8 n t^2 operations, a few eigenproblems of size t; memory
    n t, at most n (L + 1) ``max_steps``.
    Source: Burt thesis, section 4.6, with a block process in place of its separate ones and a
    Gauss-Radau rule (Golub and Meurant 2010, chapter 6) for its residual bound of the fit.
    """
    q, count = system.preconditioner, probes.shape[1]
    target = residual.detach().double()
    starts = torch.cat([probes, q.inverse_root_matmul(target).unsqueeze(1)], 1)
    process = BlockLanczos(system.whitened, starts, (count + 1) * max_steps)
    width = bias if estimate == "below" else 2.0 * bias
    allowed = width * count / (count + 1.0)
    probes_done, steps, schedule = False, 0, BracketSchedule(width)
    upper, widths, fit_gap = probes.new_empty(0), probes.new_empty(0), target.new_zeros(())
    while True:
        before = process.size
        for _ in range(schedule.steps(process, max_steps - steps)):
            steps += int(process.extend(_residual(process) if probes_done else None))
        if not probes_done:  # needs eigenproblems; the rule for r is cheap
            upper, widths = _quadrature(system, process, count)
        fit_gap = _fit_gap(system, process)
        gap = float(widths.mean() + fit_gap)
        if gap <= width or process.size == before or process.exhausted or steps >= max_steps:
            break
        probes_done = probes_done or float(widths.mean()) <= allowed
        schedule.note(process, gap, 1 if probes_done else count + 1)
    if probes_done:
        upper, widths = _quadrature(system, process, count)
    v, r, u, fit_gap = galerkin_solve(system, process, target, fit_gap)
    residual_bound = float(0.5 * torch.dot(r, u))
    fraction = 1.0 if estimate == "below" else 0.5
    mean, error = mean_and_error(upper - (1.0 - fraction) * widths)
    terms = IterativeTerms(
        fit=-0.5 * torch.dot(v, target + r) - fraction * fit_gap,
        complexity=-(mean + 0.5 * q.logdet()),
        constant=target.new_tensor(-0.5 * target.shape[0] * LOG_TWO_PI),
        fit_gap=fit_gap,
        quadrature_gap=widths.mean(),
        standard_error=error,
    )
    bound = fraction * float(terms.fit_gap + terms.quadrature_gap)
    share = fraction * float(fit_gap) / residual_bound if residual_bound > 0.0 else 0.0
    length = torch.linalg.vector_norm(target).clamp(min=torch.finfo(target.dtype).tiny)
    capped = gap > width and not process.exhausted
    relative = float(torch.linalg.vector_norm(r) / length)
    report = _report(bound, bias, steps, relative, capped)
    return BarelyBiased(terms, report, bound, process, v, u, share, probes)


class BracketSchedule:
    """Decides after how many steps the brackets are computed again.

    Computing them costs eigenproblems of the size of the space. Their widths fall about
    geometrically with the number of products, so the next evaluation is placed at 70 % of the steps
    that the last two predict are needed.
    """

    def __init__(self, width: float) -> None:
        self._width = width
        self._last: tuple[int, float] | None = None
        self._next = 1

    def note(self, process: BlockLanczos, gap: float, columns: int) -> None:
        """Record a width and plan the next evaluation, at ``columns`` products a step."""
        now = (process.multiplied, math.log(gap / self._width))
        self._next = 1
        if self._last is not None and now[1] < self._last[1]:
            rate = (self._last[1] - now[1]) / (now[0] - self._last[0])
            self._next = int(0.7 * now[1] / rate / columns)
        # do not extrapolate far beyond the steps made so far
        self._next = max(1, min(self._next, 1 + process.size // (4 * columns)))
        self._last = now

    def steps(self, process: BlockLanczos, left: int) -> int:
        """Steps to the next evaluation of the brackets, at most ``left``."""
        return min(self._next, left) if process.size else 1


def _quadrature(
    system: PreconditionedKernel, process: BlockLanczos, count: int
) -> tuple[Tensor, Tensor]:
    """Upper bounds of w^T log(A) w / 2 (L,), and widths of their brackets (L,)."""
    coefficients = process.coefficients[:, :count]
    extended = block_radau(process.projected, process.couplings, system.node)
    upper = 0.5 * block_gauss(torch.log, process.projected, coefficients)
    lower = 0.5 * block_gauss(torch.log, extended, coefficients)
    rounding = 0.5 * system.rounding * coefficients.square().sum(0)
    return upper, (upper - lower).clamp(min=0.0) + rounding


def _residual(process: BlockLanczos) -> Tensor:
    """Residual (b,) of the solve for the last start vector, as candidate coefficients."""
    return process.couplings.mT @ _solution(process)


def _solution(process: BlockLanczos) -> Tensor:
    """Galerkin solution (t,) for the last start vector, in the basis."""
    return torch.linalg.solve(process.projected, _last_start(process, process.size))


def _fit_gap(system: PreconditionedKernel, process: BlockLanczos) -> Tensor:
    """Width of the bracket of b^T A^{-1} b / 2 for the last start vector b."""
    below, above = (
        0.5 * torch.dot(right, torch.linalg.solve(matrix, right))
        for matrix in (
            process.projected,
            block_radau(process.projected, process.couplings, system.node),
        )
        for right in [_last_start(process, matrix.shape[0])]
    )
    return (above - below).clamp(min=0.0) + CANCELLATION_ERROR * above


def _last_start(process: BlockLanczos, size: int) -> Tensor:
    """Coefficients (size,) of the last start vector in the basis."""
    last = process.coefficients[:, -1]
    return torch.nn.functional.pad(last, (0, size - last.shape[0]))


class Solve(NamedTuple):
    """v ~ K^{-1} r (n,), r - K v (n,), Q^{-1} (r - K v) (n,), and the gap of r^T v / 2."""

    solution: Tensor
    residual: Tensor
    correction: Tensor
    gap: Tensor


def galerkin_solve(
    system: PreconditionedKernel, process: BlockLanczos, target: Tensor, gap: Tensor
) -> Solve:
    """The Galerkin solve for the last start vector, with a gap that covers rounding.

    ``gap`` bounds e^T A^{-1} e / 2 for the whitened residual e of the process. The true residual
    differs by rounding, delta: sqrt(r^T K^{-1} r) <= sqrt(e^T A^{-1} e) + ||delta||. The gap
    returned is at most r^T Q^{-1} r / 2.
    """
    q = system.preconditioner
    weights = _solution(process)
    v = q.inverse_root_matmul(process.basis.mT @ weights)
    r = target - system.matmul(v)
    u = q.solve(r)
    process_residual = -process.candidates @ (process.couplings.mT @ weights)
    rounding = torch.linalg.vector_norm(q.inverse_root_matmul(r) - process_residual)
    with_rounding = 0.5 * ((2.0 * gap).sqrt() + rounding).square()
    return Solve(v, r, u, torch.minimum(with_rounding, 0.5 * torch.dot(r, u)))


def _report(bound: float, bias: float, steps: int, relative: float, capped: bool) -> SolveReport:
    met = bound <= 1.01 * bias  # the true residual may differ from the process's by rounding
    if met:
        reason = f"converged: bias at most {bound:.3g} of {bias:.3g} nats"
    elif capped:
        reason = (
            f"{steps} steps were not enough: bias at most {bound:.3g} nats against {bias:.3g}"
            " asked for; allow more steps, a preconditioner of higher rank, or a larger bias"
        )
    else:
        reason = (
            f"the bias is at most {bound:.3g} nats after {steps} steps against {bias:.3g} asked "
            "for: rounding allows no less; raise the noise variance, or ask for a larger bias"
        )
    if not met:
        warnings.warn(
            f"barely biased evidence: {reason}", UnconvergedWarning, stacklevel=users_line()
        )
    return SolveReport(steps, relative, met, reason)


def quadrature_modes(projected: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Weights g (k,) and vectors A (t, k): sum_l d(e_l^T log(T) e_l) = sum_k g_k a_k^T dT a_k.

    With T = V diag(tau) V^T (t, t) and G = V^T R, R (c0, c) the coefficients of the starts, the
    gradient matrix is V (Gamma o G G^T) V^T with the divided differences Gamma_ij = (log tau_i -
    log tau_j) / (tau_i - tau_j). Since log is smooth, most of its eigenvalues are negligible and
    dropped, which leaves fewer columns for the kernel derivative.

    Source: Burt thesis, section 4.6 (sign corrected); Daleckii and Krein 1965.
    """
    nodes, vectors = torch.linalg.eigh(projected)
    share = (nodes[:, None] - nodes) / nodes
    near = share.abs() < 1e-8
    ratio = torch.where(near, 1.0 - 0.5 * share, torch.log1p(share) / share.masked_fill(near, 1.0))
    inside = vectors[: coefficients.shape[0]].mT @ coefficients
    matrix = vectors @ (ratio / nodes * (inside @ inside.mT)) @ vectors.mT
    values, modes = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    keep = values.abs() > NEGLIGIBLE_MODE * values.abs().max()
    return values[keep], modes[:, keep]


def barely_biased_gradient(
    system: PreconditionedKernel, kernel: Kernel, x: Tensor, found: BarelyBiased
) -> LogDensityGradient:
    """Gradient with the Krylov basis held fixed and the exact gradient of Q as control variate.

    The fit is written as -(v^T (r + r') + s r'^T Q^{-1} r') / 2 with r' = r - K v and s the fixed
    ``share``. d Gauss = <M, W^T dK W> with W = Q^{-1/2} S, plus the exact d log det Q, minus its
    estimate from the same probes. The bias vanishes with the steps (at t = n the expectation is the
    exact gradient); no bound on it is known for fewer steps, but it was small in experiments.

    Cost: see ``preconditioned_gradient``, with some tens of columns per probe.
    Source: Burt thesis, section 4.6 (sign corrected), with the control variate of section 4.1.3.
    """
    q, process = system.preconditioner, found.process
    v, u, count = found.solution, found.correction, found.probes.shape[1]
    weights, modes = quadrature_modes(process.projected, process.coefficients[:, :count])
    vectors = q.inverse_root_matmul(process.basis.mT @ modes)
    return preconditioned_gradient(
        system,
        kernel,
        x,
        left=torch.cat(
            [(0.5 * v + found.share * u).unsqueeze(1), vectors * (weights / (-2.0 * count))], 1
        ),
        right=torch.cat([v.unsqueeze(1), vectors], 1),
        probes=q.inverse_root_matmul(found.probes),
        correction=found.share**0.5 * u,
        residual=-(v + found.share * u),
    )
