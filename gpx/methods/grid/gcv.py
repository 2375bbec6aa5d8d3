"""Generalised cross-validation of a Gaussian process on a grid, an objective like an evidence."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import SolveReport, probe_vectors, with_gradient
from gpx.linalg.trace import mean_and_error
from gpx.methods.base.objective import Evidence, Facts
from gpx.methods.grid.axes import GriddedRows
from gpx.methods.grid.gaps import GapOptions, solve_gaps
from gpx.methods.grid.logdet import (
    dense_function,
    inner_spectral_sum,
    least_converged_report,
    require_dense,
    spectrum_is_representative,
)
from gpx.methods.grid.mll import GridModel, GridObjective, grid_facts
from gpx.methods.grid.system import (
    DENSE_POINTS,
    FactorGradient,
    GridSystem,
    blocks,
    observed_factor,
)
from gpx.tensor_checks import check_one_of

TraceName = Literal["auto", "nystrom", "dense", "hutchinson"]


class InverseTrace(NamedTuple):
    """Tr (K_XX + sigma^2 I)^{-1} with its gradient.

    Attributes:
        value ().
        gradient: with respect to the factors and the noise variance.
        standard_error (): of "hutchinson", else 0.
        report: of the solves of "hutchinson".
    """

    value: Tensor
    gradient: FactorGradient
    standard_error: Tensor
    report: SolveReport | None = None


def inverse_trace(
    system: GridSystem,
    route: str,
    options: GapOptions,
    *,
    probes: int = 10,
    generator: torch.Generator | None = None,
) -> InverseTrace:
    """Tr (K_XX + sigma^2 I)^{-1} by ``route``.

    * full, nystrom: sum over the N largest eigenvalues of 1 / (N / M lambda_i + sigma^2); exact
      without gaps. dense: N x N. hutchinson: unbiased, a solve per probe.

    Cost: O(M); N^3; or one solve with ``probes`` right-hand sides.
    Source: Evans thesis, appendix B (gappy case by the estimate of section 3.4).
    """
    zero = system.spectrum.shifted.new_zeros((), dtype=torch.float64)
    if route in ("full", "nystrom"):
        value, gradient = inner_spectral_sum(
            system, torch.reciprocal, lambda t: -t.square().reciprocal()
        )
        return InverseTrace(value, gradient, zero)
    if route == "dense":

        def trace(matrix: Tensor) -> tuple[Tensor, Tensor]:
            inverse = torch.cholesky_inverse(observed_factor(matrix))
            return inverse.diagonal().double().sum(), -inverse @ inverse

        return InverseTrace(*dense_function(system, trace), zero)
    like = system.spectrum.shifted
    z = probe_vectors(
        system.num_observed, probes, generator=generator, dtype=like.dtype, device=like.device
    )
    samples, reports, gradients = [], [], []
    for block in blocks(probes, system.size):
        solved = solve_gaps(system, z[:, block], options)
        samples.append((z[:, block] * solved.alpha[system.rows.cells]).sum(0).double())
        gradients.append(system.bilinear_gradient(solved.alpha, solved.alpha))
        if solved.report is not None:
            reports.append(solved.report)
    mean, error = mean_and_error(torch.cat(samples))
    gradient = (-1.0 / probes) * reduce(operator.add, gradients)
    return InverseTrace(mean, gradient, error, least_converged_report(reports) if reports else None)


class GCV(GridObjective):
    """-N / 2 log GCV of a ``GridGP``, GCV = N ||alpha||^2 / (Tr (K_XX + sigma^2 I)^{-1})^2.

    GCV is the mean squared residual over the squared mean diagonal of I - H, H the hat matrix, an
    estimate of the leave-one-out error. It is invariant to scaling K and sigma^2 together, so keep
    the outputscale fixed (kernel.outputscale=null). As it does not determine the scale of
    variances, ``for_prediction`` multiplies K and sigma^2 by the fact ``variance_scale`` =
    y^T (K_XX + sigma^2 I)^{-1} y / N, the maximum likelihood estimate. The logarithm gives values
    comparable to an evidence.

    Args:
        trace: "nystrom", "dense", "hutchinson" (a solve per probe) or "auto": exact if cheap, else
            "nystrom" for scattered gaps and "hutchinson" for gaps in blocks.
        probes: of "hutchinson"; fixed for a run.

    Exactness: an estimate of predictive error, no evidence. Cost: two solves, else as ``GridMLL``.
    Source: Evans thesis, appendix B, with the numerator ||alpha||^2 instead of the printed
    y^T alpha, whose unit does not fit.
    """

    route_fact = "trace"

    def __init__(self, trace: TraceName = "auto", probes: int = 10) -> None:
        super().__init__(probes)
        check_one_of(get_args(TraceName), trace=trace)
        self.trace: TraceName = trace

    @property
    def may_draw_probes(self) -> bool:
        """As in ``GridObjective``."""
        return self.trace != "dense"

    def prepare(
        self, model: GridModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """As in ``GridObjective``.

        Raises:
            ConfigError: "dense" does not fit into memory, or all targets are equal.
        """
        super().prepare(model, x, y, generator=generator)
        if bool((y == y[0]).all()):
            raise ConfigError(
                "objective=GCV() compares residuals, which are zero as all targets are equal; use "
                "objective=GridMLL()"
            )
        rows = model.gridded(x)
        if self.trace == "dense" and rows.gaps.shape[0]:
            require_dense(x.shape[0], len(rows.grid.axes), x, "trace", model.options.memory_budget)

    def evaluate(
        self,
        model: GridModel,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None,
        route: str | None,
    ) -> Evidence:
        """-N / 2 log GCV; parts: its residual and its trace term. Facts: GCV, variance_scale."""
        target, rows, factors = self.prepare_system_inputs(model, x, y)
        noise = model.likelihood.noise_variance
        n = x.shape[0]
        needs_gradient = torch.is_grad_enabled()
        with torch.no_grad():
            system = model.system(rows, factors)
            cells = rows.cells
            solve = model.solve(system, target.detach())
            alpha = solve.alpha[cells]
            route = self._route(rows) if route is None else route
            inverse = inverse_trace(
                system,
                route,
                model.options,
                probes=self.probes,
                generator=self.draws.generator(x.device, generator),
            )
            trace = inverse.value
            square = alpha.double().square().sum()
            parts = {"residual": -0.5 * n * (n * square).log(), "trace": n * trace.log()}
        value = parts["residual"] + parts["trace"]
        second: SolveReport | None = None
        if needs_gradient:
            with torch.no_grad():
                # d ||alpha||^2 = -2 eta^T dK alpha + 2 eta^T dy, eta = (K + sigma^2 I)^{-1} alpha
                again = solve_gaps(system, alpha, model.options)
                eta, second = again.alpha, again.report
                bilinear = system.bilinear_gradient(eta, solve.alpha)
                gradient = (n / square) * bilinear + (n / trace) * inverse.gradient
            value = with_gradient(
                value,
                [target, noise, *factors],
                [-(n / square) * eta[cells], gradient.noise, *gradient.factors],
            )
        facts: Facts = {
            "gcv": float(n * square / trace.square()),
            "variance_scale": float(solve.fit) / n,
            "trace": route,
            "evidence_of": "-N/2 log GCV in its place",
        }
        facts |= grid_facts(
            model, rows, solver=solve.report, gradient_solver=second, trace_solver=inverse.report
        )
        if float(inverse.standard_error):
            facts["trace_standard_error"] = float(inverse.standard_error)
        return Evidence(value, self.kind, parts, solve.report, facts)

    @torch.no_grad()
    def for_prediction(self, model: GridModel, x: Tensor, y: Tensor) -> GridModel:
        """A copy of the model at the maximum likelihood scale of variances; cost: one solve.

        Raises:
            ConfigError: that scale is zero, as all targets equal the mean.
        """
        self.check(model)
        target, rows, factors = self.prepare_system_inputs(model, x, y)
        solve = model.solve(model.system(rows, factors), target, remember=False)
        return model.scaled(float(solve.fit) / x.shape[0])

    def sampled_route(self, rows: GriddedRows) -> str:
        """As in ``GridObjective``."""
        return "hutchinson"

    def _route(self, rows: GriddedRows) -> str:
        if not rows.gaps.shape[0]:
            return "full"
        if self.trace != "auto":
            return self.trace
        if rows.cells.shape[0] <= DENSE_POINTS:
            return "dense"
        return "nystrom" if spectrum_is_representative(rows) else "hutchinson"
