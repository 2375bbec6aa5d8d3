"""Objectives of a Gaussian process on a grid with gaps: base class, and the evidence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.exact_solver import require_finite
from gpx.inference.log_density import LogDensityTerms
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import SolveReport, with_gradient
from gpx.linalg.trace import FixedProbes
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Kind, Objective
from gpx.methods.grid.axes import GriddedRows
from gpx.methods.grid.factors import AxisKernels
from gpx.methods.grid.gaps import GapOptions, GridSolve, bracket, choose_gaps
from gpx.methods.grid.logdet import (
    GridLogdet,
    LogdetName,
    choose_logdet,
    grid_logdet,
    require_dense,
    require_probes,
    sampled_logdet,
)
from gpx.methods.grid.system import FactorGradient, GridSystem, factorises_observed
from gpx.tensor_checks import check_at_least, check_one_of

KIND_WHEN_UNCONVERGED: dict[str, Kind] = {"fill": "lower_bound", "ignore": "upper_bound"}
"""Kind of an otherwise exact evidence after a solve that did not converge, or not far enough."""

EXACT_ERROR = 1e-2
"""Largest certified error of the data fit, in nats, after which an evidence counts as exact."""


@runtime_checkable
class GridModel(Protocol):
    """What the objectives of Gaussian processes on grids need of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    options: GapOptions

    def gridded(self, x: Tensor) -> GriddedRows:
        """The rows x (N, d) on their grid."""

    def axis_kernels(self, rows: GriddedRows) -> AxisKernels:
        """The kernels of the axes."""

    def system(self, rows: GriddedRows, factors: Sequence[Tensor]) -> GridSystem:
        """K + sigma^2 I with these covariances of the axes."""

    def solve(self, system: GridSystem, target: Tensor, *, remember: bool = True) -> GridSolve:
        """Solve for residuals (N,); ``remember`` the solution as start of the next solve."""

    def scaled(self, factor: float) -> GridModel:
        """A copy with prior and noise variances multiplied by ``factor``."""


class GridObjective(Objective[GridModel]):
    """Full-batch objective of a ``GridGP`` with probes that are fixed for a run.

    Args:
        probes: number of probes of stochastic routes.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "estimate"
    models = (GridModel,)
    made_for = "GridGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)
    route_fact: ClassVar[str]
    """Name of the fact that says by which route the log-determinant or trace was computed."""

    def __init__(self, probes: int) -> None:
        super().__init__()
        check_at_least(1, probes=probes)
        self.probes = probes
        self.draws = FixedProbes(resample=False)

    def prepare(
        self, model: GridModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Draw the fixed probes of the run.

        Raises:
            DataError: targets that are not finite.
            ConfigError: solves for the probes would not fit into memory.
        """
        require_finite(y)
        if self.may_draw_probes:
            require_probes(model.gridded(x), self.probes, x, model.options.memory_budget)
        super().prepare(model, x, y, generator=generator)

    @property
    def may_draw_probes(self) -> bool:
        """Whether an evidence of the run, such as that on record, may take solves for probes."""
        return True

    @abstractmethod
    def evaluate(
        self,
        model: GridModel,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None,
        route: str | None,
    ) -> Evidence:
        """``evidence`` by the ``route`` given; None: as the options say."""

    @abstractmethod
    def sampled_route(self, rows: GriddedRows) -> str:
        """The stochastic route for these gaps, which has a standard error."""

    def evidence(
        self, model: GridModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """As in ``Objective``, by the route of the options."""
        return self.evaluate(model, x, y, generator, None)

    @torch.no_grad()
    def full_evidence(
        self,
        model: GridModel,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """As in ``Objective``, never an estimate of unknown error.

        If the route is "nystrom", the stochastic route, which has a standard error, is evaluated as
        well and recorded; the fact ``nystrom_error`` is the difference between the two.
        """
        found = self.evaluate(model, x, y, generator, None)
        if found.facts[self.route_fact] != "nystrom":
            return found
        sampled = self.evaluate(model, x, y, generator, self.sampled_route(model.gridded(x)))
        return self.on_record(model.gridded(x), found, sampled)

    def on_record(self, rows: GriddedRows, estimate: Evidence, sampled: Evidence) -> Evidence:
        """The evidence to record, given one by "nystrom" and one by the stochastic route."""
        away = float(estimate.value - sampled.value)
        return replace(sampled, facts=sampled.facts | {"nystrom_error": away})

    def prepare_system_inputs(
        self, model: GridModel, x: Tensor, y: Tensor
    ) -> tuple[Tensor, GriddedRows, list[Tensor]]:
        """Residuals y - m(x) (N,), the rows on their grid, and the covariances of the axes."""
        target = y - model.mean(x)
        require_finite(target)
        rows = model.gridded(x)
        return target, rows, model.axis_kernels(rows).matrices(rows.grid)


def grid_facts(model: GridModel, rows: GriddedRows, **reports: SolveReport | None) -> Facts:
    """Facts on the treatment of gaps, and on every solve under its own name."""
    gaps, _ = choose_gaps(model.options, rows)
    found: Facts = {"gaps": gaps, "grid_cells": rows.grid.inner_size, "gap_share": rows.gap_share}
    for name, report in reports.items():
        if report is not None:
            found[f"{name}_iterations"] = report.iterations
            found[f"{name}_residual"] = report.residual
            found[f"{name}_converged"] = report.converged
    return found


def filling_error(system: GridSystem, solve: GridSolve) -> float:
    """A bound on the error of the fit after filling, tighter than ``GridSolve.error``.

    With r the residual at the gaps the error is r^T F^{-1} r, and F^{-1}, a conditional covariance,
    is at most K_ZZ + sigma^2 I. Cost: one Kronecker product.
    """
    gaps = system.rows.gaps
    residual = solve.alpha[gaps]
    product = system.covariance(gaps, gaps, residual).double() + system.noise * residual.double()
    return float(residual.double() @ product)


def grid_log_marginal_likelihood(
    system: GridSystem, solve: GridSolve, logdet: GridLogdet, *, gradient: bool
) -> tuple[LogDensityTerms, FactorGradient | None]:
    """Terms of log N(y_X; 0, K_XX + sigma^2 I) and their gradient in closed form.

    The derivative of the fit is alpha^T d(K + sigma^2 I) alpha / 2 over the whole grid: the filled
    targets minimise it, so their own derivative vanishes.

    Cost: (3 d - 2) / d Kronecker products for the gradient.
    Source: Evans thesis, section 3.4.
    """
    n = system.num_observed
    terms = LogDensityTerms(
        fit=-0.5 * solve.fit,
        complexity=-0.5 * logdet.value,
        constant=solve.fit.new_tensor(-0.5 * n * LOG_TWO_PI),
    )
    if not gradient:
        return terms, None
    fit = system.bilinear_gradient(solve.alpha, solve.alpha)
    return terms, 0.5 * fit + -0.5 * logdet.gradient


class GridMLL(GridObjective):
    """Log marginal likelihood of a ``GridGP``: data fit by its gap strategy, closed-form gradient.

    Args:
        logdet: "nystrom" (an estimate from the whole grid's spectrum), "dense" (exact, small
            problems), "slq_fill", "slq_ignore" (unbiased, a solve per probe) or "auto": exact if
            cheap, else "nystrom" for randomly scattered gaps, and a stochastic route for gaps in
            blocks. See ``grid_logdet``.
        probes: of the stochastic routes; fixed for a run, so that the loss is deterministic.
        bracket: whether to bound the error of the data fit, for three more products per evaluation;
            only if gaps are filled.

    Exactness: with "dense", or without gaps, exact to the tolerance of the solve (the fit then errs
    downwards); otherwise an estimate because of the log-determinant. Facts name its route, and the
    standard error of a stochastic one. "nystrom" has none: it is for training, and
    ``full_evidence`` records a stochastic value.
    Cost: sum_l 9 m_l^3 for eigendecompositions, two Kronecker products per step of the solve and
    four more; memory: at most ``GRID_VECTORS`` vectors over the grid, and ``PROBE_VECTORS`` more
    for each probe solved for at a time. Source: Evans thesis, section 3.4.
    """

    route_fact = "logdet"

    def __init__(
        self, logdet: LogdetName = "auto", probes: int = 10, bracket: bool = False
    ) -> None:
        super().__init__(probes)
        check_one_of(get_args(LogdetName), logdet=logdet)
        self.logdet: LogdetName = logdet
        self.bracket = bracket

    @property
    def may_draw_probes(self) -> bool:
        """As in ``GridObjective``."""
        return self.logdet != "dense"

    def prepare(
        self, model: GridModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """As in ``GridObjective``; raises ConfigError if "dense" does not fit into memory."""
        super().prepare(model, x, y, generator=generator)
        rows = model.gridded(x)
        n, gaps = x.shape[0], rows.gaps.shape[0]
        if self.logdet == "dense" and gaps:
            count = n if factorises_observed(n, gaps) else gaps
            require_dense(count, len(rows.grid.axes), x, "logdet", model.options.memory_budget)

    def evaluate(
        self,
        model: GridModel,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None,
        route: str | None,
    ) -> Evidence:
        """Evidence in nats, in float64; parts are those of ``LogDensityTerms``.

        Facts: route of the log-determinant, its standard error, steps, residual and outcome of the
        solves, a certified bound on the error of the fit in nats (``evidence_fit_error``), and with
        ``bracket`` the width of its certified bracket. After a solve that did not converge, or with
        that bound above ``EXACT_ERROR``, an exact evidence is a lower (fill) or upper (ignore)
        bound.
        """
        target, rows, factors = self.prepare_system_inputs(model, x, y)
        noise = model.likelihood.noise_variance
        needs_gradient = torch.is_grad_enabled()
        with torch.no_grad():
            system = model.system(rows, factors)
            solve = model.solve(system, target.detach())
            route = choose_logdet(self.logdet, rows) if route is None else route
            logdet = grid_logdet(
                system,
                route,
                model.options,
                probes=self.probes,
                generator=self.draws.generator(x.device, generator),
            )
            terms, gradient = grid_log_marginal_likelihood(
                system, solve, logdet, gradient=needs_gradient
            )
        value = terms.total()
        if gradient is not None:
            value = with_gradient(
                value,
                [target, noise, *factors],
                [-solve.alpha[rows.cells], gradient.noise, *gradient.factors],
            )
        facts: Facts = {"logdet": logdet.route}
        facts |= grid_facts(model, rows, solver=solve.report, logdet_solver=logdet.report)
        if float(logdet.standard_error):
            facts["logdet_standard_error"] = 0.5 * float(logdet.standard_error)
        if self.bracket and facts["gaps"] == "fill" and solve.state is not None:
            ends = bracket(system, target.detach(), solve.state)
            facts["evidence_fit_gap"] = max(0.5 * float(ends.upper - ends.lower), 0.0)
        kind: Kind = "estimate"
        if logdet.exact and facts["gaps"] != "penalize":
            kind = "exact"
            if solve.report is not None:
                error = 0.5 * float(solve.error)
                if error > EXACT_ERROR and facts["gaps"] == "fill":
                    error = 0.5 * filling_error(system, solve)
                facts["evidence_fit_error"] = error
                if not (solve.report.converged and error <= EXACT_ERROR):
                    kind = KIND_WHEN_UNCONVERGED[str(facts["gaps"])]
        return Evidence(value, kind, terms._asdict(), solve.report, facts)

    def sampled_route(self, rows: GriddedRows) -> str:
        """As in ``GridObjective``: stochastic Lanczos quadrature of F or of K_XX."""
        return sampled_logdet(rows)

    def on_record(self, rows: GriddedRows, estimate: Evidence, sampled: Evidence) -> Evidence:
        """As in ``GridObjective``; without gaps (circles only) the estimate is recorded.

        Its error decays exponentially with the length of the axis, below the scatter of the
        stochastic route. The fact ``logdet_error`` bounds it pessimistically, by their difference
        plus two standard errors.
        """
        if rows.gap_share > 0.0:
            return super().on_record(rows, estimate, sampled)
        away = abs(float(estimate.value - sampled.value))
        error = away + 2.0 * float(sampled.facts.get("logdet_standard_error", 0.0))
        return replace(estimate, facts=estimate.facts | {"logdet_error": error})
