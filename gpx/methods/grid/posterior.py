"""Posterior process of a Gaussian process on a grid."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite, ShapeError
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import SolveReport, allowed_memory
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.grid.axes import (
    GRID_VECTORS,
    CartesianGrid,
    GriddedRows,
    unobserved_cells,
    widen_circles,
)
from gpx.methods.grid.factors import AxisKernels, split_kernel
from gpx.methods.grid.gaps import Bracket, GapOptions, choose_gaps, solve_gaps
from gpx.methods.grid.points import GridPoints
from gpx.methods.grid.sampled_variance import SampledVariance, prior_weights
from gpx.methods.grid.system import GridSystem
from gpx.methods.grid.variance import (
    DenseVariance,
    VarianceOptions,
    choose_variance,
    full_variance,
    rank_reduced_variance,
    variance_bracket,
    variance_by_solves,
)


class GridPosterior(Posterior):
    """Posterior process of ``GridGP``; predicts on the grid, between its points and beyond it.

    The state holds the axes, the observed cells, and the weights alpha over the whole grid: O(M).
    Factors and samples for variances are recomputed at the first prediction after loading.

    Attributes:
        points (sum_l m_l d_l,), axis_shapes (d, 3), columns (sum_l d_l,): the axes, flattened; the
            shapes are m_l, d_l and, for a circle, its number of points on the axis, else 0.
        cells (N,): observed cells in the order of the training rows.
        residual (N,), alpha (M,): y - m(x) and the weights of the mean.
        prior_scale (): factor of the kernel.
        report: of the solve; None after loading from a file.
    """

    data_sized = ("points", "axis_shapes", "columns", "cells", "residual", "alpha")
    derived = ("_systems", "_samples", "_dense", "_in_double")
    points: Tensor
    axis_shapes: Tensor
    columns: Tensor
    cells: Tensor
    residual: Tensor
    alpha: Tensor
    prior_scale: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        options: GapOptions,
        variance: VarianceOptions,
    ) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.likelihood = untrained(likelihood)
        self.options, self.variance = options, variance
        self.report: SolveReport | None = None
        self.register_data_sized()
        self.register_buffer("prior_scale", self.likelihood.noise_variance.detach().new_ones(()))
        self._systems: dict[bool, GridSystem] | None = None
        self._samples: dict[bool, SampledVariance] | None = None
        self._dense: DenseVariance | None = None
        self._in_double: GridPosterior | None = None
        self._used: dict[str, bool | int | float | str] = {}

    def fill_(
        self,
        rows: GriddedRows,
        residual: Tensor,
        alpha: Tensor,
        report: SolveReport | None,
    ) -> None:
        """Store the rows and the result of a solve."""
        grid = rows.grid
        device = alpha.device
        self.points = torch.cat([a.reshape(-1) for a in grid.axes]).to(alpha)
        inner = grid.inner or (0,) * len(grid.axes)
        shapes = [(*a.shape, i) for a, i in zip(grid.axes, inner, strict=True)]
        self.axis_shapes = torch.tensor(shapes, device=device)
        self.columns = torch.tensor([c for group in grid.groups for c in group], device=device)
        self.cells, self.residual = rows.cells.clone(), residual.detach().clone()
        self.alpha, self.report = alpha, report

    # -- derived from the state -------------------------------------------------------------------

    @property
    def grid(self) -> CartesianGrid:
        """The axes."""
        axes, groups, inner, at, column = [], [], [], 0, 0
        for m, d, *kept in self.axis_shapes.tolist():
            inner.append(kept[0] if kept else 0)  # absent in states of earlier versions
            axes.append(self.points[at : at + m * d].view(m, d))
            groups.append(tuple(self.columns[column : column + d].tolist()))
            at, column = at + m * d, column + d
        return CartesianGrid(tuple(axes), tuple(groups), tuple(inner) if any(inner) else ())

    def axis_kernels(self) -> AxisKernels:
        """The kernel as a product over the axes."""
        return split_kernel(self.kernel, self.grid.groups, self.prior_scale)

    def system(self, *, wide: bool = False) -> GridSystem:
        """K + sigma^2 I; cached.

        Args:
            wide: with circles twice as long (``widen_circles``).
        """
        # of threads that compute the same at a time, the first keeps its result
        systems = self._systems
        if systems is None:
            systems = self._systems = {}
        if wide not in systems:
            grid = self.grid
            rows = GriddedRows(grid, self.cells, unobserved_cells(self.cells, grid.size))
            rows = widen_circles(rows, self.options.memory_budget) if wide else rows
            factors = self.axis_kernels().matrices(rows.grid)
            systems.setdefault(wide, GridSystem(factors, self.likelihood.noise_variance, rows))
        return systems[wide]

    def at(self, x: Tensor, grid: CartesianGrid | None = None) -> GridPoints:
        """Covariances of points x (t, d) with the grid; raises ShapeError for a wrong d."""
        if x.ndim != 2 or x.shape[1] != self.columns.shape[0]:
            raise ShapeError(f"expected inputs (t, {self.columns.shape[0]}), got {tuple(x.shape)}")
        return GridPoints(self.grid if grid is None else grid, self.axis_kernels(), x)

    # -- predictions ------------------------------------------------------------------------------

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``; facts on variances are those of the last prediction.

        ``variance_error`` is the largest relative standard error of sampled predictive variances
        (noise included).
        """
        found: dict[str, bool | int | float | str] = {
            "gaps": self.options.gaps,
            "grid_cells": self.grid.inner_size,
        }
        if float(self.prior_scale) != 1.0:
            found["prior_scale"] = float(self.prior_scale)
        found |= self._used
        if self.report is not None:
            found["solver_iterations"] = self.report.iterations
            found["solver_converged"] = self.report.converged
            found["solver_residual"] = self.report.residual
        return found

    @torch.no_grad()  # covariances by distinct coordinates and on circles carry no gradient
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Cost: for the mean one rectangular Kronecker product if the points share coordinates, else
        t M; for the variance see ``VarianceOptions``.
        """
        points = self.at(x)
        mean = self.mean(x) + points.contract(self.alpha)
        system = self.system()
        gaps, _ = choose_gaps(self.options, system.rows)
        counts = system.num_observed, system.num_gaps
        used = choose_variance(self.variance, gaps, x.shape[0], *counts)
        if used == "dense":
            used = self._try_dense_factor()
        self._used = {"variance": used}
        if used == "full":
            variance = full_variance(system, points)
        elif used == "dense":
            assert self._dense is not None
            wide = self._double()
            wide_points = points if wide is self else wide.at(x.double())
            variance = self._dense.variance(wide.system(), wide_points).to(points.prior)
        elif used == "sampled":
            variance = self._sampled_variance(points, x)
        elif used == "rank_reduced":
            variance = rank_reduced_variance(
                system, points, self.variance.rank, self.options.memory_budget
            )
        else:
            variance = variance_by_solves(system, points, self.options, used)  # type: ignore[arg-type]
        return Marginals(mean, variance.clamp_(min=0.0))

    def _double(self) -> GridPosterior:
        """This posterior with a kernel and axes in float64, itself if it is; cached."""
        if self.alpha.dtype == torch.float64:
            return self
        if self._in_double is None:
            self._in_double = copy.deepcopy(self).double()
        return self._in_double

    def _try_dense_factor(self) -> str:
        """Compute the dense factor; returns the rule to use, a solver if "auto" finds no factor."""
        if self._dense is None:
            try:
                self._dense = DenseVariance(self._double().system())
            except NotPositiveDefinite:  # a noise variance below rounding
                if self.variance.variance == "dense":
                    raise
                return "ignore" if self.options.gaps == "ignore" else "fill"
        return "dense"

    @torch.no_grad()
    def predict_mean(self, x: Tensor) -> Tensor:
        """The mean (t,) without variances."""
        return self.mean(x) + self.at(x).contract(self.alpha)

    @torch.no_grad()
    def variance_bracket(self, x: Tensor) -> Bracket:
        """Certified bounds of the latent variance at x (t, d); two solves per point."""
        return variance_bracket(self.system(), self.at(x), self.options)

    def _sampled_variance(self, points: GridPoints, x: Tensor) -> Tensor:
        """Sampled variances; points beyond the data use wider circles (see ``GridPoints.within``).

        Points further away, for which wider circles do not suffice, are solved for.
        """
        if bool(points.within.all()):
            return self._sample(False, points)
        found = points.prior.clone()
        far = (~points.within & points.reached).nonzero().squeeze(1)
        parts = [(False, points.within.nonzero().squeeze(1))]
        if len(far) and (wide := self._wide()) is not None:
            within = self.at(x[far], wide.rows.grid).within
            parts.append((True, far[within]))
            far = far[~within]
        for on_wide, rows in parts:
            if len(rows):
                system = self.system(wide=on_wide)
                seen = self.at(x[rows], system.rows.grid)
                found[rows] = self._sample(on_wide, seen)
        if len(far):
            gaps: Literal["fill", "ignore"] = "ignore" if self.options.gaps == "ignore" else "fill"
            found[far] = variance_by_solves(self.system(), self.at(x[far]), self.options, gaps)
        return found

    def _wide(self) -> GridSystem | None:
        """The system on wider circles; None if memory or the kernel do not allow it."""
        with contextlib.suppress(ConfigError, NotPositiveDefinite):
            return self.system(wide=True)
        return None

    def _sample(self, wide: bool, points: GridPoints) -> Tensor:
        """Sampled variances of points (t,); records their error and number for ``facts``."""
        samples = self._samples
        if samples is None:
            samples = self._samples = {}
        if wide not in samples:
            system, most = self.system(wide=wide), self.variance.samples
            allowed, _ = allowed_memory(self.options.memory_budget, self.alpha.device)
            # the number of samples in the options was limited for the circles of training only
            if wide and allowed is not None:
                room = allowed // (self.alpha.element_size() * system.size) - GRID_VECTORS
                most = min(most, max(2, room))
            samples.setdefault(wide, SampledVariance(system, self.options, most))
        found = samples[wide].variance(points, self.variance.error)
        worst = max(found.error, float(self._used.get("variance_error", 0.0)))
        most = max(found.samples, int(self._used.get("variance_samples", 0)))
        self._used |= {"variance_error": worst, "variance_samples": most}
        return found.variance

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t) by pathwise conditioning.

        Exact at the points of the grid. Between them, functions are interpolated by the kernel,
        without the variance that remains given the whole grid. Beyond an axis with FFT products,
        where covariances with it are negligible, they equal the mean.

        Raises:
            ConfigError: a point beyond the circle of such an axis has non-negligible covariances.

        Cost: one solve with ``num`` right-hand sides; per call ``num`` products as for means.
        """
        system = self.system()
        if system.circular:
            system = self._wide() or system
        normals = self.alpha.new_empty(system.size, num).normal_(generator=generator)
        noise = self.alpha.new_empty(len(self.cells), num).normal_(generator=generator)
        weights = prior_weights(system, normals)
        # of the function that the weights give, without the eigenvalues that they leave out
        prior = system.covariance(None, system.rows.cells, weights)
        targets = self.residual.unsqueeze(1) - prior - self.likelihood.noise_variance.sqrt() * noise
        weights = weights + solve_gaps(system, targets, self.options).alpha

        @sampled_functions(self)
        @torch.no_grad()  # as in ``predict``
        def paths(x: Tensor) -> Tensor:
            points = self.at(x, system.rows.grid)
            if bool((points.reached & ~points.within).any()):
                raise ConfigError(
                    "sample paths were asked for beyond the circle of an axis that goes by FFT, "
                    "where its kernel is not negligible; set fft_points=None"
                )
            found = points.contract(weights) * points.reached.unsqueeze(1)
            return found.mT + self.mean(x)

        return paths

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # absent in states of earlier versions
        state_dict.setdefault(f"{prefix}prior_scale", torch.ones_like(self.prior_scale))
        super()._load_from_state_dict(state_dict, prefix, *rest)
