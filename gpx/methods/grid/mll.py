"""Log marginal likelihood of a Gaussian process on a grid with gaps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg import with_gradient
from gpx.methods.base.objective import Evidence, Facts, Kind
from gpx.methods.grid.axes import GriddedRows
from gpx.methods.grid.dense import over_observed
from gpx.methods.grid.gaps import GridSolve, bracket
from gpx.methods.grid.gradient import FactorGradient, bilinear_gradient
from gpx.methods.grid.logdet import (
    GridLogdet,
    LogdetName,
    choose_logdet,
    grid_logdet,
    require_dense,
    require_logdet,
    sampled_logdet,
)
from gpx.methods.grid.objective import GridModel, GridObjective, grid_facts
from gpx.methods.grid.system import GridSystem

LOG_TWO_PI = math.log(2.0 * math.pi)

CUT_SHORT: dict[str, Kind] = {"fill": "lower_bound", "ignore": "upper_bound"}
"""What a solve that did not converge makes of an otherwise exact evidence."""


class GridTerms(NamedTuple):
    """Terms of the log marginal likelihood, in nats.

    Attributes:
        fit: -y_X^T (K_XX + sigma^2 I)^{-1} y_X / 2.
        complexity: -log|K_XX + sigma^2 I| / 2.
        constant: -N log(2 pi) / 2.
    """

    fit: Tensor
    complexity: Tensor
    constant: Tensor


def grid_log_marginal_likelihood(
    system: GridSystem, solve: GridSolve, logdet: GridLogdet, *, gradient: bool
) -> tuple[GridTerms, FactorGradient | None]:
    """Terms of log N(y_X; 0, K_XX + sigma^2 I) and their gradient, no graph through the solve.

    The fit's derivative is alpha^T d(K + sigma^2 I) alpha / 2 over the whole grid: the filled
    targets are a minimiser, so their own derivative drops out.

    Cost: (3 d - 2) / d Kronecker products for the gradient.
    Source: Evans thesis, section 3.4.
    """
    n = system.num_observed
    terms = GridTerms(
        fit=-0.5 * solve.fit,
        complexity=-0.5 * logdet.value,
        constant=solve.fit.new_tensor(-0.5 * n * LOG_TWO_PI),
    )
    if not gradient:
        return terms, None
    fit = bilinear_gradient(system.factors, solve.alpha, solve.alpha)
    return terms, 0.5 * fit + -0.5 * logdet.gradient


class GridMLL(GridObjective):
    """Log marginal likelihood of a ``GridGP``: data fit by its gap strategy, closed-form gradient.

    Args:
        logdet: "nystrom" (an estimate from the whole grid's spectrum), "dense" (exact, small
            problems), "slq_fill", "slq_ignore" (unbiased, a solve per probe) or "auto": exact where
            it is cheap, else "nystrom" where gaps are scattered as if at random, and the stochastic
            route where they hang together. See ``grid_logdet``.
        probes: of the stochastic routes; fixed for a run, so that the loss is a function.
        bracket: also bound the error of the data fit, for three more products per evaluation; only
            with gaps that are filled.

    Exactness: with "dense", or without gaps, exact to the tolerance of the solve (the fit then errs
    downwards); otherwise an estimate through the log-determinant, whose route is in the facts with
    the standard error of a stochastic one. "nystrom" has none: it is for training, and
    ``full_evidence`` puts a stochastic value beside it on record.
    Cost: sum_l 9 m_l^3 for eigendecompositions, two Kronecker products per step of the solve and
    four more; memory: ``GRID_VECTORS`` vectors over the grid at most, with probes
    ``PROBE_VECTORS`` more for each that is solved for at once. Source: Evans thesis, section 3.4.
    """

    route_fact = "logdet"

    def __init__(
        self, logdet: LogdetName = "auto", probes: int = 10, bracket: bool = False
    ) -> None:
        super().__init__(probes)
        require_logdet(logdet)
        self.logdet: LogdetName = logdet
        self.bracket = bracket

    def prepare(
        self, model: GridModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """As in ``GridObjective``; raises ConfigError where "dense" does not fit memory."""
        super().prepare(model, x, y, generator=generator)
        rows = model.gridded(x)
        n, gaps = x.shape[0], rows.gaps.shape[0]
        if self.logdet == "dense" and gaps:
            count = n if over_observed(n, gaps) else gaps
            require_dense(count, len(rows.grid.axes), x, "objective.logdet")

    def evaluate(
        self,
        model: GridModel,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None,
        route: str | None,
    ) -> Evidence:
        """Evidence in nats, in float64; parts are those of ``GridTerms``.

        Facts: route of the log-determinant, its standard error, steps, residual and outcome of the
        solves, and the width of the certified bracket of the fit where asked for. A solve cut short
        makes an exact evidence a lower (fill) or an upper (ignore) bound.
        """
        self.check(model)
        target, rows, factors = self.posed(model, x, y)
        noise = model.likelihood.noise_variance
        wanted = torch.is_grad_enabled()
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
            terms, gradient = grid_log_marginal_likelihood(system, solve, logdet, gradient=wanted)
        value = terms.fit + terms.complexity + terms.constant
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
        if self.bracket and model.options.gaps == "fill" and solve.state is not None:
            ends = bracket(system, target.detach(), solve.state)
            facts["evidence_fit_gap"] = max(0.5 * float(ends.upper - ends.lower), 0.0)
        kind: Kind = "estimate"
        if logdet.exact and facts["gaps"] != "penalize":
            cut_short = solve.report is not None and not solve.report.converged
            kind = CUT_SHORT[str(facts["gaps"])] if cut_short else "exact"
        return Evidence(value, kind, terms._asdict(), solve.report, facts)

    def sampled_route(self, rows: GriddedRows) -> str:
        """Stochastic Lanczos quadrature, of F or of K_XX."""
        return sampled_logdet(rows)

    def on_record(self, rows: GriddedRows, estimate: Evidence, sampled: Evidence) -> Evidence:
        """As in ``GridObjective``; without gaps on an axis closed to a circle the estimate stays.

        Its error vanishes exponentially with the axis there, and the other's scatter does not: the
        fact ``logdet_error`` is a pessimistic one, their difference and two standard errors.
        """
        if rows.gappiness > 0.0:
            return super().on_record(rows, estimate, sampled)
        away = abs(float(estimate.value - sampled.value))
        error = away + 2.0 * float(sampled.facts["logdet_standard_error"])
        return replace(estimate, facts=estimate.facts | {"logdet_error": error})
