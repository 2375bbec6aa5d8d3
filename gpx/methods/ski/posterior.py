"""Posterior process of structured kernel interpolation; predictions do not depend on n."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from gpx.backends import row_slices
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.linalg import Prepared, SolveReport
from gpx.linalg.interpolation import Boundary, Method, Outside
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.ski.additive import covariance_on
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.low_rank import EigenPart, LowRankPart, PivotedPart
from gpx.methods.ski.placed_grid import PlacedGrid
from gpx.methods.ski.projection import Projection
from gpx.methods.ski.system import SKISystem
from gpx.operators import Interpolated, Interpolation

CHUNK_ENTRIES = 1 << 24
"""Entries of low-rank rows in memory at a time."""
SOLVE_COLUMNS = 64
"""Right-hand sides per solve for variances."""


class SKIPosterior(PlacedGrid, Posterior):
    """f(x) = mean(x) + w_x^T g, with variances from the low-rank part C^T C of K_UU.

    With B = I + C W^T W C^T / noise = L L^T and c = C w_x, the variance is |L^{-1} c|^2 plus
    k(x, x) - |c|^2, the prior variance that C lacks and that is lost by interpolation. ``facts``
    has its largest value on the grid.

    For kernels that do not factor over two or three inputs C^T C may exceed K_UU; variances are
    clipped at the prior variance. variance="stochastic" does not have this error.

    Attributes:
        on_grid (m,): g = K_UU W^T (K + noise I)^{-1} r.
        low_rank (r, m): C if it is an array, otherwise empty.
        axis_vectors (sum m_l, c), columns (r, d), roots (r,): C as an ``EigenPart``, otherwise
            empty.
        inner (r, r): L.
        missing (): largest prior variance at a grid point that C lacks.
        lost (): prior variance that interpolation loses in the middle of the widest cell. Variances
            by "low_rank" and "quadratic_form" are too large by up to this between grid points.
        explained (m,): reduction of the prior variance at the grid points for "diagonal" and
            "stochastic", otherwise empty.
        row_values, row_indices (n', q), noise (), solves (2,): W, noise variance, tolerance and
            most iterations for "quadratic_form", otherwise empty.

    Cost per row: mean 4^d multiply-adds, variance 4^d r + r^2; memory m r.
    Source: Hultin 2017, section 3.3 (mean); Pleiss et al. 2018 (cached low-rank variances).
    """

    data_sized = (
        *PlacedGrid.data_sized,
        *("on_grid", "low_rank", "axis_vectors", "roots", "columns", "inner", "missing", "lost"),
        *("explained", "row_values", "row_indices", "noise", "solves"),
    )
    later = (
        *PlacedGrid.later,
        *("axis_vectors", "roots", "columns"),  # older versions stored an array only
        *("explained", "row_values", "row_indices", "noise", "solves", "lost"),
    )
    on_grid: Tensor
    low_rank: Tensor
    axis_vectors: Tensor
    roots: Tensor
    columns: Tensor
    inner: Tensor
    missing: Tensor
    lost: Tensor
    explained: Tensor
    row_values: Tensor
    row_indices: Tensor
    noise: Tensor
    solves: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        interpolation: Method = "cubic",
        outside: Outside = "zero",
        boundary: Boundary = "keys",
        projection: Projection | None = None,
        additive: bool = False,
    ) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.interpolation: Method = interpolation
        self.outside: Outside = outside
        self.boundary: Boundary = boundary
        self.projection, self.additive = copy.deepcopy(projection), additive
        if self.projection is not None:
            self.projection.requires_grad_(False)
        self.report: SolveReport | None = None
        self._fixed: tuple[InterpolationGrid, LowRankPart] | None = None
        self._kept = Prepared()
        self.register_data_sized()

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: those of the projection, or of the grid; None until it is placed."""
        if self.projection is not None:
            return self.projection.num_inputs
        return len(self.sizes) or None

    @torch.no_grad()
    def store_solution(
        self,
        grid: InterpolationGrid,
        on_grid: Tensor,
        system: SKISystem,
        report: SolveReport,
        floors: Tensor,
    ) -> SKIPosterior:
        """Store the grid and the results of a solve."""
        self.place(grid, on_grid.device)
        self.on_grid, self.report, self.floors = on_grid, report, floors
        self.inner = system.preconditioner.capacitance.factor.contiguous()
        part, missing = system.part, system.part.missing
        self.missing = missing
        middle = grid.middle(on_grid)
        kept = Interpolated(grid.weights(middle), system.base.detach())._diagonal()
        self.lost = (self.kernel.diagonal(middle).double() - kept).squeeze(0)
        if isinstance(part, PivotedPart):
            self.low_rank = part.factor
        elif isinstance(part, EigenPart):
            columns = max(v.shape[1] for v in part.vectors)
            self.axis_vectors = torch.cat([_padded(v, columns) for v in part.vectors])
            self.roots = part.roots
            self.columns = part.columns
        return self

    @torch.no_grad()
    def store_rows(self, system: SKISystem, tolerance: float, max_iterations: int) -> None:
        """Store the rows, noise and settings for variances by solves."""
        self.row_values, self.row_indices = system.weights.values, system.weights.indices
        self.noise = system.noise.detach()
        self.solves = self.noise.new_tensor([tolerance, float(max_iterations)])

    @property
    def system(self) -> SKISystem:
        """The matrix of the stored training rows; cached."""
        sources = (self.row_values, self.row_indices, self.noise, self.inner, self.sizes)
        where = (self.start, self.spacing, self.points, *self.kernel.parameters())
        return self._kept.get("system", (*sources, *where), self._system)

    def _system(self) -> SKISystem:
        grid, values = self.grid, self.row_values
        weights = Interpolation(values, self.row_indices.long(), num_columns=grid.size)
        return SKISystem(
            covariance_on(grid, self.kernel, values.device),
            Gathered.of_weights(weights, grid.shape),
            self.noise,
            len(self.inner),
            len(values),
        )

    def _reduction_by_solves(self, weights: Interpolation, system: SKISystem) -> Tensor:
        """w^T K_UU W^T A^{-1} W K_UU w (t,) for the rows w of weights (t, m)."""
        count = len(weights.values)
        found = self.noise.new_empty(count)
        tolerance, most = self.solves.tolist()
        for some in row_slices(count, SOLVE_COLUMNS):
            rows = Interpolation(
                weights.values[some], weights.indices[some], num_columns=weights.num_columns
            )
            eye = torch.eye(some.stop - some.start, dtype=found.dtype, device=found.device)
            right = system.weights.matmul(system.covariance.multiply(rows.mT.matmul(eye)))
            solved = system.solve(right, tolerance, int(most)).solution
            found[some] = (right * solved).sum(0)
            if weights.values.requires_grad:  # a quadratic form in w: twice the change of one side
                back = system.covariance.multiply(system.weights.mT.matmul(solved))
                side = (weights.values[some] * back.mT.gather(1, weights.indices[some])).sum(1)
                found[some] += 2.0 * (side - side.detach())
        return found

    @property
    def part(self) -> LowRankPart:
        """C, from the buffers."""
        if not self.columns.numel():
            return PivotedPart(self.low_rank, self.missing)
        vectors = self.axis_vectors.split(self.sizes.tolist())
        used = [int(c.max()) + 1 for c in self.columns.unbind(1)]
        return EigenPart(
            self.grid,
            [v[:, :c] for v, c in zip(vectors, used, strict=True)],
            self.columns,
            self.roots,
            self.missing,
        )

    def fix(self) -> None:
        """As in ``Posterior``: reads the grid and the low-rank part from the buffers.

        Raises:
            ConfigError: variance="quadratic_form", whose solves cannot be recorded.
        """
        if self.row_values.numel():
            raise ConfigError(
                "variance=quadratic_form solves a system for every prediction, which no recorded "
                "program can; train with variance=low_rank"
            )
        self._fixed = self.grid, self.part

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: the grid, and the accuracy of the variances."""
        found: dict[str, bool | int | float | str] = {
            "grid": " x ".join(map(str, self.sizes.tolist())),
            "variance_rank": len(self.inner),
            "variance_missing": float(self.missing),
        }
        if self.lost.numel():
            found["variance_lost"] = float(self.lost)
        if self.report is not None:
            found["solve_iterations"] = self.report.iterations
        return found

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d)."""
        grid, part = (self.grid, self.part) if self._fixed is None else self._fixed
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        system: SKISystem | None = None
        for rows in row_slices(x.shape[0], max(1, CHUNK_ENTRIES // part.entries_at(grid))):
            seen = self.projected(x[rows])
            weights = grid.weights(seen, self.outside)
            at, *taken = self._interpolated(weights)
            prior = self.kernel.diagonal(seen).double()
            if self.row_values.numel():
                if system is None:
                    system = self.system
                latent = (prior - self._reduction_by_solves(weights, system)).clamp_min(0.0)
            elif taken:
                latent = (prior - taken[0]).clamp_min(0.0)
            else:
                carried = part.at(weights, seen, self.outside)
                left = (prior - carried.square().sum(0)).clamp_min(0.0)
                solved = torch.linalg.solve_triangular(self.inner, carried, upper=False)
                latent = left + solved.square().sum(0)
            mean[rows] = self.mean(x[rows]) + at.to(x.dtype)
            variance[rows] = latent.to(x.dtype)
        return Marginals(mean, variance)

    def _interpolated(self, weights: Interpolation) -> Sequence[Tensor]:
        """w^T g, and w^T of the explained variances if they are stored, (t,) each."""
        grids = [self.on_grid, *([self.explained] if self.explained.numel() else [])]
        if self._fixed is not None or not self.on_grid.is_cpu:  # recorded programs know gathers
            return [(values[weights.indices] * weights.values).sum(1) for values in grids]
        # side by side: on a large grid a prediction costs the cache lines that it waits for
        table = grids[0].unsqueeze(1)
        if len(grids) > 1:
            table = self._kept.get("table", tuple(grids), lambda: torch.stack(grids, 1))
        return embedding_bag(
            weights.indices, table, per_sample_weights=weights.values, mode="sum"
        ).unbind(1)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t): g + C^T L^{-T} e on the grid, interpolated.

        Their mean is exact; their variance is without the prior variance that C lacks.
        Cost: num m r once, 4^d per value.
        """
        noise = self.inner.new_empty(len(self.inner), num).normal_(generator=generator)
        turned = torch.linalg.solve_triangular(self.inner.mT, noise, upper=True)
        values = self.on_grid.unsqueeze(1) + self.part.expand(turned)

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            weights: Interpolation = self.grid.weights(self.projected(x), self.outside)
            return self.mean(x) + weights.matmul(values).mT.to(x.dtype)

        return paths


def _padded(matrix: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, columns - matrix.shape[1]))
