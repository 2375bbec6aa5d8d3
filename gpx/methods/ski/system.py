"""W K_UU W^T + noise I at given hyperparameters, preconditioned by a low-rank part of K_UU."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from linear_operator import LinearOperator
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import (
    CGResult,
    ProductsPlusNoise,
    RelativeResidual,
    cholesky,
    conjugate_gradients,
    with_gradient,
)
from gpx.methods.ski.covariance import GridCovariance
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.low_rank import EigenPart, LowRankPart, PivotedPart
from gpx.methods.ski.waves import WavePart
from gpx.operators import Interpolated, Interpolation

NEGLIGIBLE_TRACE = 1e-2
"""Negligible trace error of the low-rank part, summed over the data and divided by the noise
variance: a bound in nats on what the missing part adds to the log-determinant."""
TRACE_PER_ROW, MAX_TRACE = 5e-5, 1.0
"""Trace error per row, and at most, on several axes; a smaller one costs more than it saves."""
MAX_FACTOR_BYTES = 1 << 30
"""Largest memory of a low-rank part that is stored as an array, which limits its rank; of that part
at the rows; and of W^T W."""
TIMES_PER_WEIGHT = 16
"""Columns of a dense product that take the time of one weight per row of W in sparse products:
these are ten to thirty times slower per multiply-add, and a step has two or three of them."""
MAX_DENSE_ROWS = 10_000
"""Most rows of a matrix that is factorised for reference."""


def evidence_trace(num_data: int) -> float:
    """Trace error, as ``NEGLIGIBLE_TRACE``, of the low-rank part for the evidence on several axes.

    There its cost is cubic in the rank, and a larger error saves many vectors at the price of a few
    hundredths of a nat in the standard error.
    """
    return min(MAX_TRACE, max(NEGLIGIBLE_TRACE, TRACE_PER_ROW * num_data))


class SKISystem:
    """A = W K W^T + noise I, preconditioned by a low-rank part C^T C of the grid's matrix K.

    Args:
        covariance: K, differentiable.
        data: W and sums over its rows; differentiable if the inputs are.
        noise (): noise variance, differentiable.
        rank: largest rank of C; limited by memory.
        num_data: number of data rows that the rows of W replace.
        negligible: trace error, as ``NEGLIGIBLE_TRACE``, at which C counts as complete.
        waves: most waves for C; see ``GridCovariance.low_rank``.
        stored: multiply by K as an array in solves.

    Attributes:
        weights, detached_weights: W, with and without a graph.
        part: C (r, m).
        left_out: ``negligible``.
        preconditioner: Q = W C^T C W^T + noise I, an approximation of A.

    Cost: m r^2 + n r^2 once; m r^2 + m^2 r if n is so large that W^T W, which is kept with the
    data, takes less time than C W^T; or much less if K is a Kronecker product.
    """

    def __init__(
        self,
        covariance: GridCovariance,
        data: Gathered,
        noise: Tensor,
        rank: int,
        num_data: int,
        negligible: float = NEGLIGIBLE_TRACE,
        waves: int = 0,
        stored: bool = False,
    ) -> None:
        self.covariance, self.data, self.noise = covariance, data, noise
        self._moment_times_pivots: Tensor | None = None
        self.weights = data.weights
        self.detached_weights = data.weights
        if self.weights.values.requires_grad:
            self.detached_weights = Interpolation(
                self.weights.values.detach(),
                self.weights.indices,
                num_columns=self.weights.num_columns,
            )
        points = self.weights.shape[-1]
        with torch.no_grad():
            self.stored = self.base.to_dense() if stored else None
            self.left_out, per_noise = negligible, num_data / (points * float(noise.detach()))
            limit = negligible / per_noise
            self.part: LowRankPart = covariance.low_rank(
                rank, limit, max(1, MAX_FACTOR_BYTES // (16 * points)), waves
            )
            self.preconditioner = self._preconditioner()
            threshold = self.part.threshold
            self._largest_left = None if threshold is None else per_noise * float(threshold)

    @property
    def base(self) -> LinearOperator:
        """K."""
        return self.covariance.operator

    @cached_property
    def matrix(self) -> LinearOperator:
        """A, differentiable."""
        return Interpolated(self.weights, self.base) + ConstantDiagLinearOperator(
            self.noise.reshape(1), diag_shape=self.weights.shape[-2]
        )

    def _preconditioner(self) -> ProductsPlusNoise:
        part, w = self.part, self.detached_weights
        if isinstance(part, PivotedPart) and self._stores_rows(part):
            factor = w.matmul(part.factor.mT).mT  # (r, n)
            project, expand, gram = factor.matmul, factor.mT.matmul, factor @ factor.mT
        else:
            if isinstance(part, PivotedPart):
                gram = part.factor @ self.moment_times_pivots(part)
            elif isinstance(part, WavePart):
                gram = part.gram_of(self.data.products_of_waves(part.waves, part.period))
            else:
                assert isinstance(part, EigenPart)
                gram = part.gram(self.data.moments)

            def project(v: Tensor) -> Tensor:
                return part.project(w._t_multiply(v))

            def expand(low: Tensor) -> Tensor:
                return w._multiply(part.expand(low))

        return ProductsPlusNoise(
            project, expand, gram, len(w.values), self.noise.detach(), below_kernel=part.below
        )

    def _stores_rows(self, part: PivotedPart) -> bool:
        """Whether C W^T (r, n) is stored; otherwise products go through the grid.

        A step multiplies n r (r + a few q) times with C W^T for q weights per row, and m^2 r times
        with W^T W (m, m), so that many rows are cheaper through the grid. W that changes with every
        step has a new W^T W each time, which costs what it saves.
        """
        rows, points = self.detached_weights.shape[-2:]
        columns = part.rank + TIMES_PER_WEIGHT * self.detached_weights.values.shape[-1]
        if not self.weights.values.requires_grad and points**2 <= min(
            rows * columns, MAX_FACTOR_BYTES // 8
        ):
            return False
        return part.rank <= MAX_FACTOR_BYTES // (8 * (rows + 2 * points))

    def moment_times_pivots(self, part: PivotedPart) -> Tensor:
        """W^T W C^T (m, r) of greedy pivots, without a graph; kept unless C W^T is stored."""
        w = self.detached_weights
        if self._stores_rows(part):
            return w.mT.matmul(w.matmul(part.factor.mT))
        if self._moment_times_pivots is None:
            self._moment_times_pivots = self.data.second_moment_times(
                part.factor.mT, MAX_FACTOR_BYTES
            )
        return self._moment_times_pivots

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors with gradients: those of the covariance, the noise, and W if it has a graph."""
        values = self.weights.values
        return [*self.covariance.tensors, self.noise, *([values] if values.requires_grad else [])]

    @torch.no_grad()
    def multiply(self, vectors: Tensor) -> Tensor:
        """A times vectors (n, c), without a graph."""
        w = self.detached_weights
        seen = w._t_multiply(vectors)
        on_grid = self.covariance.multiply(seen) if self.stored is None else self.stored @ seen
        found = w._multiply(on_grid)
        return found.addcmul_(vectors, self.noise)

    @torch.no_grad()
    def solve(
        self,
        right: Tensor,
        tolerance: float,
        max_iterations: int,
        *,
        keep_preconditioned: bool = False,
    ) -> CGResult:
        """A^{-1} times right (n, c); see ``conjugate_gradients``.

        Raises:
            DidNotConverge: more than ``max_iterations`` steps.
        """
        return conjugate_gradients(
            self.multiply,
            right,
            preconditioner=self.preconditioner,
            stop=RelativeResidual(tolerance),
            max_iterations=max_iterations,
            keep_preconditioned=keep_preconditioned,
        )

    def expected_error(self, probes: int) -> float:
        """Bound on the standard error of log |A| by probes, for complete C and evenly spread rows.

        The part of A / noise that C lacks has a trace of at most T and eigenvalues of at most t, so
        that its Frobenius norm is at most (t T)^{1/2}, and at most T.
        """
        largest = self.left_out if self._largest_left is None else self._largest_left
        return math.sqrt(2.0 * min(largest, self.left_out) * self.left_out / probes)

    def logdet_bracket(self) -> tuple[float, float] | None:
        """Bounds on log |A|: log |Q|, and that plus tr(A - Q) / noise; None unless Q <= A.

        Cost: O(m) on regular grids, else look-ups of n q^2 covariances of neighbouring points.
        """
        if not self.part.below:
            return None
        with torch.no_grad():
            low = float(self.preconditioner.logdet())
            lags = self.covariance.lags()
            if lags is None:
                trace = self.matrix.diagonal().sum() - len(self.weights.values) * self.noise
            else:
                trace = (self.data.grams_by_lag(1)[0] * lags).sum()
            left = trace / self.noise - self.preconditioner.capacitance.gram.trace()
            return low, low + max(0.0, float(left))

    def dense_logdet(self) -> Tensor:
        """log |A| by Cholesky, differentiable.

        Raises:
            ConfigError: more than ``MAX_DENSE_ROWS`` rows.
        """
        rows = len(self.weights.values)
        if rows > MAX_DENSE_ROWS:
            raise ConfigError(
                f"logdet=cholesky of {rows:,} rows is a dense matrix of "
                f"{rows**2 * 8 / 2**30:,.1f} GiB; at most {MAX_DENSE_ROWS:,} rows are taken: use "
                "logdet=lanczos"
            )
        dense = self.matrix.to_dense()
        factor, _ = cholesky(dense.detach(), name="W K W^T + noise I", ladder=(0.0,))
        value = 2.0 * factor.diagonal().log().sum()
        return with_gradient(value, [dense], [torch.cholesky_inverse(factor)])

    @property
    def smallest_eigenvalue(self) -> float | None:
        """A lower bound on the eigenvalues of Q^{-1/2} A Q^{-1/2}: 1 minus rounding.

        None unless Q <= A.
        """
        if not self.part.below:
            return None
        scale = self.covariance.variance / self.noise.detach()
        size = max(float(self.weights.shape[-2]), float(self.data.total.trace()))
        rounding = torch.finfo(torch.float64).eps * (1.0 + size * float(scale))
        return 1.0 - min(0.5, 64.0 * rounding)
