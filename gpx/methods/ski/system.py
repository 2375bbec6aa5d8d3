"""W K_UU W^T + noise I at given hyperparameters, preconditioned by a low-rank part of K_UU."""

from __future__ import annotations

import math

import torch
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

NEGLIGIBLE = 1e-2
"""Trace error of the low-rank part, summed over the data in noise variances, at which more of it
would change the log-determinant by less than that many nats."""
LEFT_OF_ROW, MOST_LEFT = 5e-5, 1.0
"""The same by row, and at most, where another vector of that part costs more than it saves."""
FACTOR_BYTES = 1 << 30
"""Of a low-rank part kept as an array, on the grid and at the rows; limits its rank."""
MOST_DENSE = 10_000
"""Rows of a matrix that is factorised for reference."""


def cheap_to_leave(num_data: int) -> float:
    """Trace error, as ``NEGLIGIBLE``, of the evidence on several axes, in nats.

    There the vectors are many and their cost is cubic: 300 x 300 points, n = 100,000, RBF, go from
    rank 1,623 at a hundredth of a nat to 1,241 at one, for one more iteration and a standard error
    of 0.04 nats.
    """
    return min(MOST_LEFT, max(NEGLIGIBLE, LEFT_OF_ROW * num_data))


class SKISystem:
    """A = W K W^T + noise I, with a low-rank part C^T C of the grid's matrix beside it.

    Args:
        covariance: K, differentiable.
        data: W and sums over its rows; differentiable where the inputs are.
        noise (): noise variance, differentiable.
        rank: most vectors of C; fewer where memory is short.
        num_data: rows that W stands for.
        negligible: trace error, in noise variances over the data (nats of the log-determinant), at
            which C is complete.
        waves: most waves in the place of C; see ``GridCovariance.low_rank``.

    Attributes:
        weights, weights_alone: W, and without a graph.
        base, matrix: K and A.
        part: C (r, m).
        left_out: ``negligible``.
        preconditioner: Q = W C^T C W^T + noise I, near A.

    Cost: m r^2 + n r^2 once, or far less where K is a Kronecker product.
    """

    def __init__(
        self,
        covariance: GridCovariance,
        data: Gathered,
        noise: Tensor,
        rank: int,
        num_data: int,
        negligible: float = NEGLIGIBLE,
        waves: int = 0,
    ) -> None:
        self.covariance, self.data, self.noise = covariance, data, noise
        self.weights, self.base = data.weights, covariance.operator
        self.weights_alone = data.weights
        if self.weights.values.requires_grad:
            self.weights_alone = Interpolation(
                self.weights.values.detach(),
                self.weights.indices,
                num_columns=self.weights.num_columns,
            )
        rows, points = self.weights.shape[-2:]
        self.matrix = Interpolated(self.weights, self.base) + ConstantDiagLinearOperator(
            noise.reshape(1), diag_shape=rows
        )
        with torch.no_grad():
            self.left_out, per_noise = negligible, num_data / (points * float(noise.detach()))
            limit = negligible / per_noise
            self.part: LowRankPart = covariance.low_rank(
                rank, limit, max(1, FACTOR_BYTES // (8 * (rows + 2 * points))), waves
            )
            self.preconditioner = self._preconditioner()
            threshold = self.part.threshold
            self._largest_left = None if threshold is None else per_noise * float(threshold)

    def _preconditioner(self) -> ProductsPlusNoise:
        part, w = self.part, self.weights_alone
        if isinstance(part, PivotedPart):
            factor = w.matmul(part.factor.mT).mT  # (r, n)
            project, expand, gram = factor.matmul, factor.mT.matmul, factor @ factor.mT
        else:
            assert isinstance(part, (EigenPart, WavePart))
            gram = part.gram(self.data.moments)

            def project(v: Tensor) -> Tensor:
                return part.project(w.mT.matmul(v))

            def expand(low: Tensor) -> Tensor:
                found: Tensor = w.matmul(part.expand(low))
                return found

        return ProductsPlusNoise(
            project, expand, gram, len(w.values), self.noise.detach(), below_kernel=part.below
        )

    @property
    def tensors(self) -> list[Tensor]:
        """What gradients are taken by: the covariance's, the noise, and weights that want one."""
        values = self.weights.values
        return [*self.covariance.tensors, self.noise, *([values] if values.requires_grad else [])]

    @torch.no_grad()
    def multiply(self, vectors: Tensor) -> Tensor:
        """A times vectors (n, c), without a graph."""
        w = self.weights_alone
        found: Tensor = w.matmul(self.covariance.multiply(w.mT.matmul(vectors)))
        return found.add_(vectors * self.noise)

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
        """Standard error of log |A| by probes where C is complete and rows lie evenly.

        What is left out of A / noise, of a trace T and a largest eigenvalue t at most, has a
        Frobenius norm of (t T)^{1/2} at most, and one of T.
        """
        largest = self.left_out if self._largest_left is None else self._largest_left
        return math.sqrt(2.0 * min(largest, self.left_out) * self.left_out / probes)

    def logdet_bracket(self) -> tuple[float, float] | None:
        """Bounds of log |A|: log |Q| and that plus tr(A - Q) / noise; None where Q <= A is unknown.

        Cost: look-ups of n q^2 covariances, of grid points near each other.
        """
        if not self.part.below:
            return None
        with torch.no_grad():
            low = float(self.preconditioner.logdet())
            trace = self.matrix.diagonal().sum() - len(self.weights.values) * self.noise
            left = trace / self.noise - self.preconditioner.capacitance.gram.trace()
            return low, low + max(0.0, float(left))

    def dense_logdet(self) -> Tensor:
        """log |A| by Cholesky, differentiable.

        Raises:
            ConfigError: more than MOST_DENSE rows.
        """
        rows = len(self.weights.values)
        if rows > MOST_DENSE:
            raise ConfigError(
                f"logdet=cholesky of {rows:,} rows is a dense matrix of "
                f"{rows**2 * 8 / 2**30:,.1f} GiB; at most {MOST_DENSE:,} rows are taken: use "
                "logdet=lanczos"
            )
        dense = self.matrix.to_dense()
        factor, _ = cholesky(dense.detach(), name="W K W^T + noise I", ladder=(0.0,))
        value = 2.0 * factor.diagonal().log().sum()
        return with_gradient(value, [dense], [torch.cholesky_inverse(factor)])

    @property
    def least_eigenvalue(self) -> float | None:
        """A lower bound of the spectrum of Q^{-1/2} A Q^{-1/2} as computed: 1, less rounding.

        None where Q <= A is not known.
        """
        if not self.part.below:
            return None
        scale = self.covariance.variance / self.noise.detach()
        size = max(float(self.weights.shape[-2]), float(self.data.total.trace()))
        rounding = torch.finfo(torch.float64).eps * (1.0 + size * float(scale))
        return 1.0 - min(0.5, 64.0 * rounding)
