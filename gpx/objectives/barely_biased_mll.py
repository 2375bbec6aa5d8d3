"""Log marginal likelihood with an expected error below a bound the user sets, in nats."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

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


class BarelyBiasedTerms(NamedTuple):
    """Terms of the estimate, in nats.

    Attributes:
        fit: -r^T K^{-1} r / 2, low by at most ``fit_gap``.
        complexity: -log det K / 2 by the Gauss rule, low in expectation by at most
            ``quadrature_gap``.
        constant: -n log(2 pi) / 2.
        fit_gap: r^T Q^{-1} r / 2 of the solve's residual.
        quadrature_gap: mean over the probes of the Gauss minus the Gauss-Radau rule, halved.
        standard_error: of ``complexity``, from the scatter of the probes.
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

    def bias_bound(self) -> Tensor:
        """E[value] is at most this much below the log marginal likelihood, and never above it."""
        return self.fit_gap + self.quadrature_gap


@dataclass(frozen=True)
class BarelyBiased:
    """The estimate and the Krylov bases its gradient needs.

    Attributes:
        terms, report: value, certified gaps, and whether the bias bound was met.
        process: Lanczos columns of Q^{-1/2} K Q^{-1/2}: the probes, then Q^{-1/2} r.
        solution (n,), correction (n,): v ~ K^{-1} r and u = Q^{-1} (r - K v).
        probes (n, L): w.
    """

    terms: BarelyBiasedTerms
    report: SolveReport
    process: Lanczos
    solution: Tensor
    correction: Tensor
    probes: Tensor


def barely_biased_log_marginal_likelihood(
    system: NoisyKernel, residual: Tensor, probes: Tensor, *, bias: float, max_steps: int
) -> BarelyBiased:
    """Run Lanczos for all probes and for r until the bracket is narrower than ``bias`` nats.

    Every step is one product of L + 1 columns. The column of Q^{-1/2} r gives the solve: its
    Galerkin iterate is that of preconditioned conjugate gradients, with full reorthogonalisation.

    Args:
        system: K and Q, products in float64.
        residual (n,): r = y - m(x).
        probes (n, L): w, with E[w w^T] = I.
        bias: epsilon in nats: E[value] <= log N(r; 0, K) <= E[value] + epsilon.
        max_steps: most steps; when it stops the run the bound is void, which is reported and
            warned of (``UnconvergedWarning``), with the gap that was reached.

    Exactness: expected value within the bias bound reported.
    Cost: per step one product, 8 n (L + 1) t operations; memory n (L + 1) ``max_steps``.
    Source: sgpr_cglb_diagnostics 2.36; Burt 2022, 4.6.
    """
    q = system.preconditioner
    count, n = probes.shape[1], probes.shape[0]
    target = residual.detach().double()
    length = torch.linalg.vector_norm(target)
    moving = bool(length > 0.0)
    starts = torch.cat([probes, q.inverse_root_matmul(target).unsqueeze(1)], 1)
    process = Lanczos(system.whitened, starts if moving else probes, max_steps)
    scale = process.norms[:count].square()
    coefficients = target.new_zeros(1)
    fit_gap = target.new_zeros(())
    while True:
        before = process.steps
        process.extend(1 + before // 10)
        alphas, betas = process.alphas, process.betas
        upper = 0.5 * scale * gauss(torch.log, alphas[:count], betas[:count])
        lower = 0.5 * scale * gauss_radau(torch.log, alphas[:count], betas[:count], system.node)
        quadrature_gap = (upper - lower).mean()
        if moving:
            right = target.new_zeros(process.steps)
            right[0] = process.norms[count]
            coefficients = torch.linalg.solve(process.tridiagonal()[count], right)
            fit_gap = 0.5 * (betas[count, -1] * coefficients[-1]).square()
        gap = float(quadrature_gap + fit_gap)
        met = gap <= bias
        if met or process.steps in (before, process.capacity):
            break
    if moving:
        v = q.inverse_root_matmul(process.basis[count].mT @ coefficients)
    else:
        v = torch.zeros_like(target)
    r = target - system.matmul(v)  # the true residual, whatever the recurrence says
    u = q.solve(r)
    fit_gap = 0.5 * torch.dot(r, u)
    mean, error = mean_and_error(upper)
    terms = BarelyBiasedTerms(
        fit=-0.5 * torch.dot(v, target + r) - fit_gap,
        complexity=-(mean + 0.5 * q.logdet()),
        constant=target.new_tensor(-0.5 * n * LOG_TWO_PI),
        fit_gap=fit_gap,
        quadrature_gap=quadrature_gap,
        standard_error=error,
    )
    report = _report(terms, process, r, length, bias)
    return BarelyBiased(terms, report, process, v, u, probes)


def _report(
    terms: BarelyBiasedTerms, process: Lanczos, r: Tensor, length: Tensor, bias: float
) -> SolveReport:
    gap = float(terms.bias_bound())
    met = gap <= 1.01 * bias  # the true residual may differ from the recurrence's by rounding
    relative = float(torch.linalg.vector_norm(r) / length.clamp(min=torch.finfo(r.dtype).tiny))
    if met:
        reason = f"converged: bias at most {gap:.3g} of {bias:.3g} nats"
    elif process.steps < process.capacity:
        reason = (
            f"the Krylov spaces ended after {process.steps} steps with a bias bound of {gap:.3g} "
            f"nats against {bias:.3g}: rounding allows no less"
        )
    else:
        reason = (
            f"{process.steps} steps were not enough: bias at most {gap:.3g} nats against {bias:.3g}"
            " asked for; allow more steps, a preconditioner of higher rank, or a larger bias"
        )
    if not met:
        warnings.warn(f"barely biased evidence: {reason}", UnconvergedWarning, stacklevel=3)
    return SolveReport(process.steps, relative, met, reason)


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

    d Gauss = ||w||^2 <G, W^T dK W> with W = Q^{-1/2} U, plus the exact d log det Q, minus its
    estimate from the same probes. Its bias vanishes with the steps (at t = n the expectation is the
    exact gradient); that it is small for the steps the bias bound asks for is an observation.

    Cost: see ``pull_back``, with some tens of columns per probe.
    Source: sgpr_cglb_diagnostics 2.36 (sign and control variate corrected there).
    """
    q, process = system.preconditioner, found.process
    v, u, count = found.solution, found.correction, found.probes.shape[1]
    left, right = [0.5 * v + u], [v]
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
        correction=u,
    )
    return IterativeGradient(-(v + u), pulled)


class BarelyBiasedMLL(Objective):
    """Log marginal likelihood of an ``ExactGP`` whose expectation is within ``bias`` nats.

    Args:
        bias: epsilon, nats; 1 to 100 in the publication.
        probes: L; one suffices for training, two or more give a standard error.
        kind_of_probes: "rademacher" or "gaussian".
        resample: as for ``IterativeMLL``.
        max_steps: cap on the Lanczos steps; a capped evaluation is flagged in ``report``.

    Exactness: an estimate whose expectation lies in [evidence - bias, evidence] while
    ``report.converged``. Cost: see ``barely_biased_log_marginal_likelihood``.
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
    ) -> None:
        super().__init__()
        if not (bias > 0.0 and math.isfinite(bias)):
            raise ConfigError(f"bias={bias}: expected a positive number of nats")
        if probes < 1 or max_steps < 1:
            raise ConfigError(f"probes={probes} and max_steps={max_steps} must be at least 1")
        if kind_of_probes not in ("rademacher", "gaussian"):
            raise ConfigError(f"kind_of_probes={kind_of_probes}: expected rademacher or gaussian")
        self.bias, self.probes, self.max_steps = bias, probes, max_steps
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
                system, residual, w, bias=self.bias, max_steps=self.max_steps
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
            "bias_bound": float(found.terms.bias_bound()),
        }
        return Evidence(value, self.kind, found.terms._asdict(), found.report, facts)
