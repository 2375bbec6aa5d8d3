"""Structured kernel interpolation (SKI, KISS-GP): very many rows in one to four dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, DataError
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import Prepared
from gpx.linalg.interpolation import Boundary, Method, Outside
from gpx.linalg.memory import budget_in_bytes, require_memory
from gpx.means.base import Mean
from gpx.methods.base.model import Hyperparameters, Model
from gpx.methods.base.required_likelihood import require_gaussian
from gpx.methods.ski.additive import additive_kernel, additive_sizes, covariance_on
from gpx.methods.ski.covariance import MAX_DENSE_AXIS, is_stationary
from gpx.methods.ski.explained import explained_by_low_rank, explained_by_samples
from gpx.methods.ski.far_rows import first_narrow_axis
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.grid import (
    MARGIN_CELLS,
    MAX_INPUTS,
    InterpolationGrid,
    Placement,
    grid_sizes,
    parse_points,
)
from gpx.methods.ski.lengthscales import bound_lengthscales, spacing_floors
from gpx.methods.ski.placed_grid import PlacedGrid
from gpx.methods.ski.posterior import SKIPosterior
from gpx.methods.ski.projection import Projection
from gpx.methods.ski.system import NEGLIGIBLE_TRACE, SKISystem, evidence_trace
from gpx.tensor_checks import check_at_least, check_num_inputs, check_one_of, check_share
from gpx.warned_line import users_line

Products = Literal["structured", "dense"]
Variance = Literal["low_rank", "quadratic_form", "diagonal", "stochastic"]

DEFAULT_MAX_RANK = {1: 400, 2: 2000, 3: 2000, 4: 2000}
"""Default largest rank of the low-rank part, by the number of inputs."""
DEFAULT_RANK_PER_AXIS = 100
"""Default largest rank per axis of an additive model."""
DEFAULT_MAX_WAVES = 400
"""Default largest number of waves (of rank two each) that precondition solves on one axis."""
POSTERIOR_TRACE = 1e-5
"""Trace error, as ``NEGLIGIBLE_TRACE``, of the low-rank part used for predictive variances."""
PREDICTION_TOLERANCE = 1e-8
"""Largest relative residual of the solve for the predictive mean."""
MAX_MISSING_SHARE = 1e-2
"""Share of the prior, or of the noise variance, that C may lack without a warning."""


class SKI(PlacedGrid, Model):
    """Exact regression with the kernel k(x, z) = w_x^T K_UU w_z on a regular grid U.

    W (n, m) holds sparse interpolation weights. K_UU is Toeplitz (one input), a Kronecker product
    (kernels that factor over the inputs) or block Toeplitz, so that products cost O(n + m log m) or
    less. All rows in a grid cell are replaced exactly by at most 4^d rows with the same sums
    (``CellSums``), so that the costs of evidence and predictions do not depend on n.

    Args:
        kernel: stationary: RBF, Matern, rational quadratic, periodic, and their sums and products;
            it need not factor over the inputs.
        mean, likelihood: the likelihood is Gaussian.
        num_inputs: d, at most 4; with a projection, the number of its inputs.
        grid_size: points of each axis, or one number for all axes; None: from the number of rows
            (``settle``), up to 10,000, 300 x 300, 40 x 40 x 40, 20 on each of four, and 1,500
            with grid="kmeans".
        interpolation: "cubic" (4 points per axis), "linear" or "inverse_distance" (both 2).
        grid: "equidistant", over the (projected) rows, which it follows while a projection is
            learned; "fixed", behind a projection with rows of norm one: over [-r, r] on each axis,
            r the largest norm of a row, where all projections lie. The gradient by the projection
            is then exact, most points of the grid are empty, and the log-determinant "eigenvalues"
            has none. Or "kmeans", with points at cluster centres of each column and linear
            weights. Points that are not equidistant have no Toeplitz structure: the kernel must
            factor over the inputs, and every axis is a dense matrix.
        boundary: cubic weights of predictions in the end cells of an equidistant axis: "keys"
            (quadratic), "nearest", or "margin" (an error).
        rank: largest rank of the low-rank part C^T C of K_UU, which preconditions solves and gives
            predictive variances and samples. None: on one axis 400 (greedy pivots; for the evidence
            800, by waves, which need no array), on more axes 2,000 (eigenvectors of the axes; with
            an axis above 1,500 points greedy pivots, as many as fit into 512 MiB); additive: 100
            per axis, at most 2,000.
        tolerance: relative residual of solves.
        max_iterations: of conjugate gradients.
        outside: predictions outside the grid: "zero" (the prior, with a warning), "clamp" (to the
            edge) or "error".
        points: increasing points of every axis, instead of ``grid`` and ``grid_size``, in the units
            of the model's inputs; needs linear weights and a kernel that factors over the inputs.
        additive: a sum over axes of one function each, sum_l k_l(x_l, z_l), where every k_l is a
            copy of ``kernel`` (of one input) with its own hyperparameters; any number of axes.
        projection: a learned map of the inputs to at most four (additive: any number) inputs of
            the kernel and the grid. None: no projection.
        variance: predictive variances by "low_rank", rank^2 operations per point, exact up to the
            prior variance that C lacks (``variance_missing``); "quadratic_form", k(x, x) -
            w^T K_UU W^T A^{-1} W K_UU w with one solve per point, for reference; "diagonal", those
            of low_rank interpolated from the grid, O(1) per point; or "stochastic", O(1) per point
            from random solves, for rough kernels of which C lacks much, with a relative standard
            error sqrt(2 / variance_samples) of the reduction of the prior variance.
        variance_samples, seed: of "stochastic".
        mvm: products with K_UU in solves by its structure, or by the "dense" (m, m) matrix, for
            comparison; m^2 operations each.
        memory_budget: of that matrix, as in ``gpx.linalg.budget_in_bytes``; None: all free memory.

    Raises:
        ConfigError: a kernel that is not stationary, another likelihood, more than four inputs, a
            grid that is too small or too large.

    Cost: O(n q^2) once, q = 4^d. Evidence and gradient: conjugate gradient steps of O(m log m + n')
    for a few right-hand sides, and rank^3 for the low-rank part (m rank^2 with greedy pivots),
    independent of n. Solves take one to three steps for smooth kernels, about a hundred for rough
    ones.
    Source: Wilson and Nickisch 2015; Hultin 2017, section 3.2. Replacing the rows of a cell is an
    addition.
    """

    likelihood: Gaussian

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        grid_size: int | Sequence[int] | None = None,
        interpolation: Method = "cubic",
        grid: Placement = "equidistant",
        boundary: Boundary = "keys",
        rank: int | None = None,
        tolerance: float = 1e-6,
        max_iterations: int = 1000,
        outside: Outside = "zero",
        projection: Projection | None = None,
        variance: Variance = "low_rank",
        variance_samples: int = 20,
        seed: int = 0,
        points: Sequence[Sequence[float]] | None = None,
        additive: bool = False,
        mvm: Products = "structured",
        memory_budget: int | str | None = None,
    ) -> None:
        super().__init__()
        if projection is not None:
            if projection.num_inputs != num_inputs:
                raise ConfigError(
                    f"the projection takes {projection.num_inputs} inputs and the data have "
                    f"{num_inputs}"
                )
            num_inputs = projection.num_outputs
            if num_inputs > MAX_INPUTS and not additive:
                raise ConfigError(
                    f"num_outputs={num_inputs}: a grid has one to four axes; additive=True takes "
                    "any number"
                )
        self.projection, self.additive = projection, additive
        require_gaussian(likelihood, "SKI is exact regression")
        if not is_stationary(kernel):
            raise ConfigError(
                f"structured interpolation needs a stationary kernel, whose matrix on a grid is "
                f"Toeplitz, and {kernel.name} is not one; use kernel=RBF() or Matern32(), or sums "
                "and products of such"
            )
        check_one_of(get_args(Method), interpolation=interpolation)
        check_one_of(get_args(Placement), grid=grid)
        check_one_of(get_args(Boundary), boundary=boundary)
        check_one_of(get_args(Outside), outside=outside)
        check_one_of(get_args(Variance), variance=variance)
        check_one_of(get_args(Products), mvm=mvm)
        if points is not None and projection is not None:
            raise ConfigError(
                "points of a grid stay where they are and a projection moves the inputs; leave "
                "one out"
            )
        if points is not None and interpolation == "cubic":
            raise ConfigError(
                "points and interpolation=cubic: cubic weights need equidistant points; use "
                "interpolation=linear"
            )
        self.given = None if points is None else parse_points(points, num_inputs)
        if self.given is not None:
            grid_size = [len(axis) for axis in self.given]
        if grid == "fixed" and (projection is None or not projection.shortens):
            raise ConfigError(
                "grid=fixed lies where projections of rows of norm one end: give a "
                "LinearProjection with constraint=unit or orthonormal, or take grid=equidistant"
            )
        if grid == "kmeans" and interpolation == "cubic":
            raise ConfigError(
                f"grid={grid} and interpolation=cubic: cubic weights need equidistant points; use "
                "interpolation=linear"
            )
        check_at_least(
            1, rank=rank, max_iterations=max_iterations, variance_samples=variance_samples
        )
        check_share(tolerance=tolerance)
        if additive and (grid != "equidistant" or points is not None):
            raise ConfigError("additive=True needs equidistant grids; leave grid and points out")
        if additive and variance in ("diagonal", "stochastic"):
            raise ConfigError(
                f"additive=True and variance={variance}: choose low_rank or quadratic_form"
            )
        self.kernel = additive_kernel(kernel, num_inputs) if additive else kernel
        self.mean, self.likelihood = mean, likelihood
        self.inputs = num_inputs
        self._requested_sizes = grid_size
        self.placement: Placement = grid
        self.grid_size = self._sizes(1)
        self.interpolation: Method = interpolation
        self.boundary: Boundary = boundary
        self.rank, self.tolerance, self.max_iterations = rank, tolerance, max_iterations
        self.outside: Outside = outside
        self.mvm: Products = mvm
        budget_in_bytes(memory_budget)  # refuses what is none
        self.memory_budget = memory_budget
        self.variance: Variance = variance
        self.variance_samples, self.seed = variance_samples, seed
        self.register_data_sized()
        self._kept = Prepared()

    @property
    def num_inputs(self) -> int:
        """As in ``Model``: those of the projection, or of the grid."""
        return self.inputs if self.projection is None else self.projection.num_inputs

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load states of versions with equidistant grids only, which do not store ``sizes``."""
        state_dict.setdefault(prefix + "sizes", torch.tensor(self.grid_size))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def hyperparameters(self) -> Hyperparameters | None:
        """As in ``Model``; None with a projection, so that hyperparameters start as configured."""
        return super().hyperparameters() if self.projection is None else None

    def check(self, x: Tensor) -> None:
        """As in ``Model``, for the projected inputs."""
        check_num_inputs(self.num_inputs, x)
        with torch.no_grad():
            seen = self.projected(x[:1])
            self.kernel.evaluate(seen, seen)
            self.mean(x[:1])
            if self.given is not None:
                grid = InterpolationGrid.given(x, self.given, self.interpolation, self.boundary)
                covariance_on(grid, self.kernel, x.device)

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: sets the number of points of each axis."""
        sizes = self.grid_size = self._sizes(len(x))
        if self._requested_sizes is not None:
            return {}
        self._requested_sizes = sizes
        return {"grid_size": (sizes, f"for {len(x):,} rows and {self.inputs} axes")}

    def _sizes(self, num_data: int) -> list[int]:
        if self.additive:
            return additive_sizes(self._requested_sizes, num_data, self.inputs)
        least = 2 * MARGIN_CELLS + 2 if self.given is None else 2
        sizes = grid_sizes(self._requested_sizes, num_data, self.inputs, least)
        if self.placement == "kmeans" and self._requested_sizes is None:
            sizes = [min(size, MAX_DENSE_AXIS) for size in sizes]
        return sizes

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Place the grid over the inputs."""
        self.settle(x)
        with torch.no_grad():
            seen = self.projected(x)
        fixed = self.placement == "fixed"
        corners = self._reach(x) if fixed and len(x) else seen
        self._place_grid(corners)
        if self.given is None and self.placement != "kmeans":
            self._warn_of_far_rows(x, seen, corners)
        if self.projection is None or fixed:  # otherwise the spacing changes during training
            self.floors = spacing_floors(self.kernel, self.spacing, seen.amax(0) > seen.amin(0))
            bound_lengthscales(self.kernel, self.floors)
        rows = len(self.gathered(seen).weights.values)
        self.note = f"grid {(' + ' if self.additive else ' x ').join(map(str, self.grid.shape))}"
        if rows < len(x):
            self.note += f", {rows:,} rows replace {len(x):,}"

    def _warn_of_far_rows(self, x: Tensor, seen: Tensor, corners: Tensor) -> None:
        """Warn of the first axis on which most projected rows (n, d) use little of the grid."""
        found = first_narrow_axis(seen, corners)
        if found is None:
            return
        axis, share, row = found
        if self.projection is None:
            what = f"input column {axis + 1}"
        else:
            what = f"axis {axis + 1} of the projection"
            row = int(x.norm(dim=1).argmax()) if self.placement == "fixed" else row
        points = self.grid.shape[axis]
        warnings.warn(
            f"98 % of the rows lie on {100.0 * share:.2g} % of the grid along {what}, some "
            f"{max(1, round(share * points))} of its {points} points, as training row {row} is far "
            "from them: leave such rows out, clip them, or take grid=kmeans with "
            "interpolation=linear, or more points (grid_size)",
            stacklevel=users_line(),
        )

    def _reach(self, x: Tensor) -> Tensor:
        """The lowest and highest corner (2, d) of what projections with rows of norm one reach."""
        longest = x.norm(dim=1).amax()
        return torch.stack([-longest, longest]).unsqueeze(1).expand(2, self.inputs)

    def _place_grid(self, seen: Tensor) -> None:
        """Place the grid over projected inputs (n, d).

        Raises:
            DataError: no rows.
        """
        if not len(seen):
            raise DataError("a grid is placed over training inputs, and there are no rows")
        how = self.interpolation, self.boundary
        if self.given is None:
            grid = self.grid_type.covering(seen, self.grid_size, how[0], self.placement, how[1])
        else:
            grid = InterpolationGrid.given(seen, self.given, *how)
        self.place(grid, seen.device)

    def gathered(self, x: Tensor) -> Gathered:
        """Rows that replace the projected inputs x (n, d); cached until x or the grid change."""
        if x.requires_grad:
            return Gathered.of(x, self.grid)
        sources = (x, self.start, self.spacing, self.points)
        return self._kept.get("gathered", sources, lambda: Gathered.of(x, self.grid))

    def system(self, x: Tensor) -> SKISystem:
        """The kernel matrix plus noise of the rows that replace x (n, D).

        With a projection the grid is first placed over the projected inputs, unless it is fixed,
        and the matrix is differentiable in the projection's parameters.
        """
        waves = DEFAULT_MAX_WAVES if self.rank is None else self.rank // 2
        alone = self.inputs == 1 or self.additive or self.projection is not None
        left = NEGLIGIBLE_TRACE if alone else evidence_trace(len(x))
        return self.system_of(self._rows_on_grid(x), len(x), left, waves)

    def _rows_on_grid(self, x: Tensor) -> Gathered:
        seen = self.projected(x)
        if self.projection is not None and self.placement != "fixed":
            self._place_grid(seen.detach())
        return self.gathered(seen)

    def system_of(
        self, data: Gathered, num_data: int, negligible: float, waves: int = 0
    ) -> SKISystem:
        """As ``system``, for rows ``data`` that replace ``num_data`` rows; see ``SKISystem``.

        Raises:
            ConfigError: mvm="dense" and a matrix above the memory budget.
        """
        device = data.weights.values.device
        if self.mvm == "dense":
            m = self.grid.size
            require_memory(
                8 * m**2,
                device,
                f"mvm=dense stores the {m:,} x {m:,} matrix of the grid, which",
                "take mvm=structured, or fewer points (grid_size)",
                self.memory_budget,
            )
        return SKISystem(
            covariance_on(self.grid, self.kernel, device),
            data,
            self.likelihood.noise_variance.double(),
            self.max_rank,
            num_data,
            negligible,
            waves,
            stored=self.mvm == "dense",
        )

    @property
    def max_rank(self) -> int:
        """Largest rank of the low-rank part."""
        if self.rank is not None:
            return self.rank
        return (
            min(2000, DEFAULT_RANK_PER_AXIS * self.inputs)
            if self.additive
            else DEFAULT_MAX_RANK[self.inputs]
        )

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SKIPosterior:
        """The posterior: one solve for the mean, and the low-rank part for variances.

        Raises:
            DidNotConverge: the solve needs more than ``max_iterations`` steps.
        """
        system = self.system_of(self._rows_on_grid(x), len(x), POSTERIOR_TRACE)
        target, _ = system.data.residuals((y - self.mean(x)).double())
        return self.posterior_of(system, target)

    @torch.no_grad()
    def posterior_of(self, system: SKISystem, target: Tensor) -> SKIPosterior:
        """The posterior given a system and the residuals (n',) of its rows."""
        tolerance = min(self.tolerance, PREDICTION_TOLERANCE)
        solved = system.solve(target.unsqueeze(1), tolerance, self.max_iterations)
        on_grid = system.covariance.multiply(
            system.detached_weights.mT.matmul(solved.solution)
        ).squeeze(1)
        found = self.new_posterior()
        found.store_solution(self.grid, on_grid, system, solved.report, self.floors)
        if self.variance in ("low_rank", "diagonal"):
            self._warn_of_missing(system)
        if self.variance == "diagonal":
            found.explained = explained_by_low_rank(system.part, found.inner, self.grid)
        elif self.variance == "quadratic_form":
            found.store_rows(system, tolerance, self.max_iterations)
        elif self.variance == "stochastic":
            draws = torch.Generator(device=on_grid.device).manual_seed(self.seed)
            found.explained = explained_by_samples(
                system, self.variance_samples, draws, tolerance, self.max_iterations
            )
        return found

    def _warn_of_missing(self, system: SKISystem) -> None:
        """Warn if the low-rank part lacks so much of the prior variance that variances show it."""
        missing = float(system.part.missing)
        share = missing / float(system.covariance.variance)
        if share <= MAX_MISSING_SHARE or missing <= MAX_MISSING_SHARE * float(system.noise):
            return
        other = "quadratic_form" if self.additive else "stochastic"
        warnings.warn(
            f"the low-rank part of rank {system.part.rank:,} lacks up to {share:.0%} of the prior "
            "variance, by which predictive variances are too large (variance_missing); raise rank, "
            f"or take variance={other}",
            stacklevel=users_line(),
        )

    def new_posterior(self) -> SKIPosterior:
        """As in ``Model``; the position of the grid is part of the state."""
        return SKIPosterior(
            self.kernel,
            self.mean,
            self.interpolation,
            self.outside,
            self.boundary,
            self.projection,
            self.additive,
        )
