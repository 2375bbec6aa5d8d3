"""W K_UU W^T + noise I at given hyperparameters: solves, log-determinant and their gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from gpx.linalg import (
    LowRankPlusNoise,
    RelativeResidual,
    SolveReport,
    cholesky,
    conjugate_gradients,
    logdet_of_solve,
    probe_vectors,
)
from gpx.methods.ski.grid import InterpolationGrid
from gpx.operators import Interpolated, Interpolation

NEGLIGIBLE = 1e-2
"""Trace error of the low-rank part, summed over the data in noise variances, at which more of it
would change the log-determinant by less than that many nats."""


FACTOR_BYTES = 1 << 30
"""Of the low-rank part, on the grid and at the rows, with its working copies; limits the rank."""
COLUMNS = 32
"""Vectors on the grid whose correlations are taken at a time."""


class QuadLogdet(NamedTuple):
    """r^T A^{-1} r and log |A|, differentiable, with the latter's standard error."""

    quad: Tensor
    logdet: Tensor
    logdet_error: Tensor
    report: SolveReport


class SKISystem:
    """A = W K W^T + noise I, with the low-rank part C^T C <= K of the grid's matrix beside it.

    Args:
        grid: U.
        weights (n, m): W.
        total (q, q): sum of w w^T over the rows, by place in the stencil.
        lags: K_UU by lags, differentiable.
        noise (): noise variance, differentiable.
        rank: most vectors of C; fewer where memory is short.
        num_data: rows that W stands for.
        negligible: trace error, in noise variances over the data, at which C is complete.

    Attributes:
        low_rank (r, m): C.
        factor (r, n): F = C W^T.
        preconditioner: Q = F^T F + noise I <= A.

    Cost: m r^2 + n r^2 once.
    """

    def __init__(
        self,
        grid: InterpolationGrid,
        weights: Interpolation,
        total: Tensor,
        lags: Tensor,
        noise: Tensor,
        rank: int,
        num_data: int,
        negligible: float = NEGLIGIBLE,
    ) -> None:
        self.grid, self.weights, self.total = grid, weights, total
        self.lags, self.noise = lags, noise
        self.base = grid.operator(lags)
        size = weights.shape[-2]
        self.matrix = Interpolated(weights, self.base) + ConstantDiagLinearOperator(
            noise.reshape(1), diag_shape=size
        )
        with torch.no_grad():
            most = FACTOR_BYTES // (24 * (size + grid.size))
            limit = negligible * float(noise.detach()) * grid.size / num_data
            self.low_rank = grid.low_rank(lags.detach(), min(rank, max(1, most)), limit).factor
            self.factor = weights.matmul(self.low_rank.mT).mT
            self.preconditioner = LowRankPlusNoise(self.factor, noise.detach(), below_kernel=True)

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

    def quad_logdet(
        self,
        target: Tensor,
        *,
        probes: int,
        generator: torch.Generator,
        tolerance: float,
        max_iterations: int,
    ) -> QuadLogdet:
        """r^T A^{-1} r for target r (n,), and log |A|.

        d log |A| = tr(A^{-1} dA) is split into tr(Q^{-1} dA), exact, and tr((A^{-1} - Q^{-1}) dA)
        from the probes: without scatter where Q carries the whole matrix.

        Raises:
            DidNotConverge: more than ``max_iterations`` steps.
        """
        q = self.preconditioner
        with torch.no_grad():
            xi = probe_vectors(
                len(target), probes, generator=generator, dtype=target.dtype, device=target.device
            )
            w = q.root_matmul(xi)
            solved = conjugate_gradients(
                self.matrix.matmul,
                torch.cat([target.detach().unsqueeze(1), w], 1),
                preconditioner=q,
                stop=RelativeResidual(tolerance),
                max_iterations=max_iterations,
            )
            logdet, error, _ = logdet_of_solve(solved, xi, 1, q, self._node)
            v, u = solved.solution[:, :1], solved.solution[:, 1:]
            z = q.solve(w)
        products = self.matrix.matmul(torch.cat([v, z], 1))
        # 2 v^T r - v^T A v: the value of r^T A^{-1} r to second order, and its gradient
        quad = 2.0 * (v[:, 0] * target).sum() - (v * products[:, :1]).sum()
        change = ((u - z) * products[:, 1:]).sum() / probes + self._trace()
        return QuadLogdet(quad, logdet + change - change.detach(), error, solved.report)

    @property
    def _node(self) -> float:
        """A lower bound of the spectrum of Q^{-1/2} A Q^{-1/2} as computed: 1, less rounding."""
        scale = self.lags.detach().reshape(-1)[0] / self.noise.detach()
        rounding = torch.finfo(torch.float64).eps * (1.0 + self.weights.shape[-2] * float(scale))
        return 1.0 - min(0.5, 64.0 * rounding)

    def _trace(self) -> Tensor:
        """A scalar with the gradient tr(Q^{-1} dA), in closed form.

        Q^{-1} = (I - F^T S^{-1} F) / noise with S = noise I + F F^T = L L^T, so that
        tr(Q^{-1} W dK W^T) = (tr(W^T W dK) - sum_c h_c^T dK h_c) / noise, H = W^T F^T L^{-T}.
        """
        if not (torch.is_grad_enabled() and (self.lags.requires_grad or self.noise.requires_grad)):
            return self.lags.new_zeros(())
        base = self.grid.operator(self.lags.detach().requires_grad_())
        with torch.no_grad():
            noise = self.noise.detach()
            inner = self.factor @ self.factor.mT
            inner.diagonal().add_(noise)
            lower, _ = cholesky(inner, name="low-rank part of a grid plus noise", ladder=(0.0,))
            back = self.weights.mT.matmul(self.factor.mT)
            h = torch.linalg.solve_triangular(lower, back.mT, upper=False).mT
            half = torch.linalg.solve_triangular(lower, self.factor, upper=False)
            own = (self.factor.shape[1] - half.square().sum()) / noise
            # K is linear in its lags: its gradient is all there is to know of sum_c h_c^T K h_c
            by_lag = self._gram_by_lag()
            for block in h.split(COLUMNS, dim=1) if h.shape[1] else ():
                by_lag -= base._bilinear_derivative(block, block)[0]
        return (by_lag * self.lags).sum() / noise + own * self.noise

    def _gram_by_lag(self) -> Tensor:
        """Sum of (W^T W)_uv over all pairs of grid points of each lag; the shape of ``lags``."""
        width = round(len(self.total) ** (1.0 / self.lags.ndim))
        shape = (width,) * self.lags.ndim
        places = torch.stack(
            torch.unravel_index(torch.arange(len(self.total), device=self.lags.device), shape), -1
        )
        apart = (places.unsqueeze(1) - places).abs()
        found = torch.zeros_like(self.lags.detach())
        return found.index_put_(tuple(apart.unbind(-1)), self.total, accumulate=True)
