"""Lower bound on the log marginal likelihood from conjugate gradients and inducing points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError
from gpx.flat_parameters import assign, values_of
from gpx.inference.auxiliary import Auxiliary, AuxiliarySolver, quadratic_lower
from gpx.inference.exact_solver import require_finite
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityGradient
from gpx.inference.noisy_kernel import NoisyKernel
from gpx.inference.nystrom_matrix import NystromMatrix, TightGap, tight_gap
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.sparse.collapsed_elbo import (
    CollapsedTerms,
    log_density_noise_gradient,
    nystrom_gradient,
)
from gpx.tensor_checks import check_num_data, check_one_of

LogDeterminant = Literal["trace_error", "preconditioned_trace"]
Refresh = Literal["evaluation", "iteration"]
FINE_EPSILON = 0.03
"""Epsilon in nats below which stalls are not taken for its jumps."""


def cg_lower_bound(
    kernel: Kernel,
    x: Tensor,
    z: Tensor,
    target: Tensor,
    found: Auxiliary,
    matrix: NoisyKernel,
    nystrom: NystromMatrix,
    *,
    log_determinant: LogDeterminant = "trace_error",
    gradient: bool,
) -> tuple[CollapsedTerms, LogDensityGradient | None]:
    """The bound at any v, and its gradient at fixed v.

    With r = y - K v, u = Q^{-1} r and w = u + v / 2,

        F = -1/2 [r^T Q^{-1} r + v^T (y + r)] - 1/2 log det Q - g - n/2 log 2 pi,

    where g = n/2 log(1 + T / (n s)) ("trace_error") or n/2 log(tr(Q^{-1} K) / n)
    ("preconditioned_trace", tighter). At a fixed r the first, second and last terms are
    log N(r; 0, Q), whose gradient is that of the collapsed bound; the remaining gradient is
    w^T dK v, computed in tiles of the kernel matrix, and -(u + v)^T d(y - m).

    Args:
        kernel, x (n, d), z (M, d): covariance function, inputs, inducing inputs.
        target (n,): y - m(x).
        found: v with its true residual.
        matrix, nystrom: K and Q at the same hyperparameters.
        log_determinant: which g.
        gradient: whether to compute it.

    Exactness: lower bound on the log marginal likelihood for every v, Z and jitter. At v = 0 it is
    at least the collapsed bound; at v = K^{-1} y only the log determinant is approximate, and at
    other v it is at most ``found.gap`` lower. Between v = 0 and K^{-1} y it may be below the
    collapsed bound. It is not monotone in M.
    Cost: gradient 2 n M^2 multiply-adds and about four products with K; memory linear in n. The
    tighter g: 3 n^2 M more, memory 2 n M.
    Source: Burt thesis, section 4.3.3; Artemev, Burt and van der Wilk (2021); the gradient is
    derived from it.
    """
    n, v, r = x.shape[0], found.vector, found.residual
    with torch.no_grad():
        at_residual = nystrom.with_target(r)
        sums, inner, s = at_residual.sums, at_residual.inner, nystrom.noise
        tight: TightGap | None = None
        if log_determinant == "preconditioned_trace":
            tight = tight_gap(matrix, nystrom, kernel.diagonal(x).detach())
        slack = n * s + sums.trace_error
        residual_fit = (sums.squared_residual - torch.dot(sums.projected, inner.weights)) / s
        aligned = quadratic_lower(target.detach(), v, r)
        terms = CollapsedTerms(
            fit=-0.5 * (residual_fit + aligned),
            complexity=-inner.factor.diagonal().log().sum(),
            trace=-0.5 * n * (sums.trace_error / (n * s)).log1p() if tight is None else tight.value,
            constant=-0.5 * n * (LOG_TWO_PI + s.log()),
        )
        if not gradient:
            return terms, None
        kernel_gradient = KernelGradient(kernel, x, z, at_residual.store.whitener.features)
        minus_u = nystrom_gradient(
            kernel_gradient,
            r,
            at_residual.store,
            sums,
            inner,
            s,
            n / slack if tight is None else torch.zeros_like(s),
            nystrom.report.relative,
            None if tight is None else tight.extra,
        )
        left = 0.5 * v - minus_u
        noiseless = target.detach() - r - s.to(v.dtype) * v  # k(x, x) v, from the residual
        kernel_gradient.add_found(matrix.derivative(left, v, noiseless))
        noise = log_density_noise_gradient(sums, inner, s, n) + torch.dot(left, v)
        if tight is None:
            noise = noise + 0.5 * n * sums.trace_error / (s * slack)
        else:
            noise = noise + tight.noise
            kernel_gradient.add_found(
                matrix.derivative(tight.factor * tight.scale.to(x.dtype), tight.factor)
            )
            kernel_gradient.add_diagonal(slice(0, n), tight.diagonal.to(x.dtype).expand(n))
    return terms, LogDensityGradient(minus_u - v, noise, kernel_gradient)


@runtime_checkable
class SolvedModel(Protocol):
    """What the bound needs of a model: inducing points and a vector v, which it updates."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    inducing_points: nn.Parameter
    jitter: float | None
    auxiliary: Tensor


def matrices(
    model: SolvedModel, solver: AuxiliarySolver, x: Tensor, target: Tensor
) -> tuple[NoisyKernel, NystromMatrix]:
    """K and Q of the model, within the budget of the solver, at x (n, d) with target y - m(x)."""
    noise = model.likelihood.noise_variance
    nystrom = NystromMatrix.of(
        model.kernel,
        x,
        model.inducing_points,
        target,
        noise,
        jitter=model.jitter,
        memory_budget=solver.budget,
    )
    return solver.matrix(model.kernel, x, noise), nystrom


class CGLowerBound(Objective[SolvedModel]):
    """Conjugate gradient lower bound of a ``CGLB`` model, maximised alternately.

    Every evaluation first updates the model's auxiliary vector v by preconditioned conjugate
    gradients, until the bound is within ``epsilon`` nats of its maximum over v, and then computes
    the bound and its gradient at fixed v (which is the full gradient at the optimal v).

    Args:
        solver: of v; the result is a lower bound for any ``epsilon``. None: its defaults.
        log_determinant: see ``cg_lower_bound``.
        refresh: when v is updated. "evaluation": at every evaluation, so that epsilon always holds,
            but the loss may jump by epsilon; when the optimiser stalls, epsilon falls tenfold down
            to below 0.03 nats, and then this changes to "iteration".
            "iteration": at the point where an iteration starts, unless v is within ``epsilon``
            there; the line search keeps v, so that loss and gradient are consistent.

    Exactness: lower bound. Cost and source: ``cg_lower_bound``; per conjugate gradient step also
    one product with the kernel matrix (n^2 / 2 kernel evaluations) and 4 n M.
    """

    batching = "full"
    kind = "lower_bound"
    models = (SolvedModel,)
    made_for = "CGLB"
    shared = "evidence"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)
    hold: Tensor
    moved: Tensor
    stalls: Tensor
    refresh: Refresh | None = None
    """When v is updated at the start of a run; None: unknown, in pickles of earlier versions."""
    _start: Tensor | None = None
    """Parameters (P,) at the start of an iteration that has not been evaluated yet. Checkpoints do
    not need it: after a step of first order the parameters are still there, and L-BFGS-B calls
    ``after_step`` again when it is resumed."""

    def __init__(
        self,
        solver: AuxiliarySolver | None = None,
        log_determinant: LogDeterminant = "trace_error",
        refresh: Refresh = "evaluation",
    ) -> None:
        super().__init__()
        check_one_of(get_args(LogDeterminant), log_determinant=log_determinant)
        check_one_of(get_args(Refresh), refresh=refresh)
        self.solver = AuxiliarySolver() if solver is None else solver
        self.log_determinant: LogDeterminant = log_determinant
        self.refresh = refresh
        # in checkpoints: whether v is fixed within an iteration, and was updated for this one
        self.register_buffer("hold", torch.tensor(refresh == "iteration"))
        self.register_buffer("moved", torch.tensor(False))
        self.register_buffer("stalls", torch.tensor(0))  # those that have lowered epsilon

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also of pickles of earlier versions."""
        super().__setstate__(state)
        if "stalls" not in self._buffers:
            self.register_buffer("stalls", torch.tensor(0))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}stalls", torch.tensor(0))  # checkpoints of earlier versions
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._start = None

    def check(self, model: SolvedModel) -> None:
        """As in ``Objective``; raises ConfigError also for models in float32."""
        super().check(model)
        if model.inducing_points.dtype != torch.float64:
            raise ConfigError(
                "objective CGLowerBound needs dtype=float64 for a valid bound; "
                "product_dtype=float32 runs most of the work in float32"
            )

    def prepare(
        self, model: SolvedModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """As in ``Objective``; raises DataError if targets are not finite.

        What a run before has left is forgotten: its stall, and that it has updated v.
        """
        require_finite(y)
        if self.refresh is not None:
            self.hold.fill_(self.refresh == "iteration")
        self.moved.fill_(False)
        self.stalls.zero_()
        self._start = None

    @property
    def current_solver(self) -> AuxiliarySolver:
        """The solver at the epsilon that the stalls of this run have left."""
        stalls = int(self.stalls)
        return replace(self.solver, epsilon=0.1**stalls * self.solver.epsilon)

    def after_step(self, model: SolvedModel) -> None:
        """If v is kept within iterations, the next evaluation updates it for the one that begins.

        It does so at the parameters of now, where the line search starts. The v of the first trial
        point would not do: if that point is far off, the bound at this v is thousands of nats
        lower near the start, and the search finds no step that gains.
        """
        if bool(self.hold):
            self._start = values_of(_parameters(model))
            self.moved.fill_(False)

    def after_stall(self, model: SolvedModel) -> bool:
        """Lower epsilon while it is coarse; then change from "evaluation" to "iteration", once."""
        if bool(self.hold):
            return False
        if self.current_solver.epsilon > FINE_EPSILON:
            self.stalls.add_(1)
        else:
            self.hold.fill_(True)
        self.moved.fill_(False)
        return True

    def _solve(
        self, model: SolvedModel, matrix: NoisyKernel, nystrom: NystromMatrix, target: Tensor
    ) -> Auxiliary:
        """Update v."""
        found = self.current_solver.solve(matrix, nystrom, target, model.auxiliary)
        model.auxiliary.copy_(found.vector)
        self.moved.fill_(True)
        return found

    def _solve_at_start(self, model: SolvedModel, x: Tensor, y: Tensor) -> None:
        """Update v at the start of the iteration, if the parameters have moved on from there."""
        start, self._start = self._start, None
        if start is None:
            return
        parameters = _parameters(model)
        here = values_of(parameters)
        if start.shape != here.shape or torch.equal(start, here):
            return
        assign(parameters, start)
        try:
            target = y - model.mean(x)
            self._solve(model, *matrices(model, self.solver, x, target), target)
        finally:
            assign(parameters, here)

    def evidence(
        self, model: SolvedModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Bound in nats, in float64; parts are those of ``CollapsedTerms``.

        The report is the solver's: steps, relative residual, whether epsilon was met.

        Raises:
            ConfigError: x has another number of rows than v.
        """
        check_num_data(len(model.auxiliary), x)
        with torch.no_grad():  # before the graph: it changes parameters for a time
            self._solve_at_start(model, x, y)
        target = y - model.mean(x)
        noise = model.likelihood.noise_variance
        z = model.inducing_points
        with torch.no_grad():
            matrix, nystrom = matrices(model, self.solver, x, target)
            if bool(self.hold & self.moved):
                found = self.current_solver.keep(matrix, nystrom, target, model.auxiliary)
            else:
                found = self._solve(model, matrix, nystrom, target)
        terms, gradient = cg_lower_bound(
            model.kernel,
            x,
            z,
            target,
            found,
            matrix,
            nystrom,
            log_determinant=self.log_determinant,
            gradient=torch.is_grad_enabled(),
        )
        value = terms.total()
        if gradient is not None:
            value = gradient.attached(value, target, noise)
        facts: Facts = {
            "solver_iterations": found.report.iterations,
            "solver_converged": found.report.converged,
            "evidence_gap": found.gap,
            "jitter": nystrom.report.relative,
        }
        return Evidence(value, self.kind, terms._asdict(), found.report, facts)

    def full_evidence(
        self,
        model: SolvedModel,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """As in ``Objective``, at a v that is updated for it.

        A search that ends within an iteration leaves v at the first point of its last line search,
        and the parameters at the best one.
        """
        self.moved.fill_(False)
        self._start = None
        return super().full_evidence(model, x, y, batch_size=batch_size, generator=generator)


def _parameters(model: SolvedModel) -> list[nn.Parameter]:
    """All that K, Q and the mean depend on."""
    parts = (model.kernel, model.mean, model.likelihood)
    return [*(p for part in parts for p in part.parameters()), model.inducing_points]
