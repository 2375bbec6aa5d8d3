"""Posterior process of a Gaussian process on a grid."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import SolveReport
from gpx.means.base import Mean
from gpx.models.base import Marginals, Posterior
from gpx.models.grid_axes import CartesianGrid, GriddedRows
from gpx.models.grid_factors import AxisKernels, split_kernel
from gpx.models.grid_gaps import GapOptions, choose_gaps, solve_gaps
from gpx.models.grid_points import GridPoints
from gpx.models.grid_system import GridSystem
from gpx.models.grid_variance import (
    SampledVariance,
    VarianceBracket,
    VarianceOptions,
    choose_variance,
    full_variance,
    prior_weights,
    rank_reduced_variance,
    solved_variance,
    variance_bracket,
)

SEED = 2017
"""Of the normals behind sampled variances: the same posterior always says the same."""


class GridPosterior(Posterior):
    """Posterior process of ``GridGP``; predicts on the grid, between its points and beyond it.

    Its state is the axes, which cells were observed, and the weights alpha over the whole grid:
    O(M). What variances need is rebuilt at the first prediction after loading.

    Attributes:
        points (sum_l m_l d_l,), axis_shapes (d, 3), columns (sum_l d_l,): the axes, flattened; the
            shapes are m_l, d_l and the points before an axis was closed to a circle, or 0.
        cells (N,): observed cells in the order of the training rows.
        residual (N,), alpha (M,): y - m(x) and the weights of the mean.
        report: of the solve; None for a posterior read back from a file.
    """

    data_sized = ("points", "axis_shapes", "columns", "cells", "residual", "alpha")
    points: Tensor
    axis_shapes: Tensor
    columns: Tensor
    cells: Tensor
    residual: Tensor
    alpha: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_data: int,
        options: GapOptions,
        variance: VarianceOptions,
    ) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        self.mean = copy.deepcopy(mean).requires_grad_(False)
        self.likelihood = copy.deepcopy(likelihood).requires_grad_(False)
        self.options, self.variance = options, variance
        self.report: SolveReport | None = None
        like = self.likelihood.noise_variance.detach()
        whole = torch.zeros(0, dtype=torch.long, device=like.device)
        self.register_buffer("points", like.new_zeros(0))
        self.register_buffer("axis_shapes", whole.new_zeros(0, 3))
        self.register_buffer("columns", whole)
        self.register_buffer("cells", whole.new_zeros(num_data))
        self.register_buffer("residual", like.new_zeros(num_data))
        self.register_buffer("alpha", like.new_zeros(0))
        self._kept: tuple[GridSystem, SampledVariance | None] | None = None
        self._used = ""

    def fill_(
        self,
        rows: GriddedRows,
        residual: Tensor,
        alpha: Tensor,
        report: SolveReport | None,
    ) -> None:
        """Take over what a solve found."""
        grid = rows.grid
        device = alpha.device
        self.points = torch.cat([a.reshape(-1) for a in grid.axes]).to(alpha)
        inner = grid.inner or (0,) * len(grid.axes)
        shapes = [(*a.shape, i) for a, i in zip(grid.axes, inner, strict=True)]
        self.axis_shapes = torch.tensor(shapes, device=device)
        self.columns = torch.tensor([c for group in grid.groups for c in group], device=device)
        self.cells, self.residual = rows.cells.clone(), residual.detach().clone()
        self.alpha, self.report = alpha, report

    # -- what is rebuilt --------------------------------------------------------------------------

    @property
    def grid(self) -> CartesianGrid:
        """The axes."""
        axes, groups, inner, at, column = [], [], [], 0, 0
        for m, d, *kept in self.axis_shapes.tolist():
            inner.append(kept[0] if kept else 0)  # posteriors once were written without
            axes.append(self.points[at : at + m * d].view(m, d))
            groups.append(tuple(self.columns[column : column + d].tolist()))
            at, column = at + m * d, column + d
        return CartesianGrid(tuple(axes), tuple(groups), tuple(inner) if any(inner) else ())

    def axis_kernels(self) -> AxisKernels:
        """The kernel taken apart over the axes."""
        return split_kernel(self.kernel, self.grid.groups)

    def system(self) -> GridSystem:
        """K + sigma^2 I; eigendecompositions are made once."""
        if self._kept is None:
            grid = self.grid
            observed = torch.zeros(grid.size, dtype=torch.bool, device=self.cells.device)
            observed[self.cells] = True
            rows = GriddedRows(grid, self.cells, (~observed).nonzero().squeeze(1))
            factors = self.axis_kernels().matrices(grid)
            self._kept = (GridSystem(factors, self.likelihood.noise_variance, rows), None)
        return self._kept[0]

    def at(self, x: Tensor) -> GridPoints:
        """The points x (t, d) seen from the grid; raises ShapeError for another d."""
        if x.ndim != 2 or x.shape[1] != self.columns.shape[0]:
            raise ShapeError(f"expected inputs (t, {self.columns.shape[0]}), got {tuple(x.shape)}")
        return GridPoints(self.grid, self.axis_kernels(), x)

    # -- predictions ------------------------------------------------------------------------------

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        found: dict[str, bool | int | float | str] = {
            "gaps": self.options.gaps,
            "grid_cells": self.grid.inner_size,
        }
        if self._used:
            found["variance"] = self._used
        if self.report is not None:
            found["solver_iterations"] = self.report.iterations
            found["solver_converged"] = self.report.converged
            found["solver_residual"] = self.report.residual
        return found

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Cost: mean one rectangular Kronecker product where the points share coordinates, else t M;
        variance as ``VarianceOptions`` says.
        """
        points = self.at(x)
        mean = self.mean(x) + points.contract(self.alpha)
        system = self.system()
        gaps, _ = choose_gaps(self.options, system.num_gaps, system.size, system.inner_size)
        self._used = choose_variance(self.variance, gaps, x.shape[0])
        if self._used == "full":
            variance = full_variance(system, points)
        elif self._used == "sampled":
            variance = self._sampled().variance(system, points)
        elif self._used == "rank_reduced":
            variance = rank_reduced_variance(system, points, self.options, self.variance.rank)
        else:
            variance = solved_variance(system, points, self.options, self._used)  # type: ignore[arg-type]
        return Marginals(mean, variance.clamp_(min=0.0))

    @torch.no_grad()
    def predict_mean(self, x: Tensor) -> Tensor:
        """The mean alone, (t,)."""
        return self.mean(x) + self.at(x).contract(self.alpha)

    @torch.no_grad()
    def variance_bracket(self, x: Tensor) -> VarianceBracket:
        """Certified ends of the latent variance at x (t, d); two solves per point."""
        return variance_bracket(self.system(), self.at(x), self.options)

    def _sampled(self) -> SampledVariance:
        system = self.system()
        assert self._kept is not None
        kept = self._kept[1]
        if kept is None:
            generator = torch.Generator(device=self.alpha.device).manual_seed(SEED)
            kept = SampledVariance(system, self.options, self.variance.samples, generator)
            self._kept = (system, kept)
        return kept

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t) by pathwise conditioning.

        Exact at the points of the grid. Between them the functions are their own interpolation by
        the kernel: the variance that the whole grid leaves unexplained is missing there.

        Cost: one solve with ``num`` right-hand sides; per call ``num`` products as for means.
        """
        system = self.system()
        like = {"dtype": self.alpha.dtype, "device": self.alpha.device}
        normals = torch.randn(system.size, num, generator=generator, **like)  # type: ignore[call-overload]
        noise = torch.randn(self.cells.shape[0], num, generator=generator, **like)  # type: ignore[call-overload]
        prior = system.root(normals)[self.cells]
        targets = self.residual.unsqueeze(1) - prior - self.likelihood.noise_variance.sqrt() * noise
        weights = prior_weights(system, normals) + solve_gaps(system, targets, self.options).alpha

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            points = self.at(x)
            return points.contract(weights).mT + self.mean(x)

        return paths

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._kept = None
