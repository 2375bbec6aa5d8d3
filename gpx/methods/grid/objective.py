"""What every objective of a Gaussian process on a grid does first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inference.exact_solver import require_finite
from gpx.inference.fixed_probes import FixedProbes
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import SolveReport
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.grid.axes import GriddedRows
from gpx.methods.grid.factors import AxisKernels
from gpx.methods.grid.gaps import GapOptions, GridSolve, choose_gaps
from gpx.methods.grid.logdet import require_probes
from gpx.methods.grid.system import GridSystem


@runtime_checkable
class GridModel(Protocol):
    """What the objectives of Gaussian processes on grids ask of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    options: GapOptions
    warm: Tensor

    def gridded(self, x: Tensor) -> GriddedRows:
        """The rows x (N, d) on their grid."""

    def axis_kernels(self, rows: GriddedRows) -> AxisKernels:
        """The kernels of the axes."""

    def system(self, rows: GriddedRows, factors: Sequence[Tensor]) -> GridSystem:
        """The covariances of the grid with these factors, and the noise."""

    def solve(self, system: GridSystem, target: Tensor) -> GridSolve:
        """The weights of the mean for residuals (N,)."""

    def scaled(self, factor: float) -> GridModel:
        """A copy of ``factor`` times the prior and noise variances."""


class GridObjective(Objective[GridModel]):
    """Full-batch objective of a ``GridGP`` with probes that are fixed for a run.

    Args:
        probes: of the stochastic routes.
    """

    batching = "full"
    kind = "estimate"
    models = (GridModel,)
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)
    route_fact: ClassVar[str]
    """The fact that names the route of the term that may be an estimate."""

    def __init__(self, probes: int) -> None:
        super().__init__()
        if probes < 1:
            raise ConfigError(f"objective.probes={probes} must be at least 1")
        self.probes = probes
        self.draws = FixedProbes(resample=False)

    def prepare(
        self, model: GridModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Choose the fixed probes of the run.

        Raises:
            DataError: targets that are not finite.
            ConfigError: solves for the probes would not fit memory.
        """
        require_finite(y)
        require_probes(model.gridded(x), self.probes, x)
        self.draws.prepare(generator)

    @abstractmethod
    def evaluate(
        self,
        model: GridModel,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None,
        route: str | None,
    ) -> Evidence:
        """As ``evidence``, by the ``route`` given; None: as the options say."""

    @abstractmethod
    def sampled_route(self, rows: GriddedRows) -> str:
        """The stochastic route for these gaps, which states its standard error."""

    def evidence(
        self, model: GridModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """As ``evaluate`` by the route of the options, with gradient."""
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
        """Evidence for the record, never an estimate of unknown error.

        Where "nystrom" was taken the stochastic route is evaluated beside it: its value, which has
        a standard error, goes on record, and ``nystrom_error`` is what the other is away from it.
        """
        found = self.evaluate(model, x, y, generator, None)
        if found.facts[self.route_fact] != "nystrom":
            return found
        sampled = self.evaluate(model, x, y, generator, self.sampled_route(model.gridded(x)))
        return self.on_record(model.gridded(x), found, sampled)

    def on_record(self, rows: GriddedRows, estimate: Evidence, sampled: Evidence) -> Evidence:
        """What the record says of an estimate without an error and of one with a standard error."""
        away = float(estimate.value - sampled.value)
        return replace(sampled, facts=sampled.facts | {"nystrom_error": away})

    def posed(
        self, model: GridModel, x: Tensor, y: Tensor
    ) -> tuple[Tensor, GriddedRows, list[Tensor]]:
        """Residuals y - m(x) (N,), the rows on their grid, and the covariances of the axes."""
        target = y - model.mean(x)
        require_finite(target)
        rows = model.gridded(x)
        return target, rows, model.axis_kernels(rows).matrices(rows.grid)


def grid_facts(model: GridModel, rows: GriddedRows, **reports: SolveReport | None) -> Facts:
    """How gaps were treated, and what every solve did, under its own name."""
    gaps, _ = choose_gaps(model.options, rows.gaps.shape[0], rows.grid.size, rows.grid.inner_size)
    found: Facts = {"gaps": gaps, "grid_cells": rows.grid.inner_size, "gap_share": rows.gappiness}
    for name, report in reports.items():
        if report is not None:
            found[f"{name}_iterations"] = report.iterations
            found[f"{name}_residual"] = report.residual
            found[f"{name}_converged"] = report.converged
    return found
