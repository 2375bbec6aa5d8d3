"""Log marginal likelihood by conjugate gradients and stochastic Lanczos quadrature."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.exact_solver import require_finite
from gpx.inference.log_density import LogDensityGradient
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import (
    AbsoluteResidual,
    CGResult,
    EvidenceBound,
    StoppingRule,
    conjugate_gradients,
    probe_vectors,
    quadrature_of_solve,
)
from gpx.linalg.trace import FixedProbes, mean_and_error
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.exact.model import ExactModel
from gpx.methods.exact.preconditioned_gradient import preconditioned_gradient
from gpx.tensor_checks import check_at_least, check_one_of

Criterion = Literal["evidence", "residual_per_row"]
ProbeKind = Literal["rademacher", "gaussian"]


class IterativeTerms(NamedTuple):
    """Terms of an estimate and bounds on their errors, in nats.

    Attributes:
        fit: -r^T K^{-1} r / 2, at most ``fit_gap`` below the exact value (at most that much above
            it under the "residual_per_row" criterion).
        complexity: -log det K / 2.
        constant: -n log(2 pi) / 2.
        fit_gap: certified bound on the error of ``fit``.
        quadrature_gap: half the width of the bracket of ``complexity`` between the Gauss and
            Gauss-Radau rules, averaged over probes; more probes do not narrow it. NaN if there is
            no bracket: products in float32, or a probe that meets the stopping rule at once.
        standard_error: of ``complexity``, from the scatter of the probes.

    From ``barely_biased_log_marginal_likelihood`` the gaps are the full widths of the brackets,
    rounding included. The estimate "below" takes their lower ends: ``fit`` is low by at most its
    gap, ``complexity`` in expectation by at most its own. "middle" takes the centres, and is off by
    at most half the widths.
    """

    fit: Tensor
    complexity: Tensor
    constant: Tensor
    fit_gap: Tensor
    quadrature_gap: Tensor
    standard_error: Tensor

    def total(self) -> Tensor:
        """The estimate of the log marginal likelihood."""
        return self.fit + self.complexity + self.constant


def iterative_log_marginal_likelihood(
    system: PreconditionedKernel,
    residual: Tensor,
    probes: Tensor,
    *,
    stop: StoppingRule,
    corrected: bool = True,
    max_iterations: int = 1000,
    start: Tensor | None = None,
) -> tuple[IterativeTerms, CGResult, Tensor]:
    """Estimate log N(r; 0, K) by one batched solve for r and the probes R xi, R = Q^{1/2}.

    The quadratic term comes from the solve for r. The Lanczos coefficients of Q^{-1/2} K Q^{-1/2}
    started at xi are read off the steps of the other columns, and their quadrature estimates
    log det K - log det Q.

    Args:
        system: K and Q.
        residual (n,): r = y - m(x).
        probes (n, L): xi, with E[xi xi^T] = I.
        stop: applied to every column; ``EvidenceBound(e)`` leaves an error of e nats in the fit and
            about as much in the quadrature of every probe.
        corrected: subtract the certified gap from the fit, which then errs downwards, so that an
            optimiser cannot gain from an unfinished solve.
        max_iterations: most steps; reaching it is a warning (``UnconvergedWarning``).
        start (n,): initial solution for r, such as that at nearby hyperparameters; None: zero. The
            probes always start at zero, which their quadrature requires.

    Returns:
        terms, the solve (columns: r, then the probes), Z = Q^{-1} R xi (n, L).

    Exactness: fit within ``fit_gap``; complexity unbiased up to the quadrature.
    Cost: one product of L + 1 columns per step, 4 n m (L + 1) operations per step.
    Source: Burt thesis, sections 4.1.3 to 4.1.5 and 4.2.
    """
    q = system.preconditioner
    target = residual.detach().double()
    right = torch.cat([target.unsqueeze(1), q.root_matmul(probes)], 1)
    x0 = None
    if start is not None:
        x0 = torch.zeros_like(right)
        x0[:, 0] = start
    solved = conjugate_gradients(
        system.matmul,
        right,
        preconditioner=q,
        x0=x0,
        stop=stop,
        max_iterations=max_iterations,
        product_dtype=system.product_dtype,
        refresh_every=max_iterations,  # an earlier restart would cut off the Lanczos coefficients
        on_failure="warn",
    )
    v, r = solved.solution[:, 0], solved.residual[:, 0]
    gap = 0.5 * torch.dot(r, q.solve(r))
    fit = -0.5 * torch.dot(v, target + r)
    all_stepped = solved.step_sizes.shape[0] > 0 and bool((solved.step_sizes[0, 1:] > 0.0).all())
    # rounding of products in float32 may push the spectrum below the Gauss-Radau node
    node = system.node if system.product_dtype == torch.float64 and all_stepped else None
    scale = 0.5 * probes.square().sum(0)
    lower, upper = quadrature_of_solve(solved, scale, columns=1, node=node)
    half = torch.full_like(gap, torch.nan) if node is None else 0.5 * (upper - lower).mean()
    middle, error = mean_and_error(0.5 * (upper + lower))
    terms = IterativeTerms(
        fit=fit - gap if corrected else fit,
        complexity=-(middle + 0.5 * q.logdet()),
        constant=target.new_tensor(-0.5 * target.shape[0] * LOG_TWO_PI),
        fit_gap=gap,
        quadrature_gap=half,
        standard_error=error,
    )
    return terms, solved, q.inverse_root_matmul(probes)


def iterative_gradient(
    system: PreconditionedKernel,
    kernel: Kernel,
    x: Tensor,
    solved: CGResult,
    z: Tensor,
    *,
    corrected: bool = True,
) -> LogDensityGradient:
    """Gradient of the estimate: of the fit exactly, of the complexity unbiased.

    With v, r of the solve and u = Q^{-1} r: d fit = u^T dK v + u^T dQ u / 2 + v^T dK v / 2 (the
    terms in u only if ``corrected``); d log det K ~ tr(Q^{-1} dQ) + mean of (K^{-1} R xi)^T dK z -
    z^T dQ z over the probes. No graph runs through the solve.

    Cost: see ``preconditioned_gradient``.
    Source: Burt thesis, sections 4.1.3 and 4.6.
    """
    v, solutions = solved.solution[:, :1], solved.solution[:, 1:]
    u = system.preconditioner.solve(solved.residual[:, 0])
    u = u if corrected else torch.zeros_like(u)
    return preconditioned_gradient(
        system,
        kernel,
        x,
        left=torch.cat([0.5 * v + u.unsqueeze(1), solutions / (-2.0 * z.shape[1])], 1),
        right=torch.cat([v, z], 1),
        probes=z,
        correction=u,
        residual=-(v.squeeze(1) + u),
    )


class ProbedMLL(Objective[ExactModel]):
    """Base class of stochastic estimates of the log marginal likelihood of an ``ExactGP``.

    Args:
        probes: L, probe vectors of the log-determinant.
        kind_of_probes: "rademacher" or "gaussian".
        resample: with a first-order optimiser, draw new probes at every step. Otherwise, and always
            with L-BFGS-B, the probes are fixed for the run and the objective is deterministic.
    """

    batching = "full"
    kind = "estimate"
    models = (ExactModel,)
    made_for = "ExactGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(self, probes: int, kind_of_probes: ProbeKind, resample: bool) -> None:
        super().__init__()
        check_at_least(1, probes=probes)
        check_one_of(get_args(ProbeKind), kind_of_probes=kind_of_probes)
        self.probes, self.kind_of_probes = probes, kind_of_probes
        self.draws = FixedProbes(resample)

    def draw_probes(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Probes (n, L) for inputs x (n, d)."""
        return probe_vectors(
            x.shape[0],
            self.probes,
            kind=self.kind_of_probes,
            generator=self.draws.generator(x.device, generator),
            device=x.device,
        )


class IterativeMLL(ProbedMLL):
    """Log marginal likelihood of an ``ExactGP`` without a factorisation, with error bars.

    Args:
        probes, kind_of_probes, resample: see ``ProbedMLL``; standard error ~ 1 / sqrt(probes).
        tolerance: nats per column ("evidence"), or residual norm per row ("residual_per_row").
        criterion: "evidence" stops on the certified bound r^T Q^{-1} r / 2 and subtracts it from
            the fit; "residual_per_row" is the published baseline, whose fit errs upwards by an
            amount that depends on the hyperparameters (see ``fit_gap``).
        max_iterations: of one solve.
        warm_start: with a first-order optimiser and ``resample``, start the solve for the data from
            the solution of the previous step (the error bound holds from any start). Otherwise
            every evaluation starts from zero, so that it depends on its arguments only.

    Exactness: an estimate, see ``IterativeTerms``. Cost: ``iterative_log_marginal_likelihood`` and
    ``preconditioned_gradient``; memory a few n (L + m) numbers.
    """

    shared = "evidence"
    data_sized = ("previous",)
    previous: Tensor

    def __init__(
        self,
        probes: int = 10,
        kind_of_probes: ProbeKind = "rademacher",
        tolerance: float = 0.1,
        criterion: Criterion = "evidence",
        resample: bool = True,
        max_iterations: int = 500,
        warm_start: bool = False,
    ) -> None:
        super().__init__(probes, kind_of_probes, resample)
        check_at_least(1, max_iterations=max_iterations)
        check_one_of(get_args(Criterion), criterion=criterion)
        self.corrected = criterion == "evidence"
        self.stop: StoppingRule = (
            EvidenceBound(tolerance)
            if self.corrected
            else AbsoluteResidual(tolerance, per_row=True)
        )
        self.max_iterations = max_iterations
        self.warm_start = warm_start
        if warm_start:
            self.register_data_sized()

    def evidence(
        self, model: ExactModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Estimate in nats, in float64; parts are those of ``IterativeTerms``."""
        residual = y - model.mean(x)
        require_finite(residual)
        noise = model.likelihood.noise_variance
        warm = self.warm_start and self.draws.resample and generator is not None
        start = self.previous if warm and self.previous.shape == residual.shape else None
        with torch.no_grad():
            system = PreconditionedKernel(model.kernel, x, noise, model.iterative)
            xi = self.draw_probes(x, generator)
            terms, solved, z = iterative_log_marginal_likelihood(
                system,
                residual,
                xi,
                stop=self.stop,
                corrected=self.corrected,
                max_iterations=self.max_iterations,
                start=start,
            )
            if warm:
                self.previous = solved.solution[:, 0].clone()
        value = terms.total()
        if torch.is_grad_enabled():
            found = iterative_gradient(system, model.kernel, x, solved, z, corrected=self.corrected)
            value = found.attached(value, residual, noise)
        facts: Facts = {
            "solver": "iterative",
            "products": system.backend,
            "preconditioner_rank": system.factor.shape[0],
            "solver_iterations": solved.report.iterations,
            "solver_converged": solved.report.converged,
        }
        return Evidence(value, self.kind, terms._asdict(), solved.report, facts)
