"""Log marginal likelihood with an expected error below a bound the user sets, in nats."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import (
    Lanczos,
    SolveReport,
    UnconvergedWarning,
    gauss,
    gauss_radau,
    probe_vectors,
    with_gradient,
)
from gpx.linalg.trace import mean_and_error
from gpx.models.base import Model
from gpx.models.exact import ExactGP
from gpx.models.exact_solver import require_finite
from gpx.models.noisy_kernel import NoisyKernel
from gpx.objectives.base import Evidence, Facts, Objective
from gpx.objectives.fixed_probes import FixedProbes
from gpx.objectives.iterative_mll import LOG_TWO_PI, IterativeGradient
from gpx.objectives.preconditioned_gradient import pull_back

NEGLIGIBLE_MODE = 1e-10
"""Eigenvalues of a probe's gradient matrix below this times the largest are left out."""

CANCELLATION = 16.0 * torch.finfo(torch.float64).eps
"""Relative rounding of the difference of two quadrature rules."""

Estimate = Literal["below", "middle"]
"""Which point of the bracket is the value: its lower end, or half-way."""


class BarelyBiasedTerms(NamedTuple):
    """Terms of the estimate, in nats.

    Attributes:
        fit: -r^T K^{-1} r / 2, low by at most ``fit_gap``.
        complexity: -log det K / 2, low in expectation by at most ``quadrature_gap``.
        constant: -n log(2 pi) / 2.
        fit_gap, quadrature_gap: widths of the brackets, by Gauss and Gauss-Radau rules for 1/x and
            (mean over the probes, halved) for log x.
        standard_error: of ``complexity``, from the scatter of the probes.

    With the estimate "middle" both terms stand half a width higher, and err by at most half.
    """

    fit: Tensor
    complexity: Tensor
    constant: Tensor
    fit_gap: Tensor
    quadrature_gap: Tensor
    standard_error: Tensor

    def value(self) -> Tensor:
        """The estimate of the log marginal likelihood."""
        return self.fit + self.complexity + self.constant

    def gap(self) -> Tensor:
        """Width of the bracket of the expected value."""
        return self.fit_gap + self.quadrature_gap


@dataclass(frozen=True)
class BarelyBiased:
    """The estimate and the Krylov bases its gradient needs.

    Attributes:
        terms, report: value, certified gaps, and whether the bias bound was met.
        bias_bound: nats; E[value] is at most this much below the log marginal likelihood, and
            never above it ("below"), or at most this much off ("middle").
        process: Lanczos columns of Q^{-1/2} K Q^{-1/2}: the probes, then Q^{-1/2} r.
        solution (n,), correction (n,): v ~ K^{-1} r and u = Q^{-1} (r - K v).
        share: of r^T Q^{-1} r / 2 that ``fit`` takes off: the gap it is known to, or half of that.
        probes (n, L): w.
    """

    terms: BarelyBiasedTerms
    report: SolveReport
    bias_bound: float
    process: Lanczos
    solution: Tensor
    correction: Tensor
    share: float
    probes: Tensor


def barely_biased_log_marginal_likelihood(
    system: NoisyKernel,
    residual: Tensor,
    probes: Tensor,
    *,
    bias: float,
    max_steps: int,
    estimate: Estimate = "below",
) -> BarelyBiased:
    """Run Lanczos for all probes and for r until the bracket is narrower than ``bias`` nats.

    A step is one product of up to L + 1 columns. The column of Q^{-1/2} r gives the solve: its
    Galerkin iterate is that of preconditioned conjugate gradients, with full reorthogonalisation.
    L probes cost L times as much as r, so they are allowed L / (L + 1) of the bias; whichever of
    the two is done first rests, and the other goes on until the sum is below the bound.

    The quadratic term is bracketed by the same rules as the determinant: with the node 1 below the
    spectrum, Gauss-Radau for 1/x lies above b^T A^{-1} b, and is tighter than r^T Q^{-1} r of the
    iterate by one to two orders of magnitude on ill-conditioned systems.

    Args:
        system: K and Q, products in float64.
        residual (n,): r = y - m(x).
        probes (n, L): w, with E[w w^T] = I.
        bias: epsilon in nats: E[value] <= log N(r; 0, K) <= E[value] + epsilon ("below"), or
            |E[value] - log N(r; 0, K)| <= epsilon ("middle": a bracket twice as wide will do).
        max_steps: most steps; when it stops the run the bound is void, which is reported and
            warned of (``UnconvergedWarning``), with the bound that was reached.

    Exactness: expected value within the bias bound reported.
    Cost: per step one product, 8 n (L + 1) t operations; memory n (L + 1) ``max_steps``.
    Source: Burt 2022, 4.6, with its residual bound of the quadratic term replaced by Golub and
    Meurant 1994.
    """
    q, count = system.preconditioner, probes.shape[1]
    target = residual.detach().double()
    length = torch.linalg.vector_norm(target)
    moving = bool(length > 0.0)
    starts = torch.cat([probes, q.inverse_root_matmul(target).unsqueeze(1)], 1)
    process = Lanczos(system.whitened, starts if moving else probes, max_steps)
    width = bias if estimate == "below" else 2.0 * bias
    allowed = width * count / (count + 1.0) if moving else width
    upper = lower = target.new_zeros(count)
    quadrature_gap = fit_gap = target.new_zeros(())
    solved = None if moving else Solve(torch.zeros_like(target), target, target, fit_gap)
    while True:
        before = process.steps
        process.extend(1 + before // 20)
        if process.columns.start == 0:
            upper, lower = _bracket(torch.log, process, slice(0, count), system.node)
            rounding = 0.5 * process.norms[:count].square() * system.rounding
            quadrature_gap = ((upper - lower).clamp(min=0.0) + rounding).mean()
        if solved is None:
            below, above = _bracket(torch.reciprocal, process, slice(count, None), system.node)
            fit_gap = ((above - below).clamp(min=0.0) + CANCELLATION * above).squeeze(0)
        met = float(quadrature_gap + fit_gap) <= width
        ended = bool(process.exhausted[process.columns].all())
        if met or ended or process.steps == process.capacity:
            break
        if process.columns == slice(0, count + 1):
            if float(quadrature_gap) <= allowed:
                process.narrow(slice(count, count + 1))
            elif float(fit_gap) <= width - allowed:
                solved = solve_of(system, process, count, target, fit_gap)
                fit_gap = solved.gap
                process.narrow(slice(0, count))
    if solved is None:
        solved = solve_of(system, process, count, target, fit_gap)
    v, r, u, fit_gap = solved
    residual_bound = float(0.5 * torch.dot(r, u))
    taken = 1.0 if estimate == "below" else 0.5
    mean, error = mean_and_error(upper - (1.0 - taken) * (upper - lower))
    terms = BarelyBiasedTerms(
        fit=-0.5 * torch.dot(v, target + r) - taken * fit_gap,
        complexity=-(mean + 0.5 * q.logdet()),
        constant=target.new_tensor(-0.5 * target.shape[0] * LOG_TWO_PI),
        fit_gap=fit_gap,
        quadrature_gap=quadrature_gap,
        standard_error=error,
    )
    bound = taken * float(terms.gap())
    share = taken * float(fit_gap) / residual_bound if residual_bound > 0.0 else 0.0
    capped = not met and not ended
    relative = float(torch.linalg.vector_norm(r) / length.clamp(min=torch.finfo(r.dtype).tiny))
    report = _report(bound, bias, process.steps, relative, capped)
    return BarelyBiased(terms, report, bound, process, v, u, share, probes)


def _bracket(
    function: Callable[[Tensor], Tensor], process: Lanczos, columns: slice, node: float
) -> tuple[Tensor, Tensor]:
    """Gauss and Gauss-Radau rules of ||w||^2 / 2 e_1^T f(T) e_1 for some columns, (c,) each."""
    alphas, betas = process.alphas[columns], process.betas[columns]
    scale = 0.5 * process.norms[columns].square()
    return (
        scale * gauss(function, alphas, betas),
        scale * gauss_radau(function, alphas, betas, node),
    )


class Solve(NamedTuple):
    """v ~ K^{-1} r (n,), r - K v (n,), Q^{-1} times it (n,); width of the bracket of r^T v / 2."""

    solution: Tensor
    residual: Tensor
    correction: Tensor
    gap: Tensor


def solve_of(
    system: NoisyKernel, process: Lanczos, column: int, target: Tensor, gap: Tensor
) -> Solve:
    """The Galerkin solve of a Lanczos column that is not at rest, and its gap in truth.

    ``gap`` bounds e^T A^{-1} e / 2 for the recurrence's whitened residual e. The true one differs
    by rounding, delta: sqrt(r^T K^{-1} r) <= sqrt(e^T A^{-1} e) + ||delta||. Never wider than
    r^T Q^{-1} r / 2.
    """
    q = system.preconditioner
    right = target.new_zeros(process.steps)
    right[0] = process.norms[column]
    coefficients = torch.linalg.solve(process.tridiagonal()[column], right)
    v = q.inverse_root_matmul(process.basis[column].mT @ coefficients)
    r = target - system.matmul(v)
    u = q.solve(r)
    last = process.betas[column, -1] * coefficients[-1] * process.following[column]
    rounding = torch.linalg.vector_norm(q.inverse_root_matmul(r) + last)
    drifted = 0.5 * ((2.0 * gap).sqrt() + rounding).square()
    return Solve(v, r, u, torch.minimum(drifted, 0.5 * torch.dot(r, u)))


def _report(bound: float, bias: float, steps: int, relative: float, capped: bool) -> SolveReport:
    met = bound <= 1.01 * bias  # the true residual may differ from the recurrence's by rounding
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
        warnings.warn(f"barely biased evidence: {reason}", UnconvergedWarning, stacklevel=3)
    return SolveReport(steps, relative, met, reason)


def quadrature_modes(process: Lanczos, column: int) -> tuple[Tensor, Tensor]:
    """Weights g (k,) and vectors A (t, k) with d(e_1^T log(T) e_1) = sum_k g_k a_k^T dT a_k.

    With T = V diag(tau) V^T the gradient matrix is V (Gamma o (q q^T)) V^T, q = V^T e_1, with the
    divided differences Gamma_ij = (log tau_i - log tau_j) / (tau_i - tau_j). Log is smooth, so few
    of its eigenvalues count; the others are left out, and fewer columns meet the kernel derivative.

    Source: sgpr_cglb_diagnostics 2.36.
    """
    nodes, vectors = torch.linalg.eigh(process.tridiagonal()[column])
    share = (nodes[:, None] - nodes) / nodes
    near = share.abs() < 1e-8
    ratio = torch.where(near, 1.0 - 0.5 * share, torch.log1p(share) / share.masked_fill(near, 1.0))
    first = vectors[0]
    matrix = vectors @ (ratio / nodes * torch.outer(first, first)) @ vectors.mT
    values, modes = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    keep = values.abs() > NEGLIGIBLE_MODE * values.abs().max()
    return values[keep], modes[:, keep]


def barely_biased_gradient(
    system: NoisyKernel, kernel: Kernel, x: Tensor, found: BarelyBiased
) -> IterativeGradient:
    """Gradient with the Krylov bases frozen, as a control variate against the exact part of Q.

    The fit is taken as -(v^T (r + r') + s r'^T Q^{-1} r') / 2 with r' = r - K v and the fixed share
    s at which that is its value. d Gauss = ||w||^2 <G, W^T dK W> with W = Q^{-1/2} U, plus the
    exact d log det Q, minus its estimate from the same probes. Its bias vanishes with the steps (at
    t = n the expectation is the exact gradient); that it is small for the steps the bias bound asks
    for is an observation.

    Cost: see ``pull_back``, with some tens of columns per probe.
    Source: sgpr_cglb_diagnostics 2.36 (sign and control variate corrected there).
    """
    q, process = system.preconditioner, found.process
    v, u, count = found.solution, found.correction, found.probes.shape[1]
    left, right = [0.5 * v + found.share * u], [v]
    for column in range(count):
        weights, modes = quadrature_modes(process, column)
        vectors = q.inverse_root_matmul(process.basis[column].mT @ modes)
        scaled = vectors * (weights * process.norms[column].square() / (-2.0 * count))
        left += list(scaled.unbind(1))
        right += list(vectors.unbind(1))
    pulled = pull_back(
        system,
        kernel,
        x,
        left=torch.stack(left, 1),
        right=torch.stack(right, 1),
        probes=q.inverse_root_matmul(found.probes),
        correction=found.share**0.5 * u,
    )
    return IterativeGradient(-(v + found.share * u), pulled)


class BarelyBiasedMLL(Objective):
    """Log marginal likelihood of an ``ExactGP`` whose expectation is within ``bias`` nats.

    Args:
        bias: epsilon, nats; 1 to 100 in the publication.
        estimate: "below" (the publication's) or "middle" of the bracket: fewer steps for the same
            bias, but not below the evidence in expectation.
        probes: L; one suffices for training, two or more give a standard error.
        kind_of_probes: "rademacher" or "gaussian".
        resample: as for ``IterativeMLL``.
        max_steps: cap on the Lanczos steps; a capped evaluation is flagged in ``report``.

    Exactness: an estimate whose expectation lies in [evidence - bias, evidence] ("below"), or
    [evidence - bias, evidence + bias] ("middle"), while ``report.converged``. Cost: see
    ``barely_biased_log_marginal_likelihood``.
    """

    batching = "full"
    kind = "estimate"
    models: ClassVar[tuple[type[Model], ...]] = (ExactGP,)
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(
        self,
        bias: float = 1.0,
        probes: int = 4,
        kind_of_probes: Literal["rademacher", "gaussian"] = "rademacher",
        resample: bool = True,
        max_steps: int = 200,
        estimate: Estimate = "below",
    ) -> None:
        super().__init__()
        if not (bias > 0.0 and math.isfinite(bias)):
            raise ConfigError(f"bias={bias}: expected a positive number of nats")
        if probes < 1 or max_steps < 1:
            raise ConfigError(f"probes={probes} and max_steps={max_steps} must be at least 1")
        if kind_of_probes not in ("rademacher", "gaussian"):
            raise ConfigError(f"kind_of_probes={kind_of_probes}: expected rademacher or gaussian")
        if estimate not in get_args(Estimate):
            raise ConfigError(f"estimate={estimate}: expected below or middle")
        self.bias, self.probes, self.max_steps = bias, probes, max_steps
        self.estimate: Estimate = estimate
        self.kind_of_probes = kind_of_probes
        self.draws = FixedProbes(resample)

    def prepare(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Choose the fixed probes of the run."""
        self.draws.prepare(generator)

    def evidence(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Estimate in nats, in float64; parts are those of ``BarelyBiasedTerms``."""
        self.check(model)
        assert isinstance(model, ExactGP)
        assert isinstance(model.likelihood, Gaussian)
        residual = y - model.mean(x)
        require_finite(residual)
        noise = model.likelihood.noise_variance
        with torch.no_grad():
            system = NoisyKernel(model.kernel, x, noise, model.iterative, exact_products=True)
            w = probe_vectors(
                x.shape[0],
                self.probes,
                kind=self.kind_of_probes,
                generator=self.draws.generator(x.device, generator),
                device=x.device,
            )
            found = barely_biased_log_marginal_likelihood(
                system,
                residual,
                w,
                bias=self.bias,
                max_steps=self.max_steps,
                estimate=self.estimate,
            )
        value = found.terms.value()
        if torch.is_grad_enabled():
            gradient = barely_biased_gradient(system, model.kernel, x, found)
            value = with_gradient(
                value,
                [residual, noise, *gradient.pulled.inputs],
                [
                    gradient.residual.to(residual.dtype),
                    gradient.pulled.noise.to(noise.dtype),
                    *gradient.pulled.gradients,
                ],
            )
        facts: Facts = {
            "solver": "barely_biased",
            "products": system.backend,
            "preconditioner_rank": system.factor.shape[0],
            "solver_iterations": found.report.iterations,
            "solver_converged": found.report.converged,
            "columns_multiplied": found.process.multiplied + 1,
            "bias_bound": found.bias_bound,
        }
        return Evidence(value, self.kind, found.terms._asdict(), found.report, facts)
