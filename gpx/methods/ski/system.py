"""W K_UU W^T + noise I at given hyperparameters: solves, log-determinant and their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import (
    CGResult,
    ProductsPlusNoise,
    RelativeResidual,
    SolveReport,
    chebyshev_logdet,
    cholesky,
    conjugate_gradients,
    enough_degree,
    largest_eigenvalue,
    log_error,
    probe_vectors,
    quadrature_of_solve,
    with_gradient,
)
from gpx.linalg.kronecker import split_index
from gpx.linalg.trace import mean_and_error
from gpx.methods.ski.control_variate import control_variate, reduced
from gpx.methods.ski.covariance import AxisCovariance, GridCovariance
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.low_rank import EigenPart, LowRankPart, PivotedPart
from gpx.methods.ski.waves import WavePart
from gpx.operators import Interpolated, Interpolation

NEGLIGIBLE = 1e-2
"""Trace error of the low-rank part, summed over the data in noise variances, at which more of it
would change the log-determinant by less than that many nats."""
FACTOR_BYTES = 1 << 30
"""Of a low-rank part kept as an array, on the grid and at the rows; limits its rank."""
CHUNK_ENTRIES = 1 << 24
"""Entries of a working array over some of the rows."""
MOST_DENSE = 10_000
"""Rows of a matrix that is factorised for reference."""
COLUMNS = 32
"""Vectors on the grid whose correlations are taken at a time."""


class QuadLogdet(NamedTuple):
    """r^T A^{-1} r and log |A|, differentiable, with the latter's standard error."""

    quad: Tensor
    logdet: Tensor
    logdet_error: Tensor
    report: SolveReport
    probes: int


class _Probed(NamedTuple):
    """Of probes xi: samples of log |Q^{-1} A| (L,), xi's rows, A^{-1} w and Q^{-1} w (n, L)."""

    samples: Tensor
    rows: Tensor
    solved: Tensor
    whitened: Tensor


class SKISystem:
    """A = W K W^T + noise I, with a low-rank part C^T C of the grid's matrix beside it.

    Args:
        covariance: K, differentiable.
        data: W and sums over its rows; differentiable where the inputs are.
        noise (): noise variance, differentiable.
        rank: most vectors of C; fewer where memory is short.
        num_data: rows that W stands for.
        negligible: trace error, in noise variances over the data, at which C is complete.
        waves: most waves in the place of C; see ``GridCovariance.low_rank``.

    Attributes:
        part: C (r, m).
        complete: whether C carries all that matters.
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
        rows, points = self.weights.shape[-2:]
        self.matrix = Interpolated(self.weights, self.base) + ConstantDiagLinearOperator(
            noise.reshape(1), diag_shape=rows
        )
        with torch.no_grad():
            limit = negligible * float(noise.detach()) * points / num_data
            self.part: LowRankPart = covariance.low_rank(
                rank, limit, max(1, FACTOR_BYTES // (8 * (rows + 2 * points))), waves
            )
            self.complete = float(self.part.missing) * points <= limit
            self.weights_alone = self._constant(self.weights)
            self.preconditioner = self._preconditioner()

    def _preconditioner(self) -> ProductsPlusNoise:
        part, w = self.part, self.weights_alone
        if isinstance(part, PivotedPart):
            factor = w.matmul(part.factor.mT).mT  # (r, n)
            return ProductsPlusNoise(
                factor.matmul,
                factor.mT.matmul,
                factor @ factor.mT,
                len(w.values),
                self.noise.detach(),
                below_kernel=True,
            )
        assert isinstance(part, (EigenPart, WavePart))
        return ProductsPlusNoise(
            lambda v: part.project(w.mT.matmul(v)),
            lambda low: w.matmul(part.expand(low)),
            part.gram(self.data.moments),
            len(w.values),
            self.noise.detach(),
            below_kernel=part.below,
        )

    @torch.no_grad()
    def solve(
        self, right: Tensor, tolerance: float, max_iterations: int
    ) -> tuple[Tensor, SolveReport]:
        """A^{-1} times right (n, c)."""
        found = conjugate_gradients(
            self.matrix.matmul,
            right,
            preconditioner=self.preconditioner,
            stop=RelativeResidual(tolerance),
            max_iterations=max_iterations,
        )
        return found.solution, found.report

    def quad(
        self, target: Tensor, *, tolerance: float, max_iterations: int
    ) -> tuple[Tensor, SolveReport]:
        """r^T A^{-1} r for target r (n,), differentiable.

        Raises:
            DidNotConverge: more than ``max_iterations`` steps.
        """
        right = target.detach().unsqueeze(1)
        with torch.no_grad():
            solved = conjugate_gradients(
                self.matrix.matmul,
                right,
                preconditioner=self.preconditioner,
                stop=RelativeResidual(tolerance),
                max_iterations=max_iterations,
            )
            v = solved.solution
            value = (v * (right + solved.residual)).sum()
        if not torch.is_grad_enabled() or not self._wants_gradient(target):
            return value, solved.report
        gradients = [2.0 * v[:, 0], *self._quad_gradient(v)]
        return with_gradient(value, [target, *self._tensors], gradients), solved.report

    @property
    def _tensors(self) -> list[Tensor]:
        """What gradients are taken by: the covariance's, the noise, and weights that want one."""
        values = self.weights.values
        return [*self.covariance.tensors, self.noise, *([values] if values.requires_grad else [])]

    @torch.no_grad()
    def _quad_gradient(self, v: Tensor) -> list[Tensor]:
        """Of r^T A^{-1} r by ``_tensors``."""
        wv = self.weights_alone.mT.matmul(v)
        found = [-g for g in self.covariance.gradient(wv, wv)]
        values = self.weights.values
        if not values.requires_grad:
            return [*found, -(v * v).sum()]
        on_grid = self.base.matmul(wv).detach()
        return [*found, -(v * v).sum(), -2.0 * _by_values(self.weights, v, on_grid)]

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

    def quad_logdet(
        self,
        target: Tensor,
        *,
        probes: int,
        generator: torch.Generator,
        tolerance: float,
        max_iterations: int,
        chebyshev: bool = False,
        least_probes: int = 0,
        accuracy: float = math.inf,
        most_probes: int = 0,
    ) -> QuadLogdet:
        """r^T A^{-1} r for target r (n,), and log |A|.

        With P a projection on functions near the range of C, d log |A| = tr(A^{-1} dA) is split
        into tr(Q^{-1} dA_P), exact, where dA_P has P dK P in the place of dK, and the rest from the
        probes: next to no scatter where C carries the whole matrix. Where it does not,
        ``control_variate`` takes most of the value's scatter away.

        Args:
            probes: drawn at a time; always the same ones for the same state of the generator.
            least_probes: in all, before the error is looked at.
            accuracy: standard error of log |A| at which no more probes are drawn.
            most_probes: in all.

        Raises:
            DidNotConverge: more than ``max_iterations`` steps.
        """
        wants = torch.is_grad_enabled() and self._wants_gradient(target)
        with torch.no_grad():
            right = target.detach().unsqueeze(1)
            found: list[_Probed] = []
            first: CGResult | None = None
            drawn, wanted = 0, max(probes, least_probes)
            while drawn < wanted:
                own = right if first is None else right[:, :0]
                part, solved = self._probed(own, probes, generator, tolerance, max_iterations)
                found.append(part)
                drawn += probes
                first = solved if first is None else first
                if drawn >= wanted:
                    samples, rows = _joined(found, "samples"), _joined(found, "rows")
                    control = self._control_variate(rows)
                    logdet, error = (
                        mean_and_error(samples) if control is None else reduced(samples, control)
                    )
                    if float(error) > accuracy:
                        enough = math.ceil(drawn * (float(error) / accuracy) ** 2)
                        wanted = max(wanted, min(enough, most_probes - most_probes % probes))
            assert first is not None
            logdet = logdet + self.preconditioner.logdet()
            if chebyshev:
                logdet, error = self._chebyshev(rows)
            v = first.solution[:, :1]
            # v^T r + v^T (r - A v): the value to second order in the residual
            quad = (v * (right + first.residual[:, :1])).sum()
        if not wants:
            return QuadLogdet(quad, logdet, error, first.report, drawn)
        tensors = self._tensors
        by_quad = self._quad_gradient(v)
        by_logdet = self._logdet_gradient(_joined(found, "solved"), _joined(found, "whitened"))
        quad = with_gradient(quad, [target, *tensors], [2.0 * v[:, 0], *by_quad])
        logdet = with_gradient(logdet, tensors, by_logdet)
        return QuadLogdet(quad, logdet, error, first.report, drawn)

    def _probed(
        self,
        right: Tensor,
        probes: int,
        generator: torch.Generator,
        tolerance: float,
        max_iterations: int,
    ) -> tuple[_Probed, CGResult]:
        """Solves with right (n, c) and, after it, new probes."""
        q, columns = self.preconditioner, right.shape[1]
        xi = probe_vectors(
            len(right) + q.rank,
            probes,
            generator=generator,
            dtype=right.dtype,
            device=right.device,
        )
        w = q.draws(xi)
        solved = conjugate_gradients(
            self.matrix.matmul,
            torch.cat([right, w], 1),
            preconditioner=q,
            stop=RelativeResidual(tolerance),
            max_iterations=max_iterations,
            keep_preconditioned=True,
        )
        assert solved.preconditioned is not None
        z = solved.preconditioned[:, columns:]
        # |xi|^2 of the probes as seen through Q^{-1/2} is w^T z
        scale = (w * z).sum(0)
        lower, upper = quadrature_of_solve(solved, scale, columns=columns, node=self._node)
        solution = solved.solution[:, columns:]
        return _Probed(0.5 * (lower + upper), xi[: len(right)], solution, z), solved

    def _control_variate(self, xi: Tensor) -> Tensor | None:
        """At probes xi (n, L), (L,); None where C carries all or the rest is unknown."""
        lags, threshold = self.covariance.lags(), self.part.threshold
        if self.complete or lags is None or threshold is None:
            return None
        seen = self.weights_alone.mT.matmul(xi)
        return control_variate(lags.detach(), self.noise, self._gram_by_lag(), threshold, seen)

    def _chebyshev(self, probes: Tensor) -> tuple[Tensor, Tensor]:
        """log |A| and its standard error, with the polynomial's; nothing is preconditioned."""
        low, high = float(self.noise), largest_eigenvalue(self.matrix.matmul, probes)
        degree = enough_degree(low, high)
        found = chebyshev_logdet(self.matrix.matmul, probes, low=low, high=high, degree=degree)
        bias = len(probes) * log_error(low, high, degree)
        return found.value, found.standard_error + bias

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

    def _wants_gradient(self, target: Tensor) -> bool:
        found = (*self.covariance.tensors, self.noise, self.weights.values, target)
        return any(t.requires_grad for t in found)

    @torch.no_grad()
    def _logdet_gradient(self, u: Tensor, z: Tensor) -> list[Tensor]:
        """Of log |A| by ``_tensors``."""
        w, part, q = self.weights_alone, self.part, self.preconditioner
        probes = u.shape[1]
        wu, wz = w.mT.matmul(torch.cat([u, z], 1)).split(probes, 1)
        inverse = torch.cholesky_inverse(q.capacitance.factor)
        own = (u * z).sum() / probes - (z * z).sum() / probes
        own = own + (len(u) - part.rank + inverse.diagonal().sum()) / self.noise.detach()
        if isinstance(part, WavePart):
            logdet = [g / probes for g in self.covariance.gradient(wu, wz)]
            exact = [part.gradient(1.0 - inverse.diagonal(), wz)]
        elif isinstance(part, EigenPart):
            # I - B^{-1} cancels where a root is small, and dK is small there, too
            inner = inverse.neg_()
            inner.diagonal().add_(1.0)
            inner.div_(part.roots).div_(part.roots.unsqueeze(1))
            if isinstance(self.covariance, AxisCovariance):
                logdet = self.covariance.gradient(wu / probes, wz)
                seen = part.axis_gradients_within(wz)
                exact = [
                    g - s / probes for g, s in zip(part.axis_gradients(inner), seen, strict=True)
                ]
            else:
                inside = part.within(wz)
                logdet = self.covariance.gradient(
                    torch.cat([wu, -inside], 1) / probes, torch.cat([wz, inside], 1)
                )
                exact = [part.lag_gradient(inner)]
        else:
            assert isinstance(part, PivotedPart)
            logdet = self.covariance.gradient((wu - wz) / probes, wz)
            exact = self._lag_trace(part)
        logdet = [g + e for g, e in zip(logdet, exact, strict=True)]
        if not self.weights.values.requires_grad:
            return [*logdet, own]
        on_grid = self.base.matmul(wz).detach()
        carried = part.expand(part.project(wz))
        rest = _by_values(self.weights, torch.cat([u, -z], 1), torch.cat([on_grid, carried], 1))
        by_values = self._carried_by_values().add_(rest, alpha=2.0 / probes)
        return [*logdet, own, by_values]

    def _carried_by_values(self) -> Tensor:
        """Gradient of tr(Q^{-1} d(W C^T C W^T)) by the values of W: 2 C^T C W^T Q^{-1}, exact."""
        part, w, x = self.part, self.weights_alone, self.data.inputs
        factor, noise = self.preconditioner.capacitance.factor, self.noise.detach()
        found = torch.empty_like(w.values)
        size = max(1, part.rank) * w.values.shape[1]
        for rows in torch.arange(len(x), device=x.device).split(max(1, CHUNK_ENTRIES // size)):
            some = Interpolation(w.values[rows], w.indices[rows], num_columns=w.num_columns)
            low = torch.cholesky_solve(part.at(some, x[rows], "error"), factor)
            found[rows] = 2.0 / noise * part.picked(low, w.indices[rows])
        return found

    @staticmethod
    def _constant(weights: Interpolation) -> Interpolation:
        if not weights.values.requires_grad:
            return weights
        values = weights.values.detach()
        return Interpolation(values, weights.indices, num_columns=weights.num_columns)

    @property
    def _node(self) -> float | None:
        """A lower bound of the spectrum of Q^{-1/2} A Q^{-1/2} as computed: 1, less rounding.

        None where Q <= A is not known.
        """
        if not self.part.below:
            return None
        scale = self.covariance.variance / self.noise.detach()
        size = max(float(self.weights.shape[-2]), float(self.data.total.trace()))
        rounding = torch.finfo(torch.float64).eps * (1.0 + size * float(scale))
        return 1.0 - min(0.5, 64.0 * rounding)

    def _lag_trace(self, part: PivotedPart) -> list[Tensor]:
        """Gradient of tr(Q^{-1} W dK W^T) by the lags of K, or of its blocks.

        Q^{-1} = (I - F^T B^{-1} F / noise) / noise, F = C W^T and B = I + F F^T / noise = L L^T,
        so that it is (tr(W^T W dK) - sum_c h_c^T dK h_c) / noise, H = W^T F^T L^{-T} / noise^{1/2}.
        """
        noise, w = self.noise.detach(), self.weights_alone
        found = self._grams_by_lag()
        if part.rank:
            back = w.mT.matmul(w.matmul(part.factor.mT)).mT
            h = torch.linalg.solve_triangular(
                self.preconditioner.capacitance.factor, back, upper=False
            )
            for block in h.split(COLUMNS):
                for total, less in zip(
                    found, self.covariance.gradient(block.mT, block.mT), strict=True
                ):
                    total -= less / noise
        return [total / noise for total in found]

    def _grams_by_lag(self) -> list[Tensor]:
        """``_gram_by_lag`` of every tensor of lags."""
        if len(self.data.shape) == 1 or self.covariance.lags() is not None:
            return [self._gram_by_lag()]
        return [
            _gram_by_lag(own, (m,))
            for own, m in zip(_diagonal_blocks(self.data), self.data.shape, strict=True)
        ]

    def _gram_by_lag(self) -> Tensor:
        """Sum of (W^T W)_uv over all pairs of grid points of each lag; the shape of the lags."""
        return _gram_by_lag(self.data.total, self.data.shape)


def _gram_by_lag(total: Tensor, shape: tuple[int, ...]) -> Tensor:
    """As the method, of the sum of w w^T by places in the stencil (q, q)."""
    width = round(len(total) ** (1.0 / len(shape)))
    every = torch.arange(len(total), device=total.device)
    places = torch.stack(split_index(every, (width,) * len(shape)), -1)
    apart = (places.unsqueeze(1) - places).abs()
    return total.new_zeros(shape).index_put_(tuple(apart.unbind(-1)), total, accumulate=True)


def _diagonal_blocks(data: Gathered) -> list[Tensor]:
    """Sums of w w^T of every axis alone, of weights side by side."""
    width = len(data.total) // len(data.shape)
    return [data.total[i : i + width, i : i + width] for i in range(0, len(data.total), width)]


def _by_values(weights: Interpolation, left: Tensor, right: Tensor) -> Tensor:
    """Gradient of sum_c left_c^T W right_c by the values of W."""
    found = weights._bilinear_derivative(left, right)[0]
    assert isinstance(found, Tensor)
    return found


def _joined(found: list[_Probed], name: str) -> Tensor:
    return torch.cat([getattr(part, name) for part in found], -1)
