"""Exact Gaussian process regression on a Cartesian grid with gaps."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.constraints import floor_of
from gpx.errors import ConfigError, class_name
from gpx.inference.exact_solver import require_finite
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import Prepared, allowed_memory
from gpx.linalg.kronecker_workspace import KroneckerWorkspace
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.grid.axes import GRID_VECTORS, CartesianGrid, GriddedRows, column_groups, find_grid
from gpx.methods.grid.factors import AxisKernels, split_kernel
from gpx.methods.grid.gap_preconditioners import refuse_eigenpairs
from gpx.methods.grid.gaps import GapOptions, GridSolve, choose_gaps, solve_gaps
from gpx.methods.grid.posterior import GridPosterior
from gpx.methods.grid.system import GridSystem
from gpx.methods.grid.variance import (
    MAX_SOLVED_POINTS,
    VarianceName,
    VarianceOptions,
    choose_variance,
    require_dense_variance,
)
from gpx.operators import Circulant
from gpx.tensor_checks import check_at_least

LONG_AXIS = 4000
"""Axes with at least so many points use FFTs if possible, else their cost is reported."""

CIRCLE_FACTORS = (2, 4, 8, 16)
"""Sizes of the circle that are tried, in multiples of the points of the axis."""

FFTS_PER_EVALUATION = 200
"""Rough number of FFTs of the grid per evaluation, for messages."""

MAX_GAP_SHARE_OF_A_GRID = 0.99
"""Share of missing cells above which a message says that the rows are hardly a grid."""

FLOAT32_TOLERANCE = 1e-4
"""Relative residual that solves in float32 reach."""

INITIAL_LENGTHSCALE_SHARE = 1e-2
"""Initial lengthscale, relative to the axis, if the given one is too long for a circle."""


class GridGP(Model):
    """Exact Gaussian process regression for inputs on a grid, for tens of millions of rows.

    The axes are found from the rows. The kernel must be a product over them (an RBF is), and the
    likelihood Gaussian. Memory is a few vectors over the grid.

    Args:
        kernel, mean, likelihood: as above.
        axes: groups of input columns that form one axis (stations by longitude and latitude);
            None: every column is an axis.
        solver: how systems with gaps are solved, and the memory budget. None: the defaults of
            ``GapOptions``.
        variance, variance_samples, variance_error, variance_rank: see ``VarianceOptions``.
        fft_points: a regular axis of at least so many points with a stationary kernel is extended
            to a circle, whose covariance is circulant: products use FFTs, and no matrix between its
            points is formed. None: never. Solves stay exact; the log-determinant may be an
            estimate.

    Attributes:
        warm: solution of the last solve, from which the next one starts.
        prior_scale (): factor of the kernel, one unless set by ``scaled``.

    Raises:
        ConfigError: options out of range; in ``settle``, a kernel that is no product over axes, or
            a grid, or dense variances, too large for memory. DataError: two rows in one cell.

    Cost: see ``GridMLL``. Source: Evans thesis, chapter 3.
    """

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    data_sized = ("warm",)
    warm: Tensor
    prior_scale: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        axes: Sequence[Sequence[int]] | None = None,
        solver: GapOptions | None = None,
        variance: VarianceName = "auto",
        variance_samples: int = 200,
        variance_error: float = 0.1,
        variance_rank: int = 500,
        fft_points: int | None = LONG_AXIS,
    ) -> None:
        super().__init__()
        if not isinstance(likelihood, Gaussian):
            raise ConfigError(
                f"model=GridGP() is exact regression and needs likelihood=Gaussian(), got "
                f"{class_name(likelihood)}"
            )
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.axes = axes
        self.options = GapOptions() if solver is None else solver
        self.variance = VarianceOptions(variance, variance_samples, variance_rank, variance_error)
        check_at_least(2, fft_points=fft_points)
        self.fft_points = fft_points
        self.register_data_sized()
        # only set in a copy for prediction, so not part of checkpoints
        self.register_buffer("prior_scale", torch.ones(()), persistent=False)
        self._prepared = Prepared()
        self._workspace: KroneckerWorkspace | None = None

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: finds the grid; chooses the treatment of gaps and the tolerance."""
        rows = self.gridded(x)
        if rows.grid.inner:
            refuse_eigenpairs(
                self.options.precondition_rank or 0, self.variance.variance == "rank_reduced"
            )
        if self.variance.variance == "dense" and rows.gaps.shape[0]:
            require_dense_variance(rows, x, self.options.memory_budget)
        settled: dict[str, tuple[Any, str]] = {}
        asked = self.options.tolerance
        if x.dtype == torch.float32 and asked < FLOAT32_TOLERANCE and rows.gaps.shape[0]:
            self.options = dataclasses.replace(self.options, tolerance=FLOAT32_TOLERANCE)
            reason = f"solves in float32 do not reach {asked:g}; dtype=float64 does"
            settled["solver.tolerance"] = (FLOAT32_TOLERANCE, reason)
        settled |= self._limit_samples(rows, x)
        if self.options.gaps == "auto":
            chosen, reason = choose_gaps(self.options, rows)
            self.options = dataclasses.replace(self.options, gaps=chosen)
            self._resize_warm(rows)
            if rows.gap_share > MAX_GAP_SHARE_OF_A_GRID:
                reason += (
                    "; so few rows are hardly a grid: round coordinates that differ by noise only, "
                    "group columns that vary together (axes=), or take model=ExactGP() or SVGP()"
                )
            circular = [a for a in range(len(rows.grid.axes)) if rows.grid.circular(a)]
            for axis in circular:
                points, kept = rows.grid.shape[axis], rows.grid.inner_shape[axis]
                reason += (
                    f"; axis {axis} is regular: its {kept:,} points are extended to a circle of "
                    f"{points:,} for products by FFT, about {FFTS_PER_EVALUATION} FFTs over "
                    f"{rows.grid.size:,} cells per evaluation (its eigenvectors would take "
                    f"{8e-9 * kept**2:.1f} GB, fft_points=None)"
                )
            dense = [m for a, m in enumerate(rows.grid.shape) if a not in circular]
            longest = max(dense, default=0)
            if longest > LONG_AXIS:
                reason += (
                    f"; every evaluation decomposes a {longest:,} x {longest:,} covariance, about "
                    f"{9e-12 * longest**3:.1f} x 10^12 operations: if that axis is regular, two "
                    "columns in its place (such as day and hour) are far cheaper"
                )
            settled["solver.gaps"] = (chosen, f"grid of {rows.grid.describe()}; {reason}")
        return settled

    def _limit_samples(self, rows: GriddedRows, x: Tensor) -> dict[str, tuple[Any, str]]:
        """Reduce the number of samples for predictive variances to what fits into memory."""
        allowed, limit = allowed_memory(self.options.memory_budget, x.device)
        counts = x.shape[0], rows.gaps.shape[0]
        gaps = "fill" if rows.gaps.shape[0] else "full"
        chosen = choose_variance(self.variance, gaps, MAX_SOLVED_POINTS + 1, *counts)
        if allowed is None or chosen != "sampled":
            return {}
        room = allowed // (x.element_size() * rows.grid.size) - GRID_VECTORS
        if room >= self.variance.samples:
            return {}
        asked, fewer = self.variance.samples, max(2, int(room))
        self.variance = dataclasses.replace(self.variance, samples=fewer)
        size = asked * x.element_size() * rows.grid.size / 2**30
        reason = (
            f"{asked} vectors over {rows.grid.size:,} cells would take {size:.1f} GiB, "
            f"and {limit}; the part of variances due to gaps may have a "
            f"relative error of {(2.0 / fewer) ** 0.5:.0%}"
        )
        return {"variance_samples": (fewer, reason)} if fewer < asked else {}

    def gridded(self, x: Tensor) -> GriddedRows:
        """Grid and cells of the rows x (n, d); cached for the same tensor.

        Raises:
            DataError, ConfigError: see ``find_grid`` and ``split_kernel``.
        """
        # raises for a kernel that does not factor, before rows are sorted
        kernels = split_kernel(self.kernel, column_groups(x.shape[1], self.axes))

        def extend_axis(axis: int, points: int) -> bool:
            long = self.fft_points is not None and points >= self.fft_points
            return long and self.options.gaps != "full" and kernels.stationary(axis)

        budget = self.options.memory_budget
        rows = self._prepared.get(
            "rows", [x], lambda: find_grid(x, self.axes, extend_axis, memory_budget=budget)
        )
        times = self._circle(rows.grid, kernels)
        if times > CIRCLE_FACTORS[0]:
            with contextlib.suppress(ConfigError):  # no memory: GridSystem raises the error
                rows = self._prepared.get(
                    f"rows, {times} times",
                    [x],
                    lambda: find_grid(x, self.axes, extend_axis, times, budget),
                )
        self._resize_warm(rows)
        return rows

    @torch.no_grad()
    def _circle(self, grid: CartesianGrid, kernels: AxisKernels) -> int:
        """The smallest of ``CIRCLE_FACTORS`` for which circulants are positive semi-definite.

        At the current hyperparameters; if there is none, the first, and GridSystem raises an error.
        """
        axes = [axis for axis in range(len(grid.axes)) if grid.circular(axis)]
        for times in CIRCLE_FACTORS:
            if all(circle_is_definite(kernels, grid, axis, times) for axis in axes):
                return times
        return CIRCLE_FACTORS[0]

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Shorten lengthscales that are too long for the circle of an axis with FFT products.

        Initial hyperparameters come from a random subset of the rows, which may be too sparse along
        a long axis to show its variation.
        """
        grid, shortened = self.gridded(x).grid, []
        kernels = split_kernel(self.kernel, grid.groups)
        for axis, points in enumerate(grid.axes):
            if not grid.circular(axis) or circle_is_definite(
                kernels, grid, axis, CIRCLE_FACTORS[-1]
            ):
                continue
            step = float(points[-1] - points[0]) / (points.shape[0] - 1)
            start = INITIAL_LENGTHSCALE_SHARE * step * grid.inner[axis]
            kept = {name: value.clone() for name, value in self.kernel.state_dict().items()}
            kernels.set_lengthscale(axis, grid.groups[axis][0], start)
            if not circle_is_definite(
                kernels, grid, axis, CIRCLE_FACTORS[-1]
            ):  # a periodic kernel or a fixed lengthscale, say
                self.kernel.load_state_dict(kept)
                continue
            shortened.append(f"lengthscale of axis {axis} set to {start:.3g}")
        if shortened:
            self.note = f"{', '.join(shortened)}: it was too long for products by FFT"

    def axis_kernels(self, rows: GriddedRows) -> AxisKernels:
        """The kernel as a product over the axes."""
        return split_kernel(self.kernel, rows.grid.groups, self.prior_scale)

    def scaled(self, factor: float) -> GridGP:
        """A copy with prior covariance and noise variance multiplied by ``factor``.

        Predictive means stay the same and variances are multiplied, unless the noise variance
        reaches its lower bound (``likelihood.noise_floor``).

        Raises:
            ConfigError: the factor is not positive and finite.
        """
        if not 0.0 < factor < math.inf:
            raise ConfigError(
                f"the scale of the prior cannot be multiplied by {factor:.3g}: it must be "
                "positive and finite (are all targets equal?)"
            )
        shared = (self._prepared, self._workspace)  # not copied
        other = copy.deepcopy(self, {id(kept): kept for kept in shared})
        other.prior_scale.mul_(factor)
        noise = factor * other.likelihood.noise_variance.detach()
        other.likelihood.noise_variance = noise.clamp_(
            min=floor_of(other.likelihood, "noise_variance")
        )
        return other

    def system(self, rows: GriddedRows, factors: Sequence[Tensor]) -> GridSystem:
        """K + sigma^2 I for given covariances of the axes; uses this model's buffers."""
        shape = rows.grid.shape
        workspace = self._workspace
        if workspace is None or workspace.sizes != shape:
            workspace = self._workspace = KroneckerWorkspace(shape)
        return GridSystem(factors, self.likelihood.noise_variance, rows, workspace)

    @torch.no_grad()
    def solve(self, system: GridSystem, target: Tensor, *, remember: bool = True) -> GridSolve:
        """Solve for target (N,), starting from ``warm``, which ``remember`` updates."""
        start = self.warm.to(target) if self.warm.shape[0] else None
        found = solve_gaps(system, target, self.options, start=start)
        if remember and found.state is not None and bool(torch.isfinite(found.state).all()):
            self.warm.copy_(found.state)
        return found

    def _resize_warm(self, rows: GriddedRows) -> None:
        gaps, _ = choose_gaps(self.options, rows)
        sizes = {
            "full": 0,
            "fill": rows.gaps.shape[0],
            "ignore": rows.cells.shape[0],
            "penalize": rows.grid.size,
        }
        if self.warm.shape[0] != sizes[gaps]:
            self.warm = self.warm.new_zeros(sizes[gaps])

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> GridPosterior:
        """Posterior given x (n, d) on a grid and y (n,).

        Cost: one solve, see ``solve_gaps``. A solve that does not converge is a warning.

        Raises:
            DataError: targets that are not finite, two rows in one cell.
        """
        rows = self.gridded(x)
        target = y - self.mean(x)
        require_finite(target)
        system = self.system(rows, self.axis_kernels(rows).matrices(rows.grid))
        found = self.solve(system, target, remember=False)
        posterior = self.new_posterior()
        posterior.prior_scale = self.prior_scale.clone()
        posterior.fill_(rows, target, found.alpha, found.report)
        return posterior

    def new_posterior(self) -> GridPosterior:
        """As in ``Model``."""
        return GridPosterior(self.kernel, self.mean, self.likelihood, self.options, self.variance)


def circle_is_definite(kernels: AxisKernels, grid: CartesianGrid, axis: int, times: int) -> bool:
    """Whether covariances on a circle of ``times`` the axis are positive semi-definite."""
    return Circulant(kernels.circulant(grid, axis, times)).definite
