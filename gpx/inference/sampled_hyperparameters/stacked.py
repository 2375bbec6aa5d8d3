"""Exact processes on the same data, one for each sample of the hyperparameters, as one batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.backends.chunks import DEFAULT_BUDGET
from gpx.constants import LOG_TWO_PI
from gpx.inference.leave_one_out import LeftOut
from gpx.inference.stacked_kernels import Stacks, mapped, stacked_covariances, stacked_diagonals
from gpx.kernels.base import Kernel
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals

BLOCK_BYTES = 2**26
"""Bytes of a block of predictions on a CPU, where larger ones take up to 1.7 times as long."""


class StackedProcesses(NamedTuple):
    """S processes that differ in their hyperparameters alone.

    Attributes:
        kernel, mean: templates.
        stacks: the S values of all their parameters.
        inputs (n, d): X.
        roots (S, n, n): lower Cholesky factors of K + noise.
        weights (S, n): (K + noise)^-1 (y - m).
        noise (S,): noise variances.
    """

    kernel: Kernel
    mean: Mean
    stacks: Stacks
    inputs: Tensor
    roots: Tensor
    weights: Tensor
    noise: Tensor

    @classmethod
    @torch.no_grad()
    def condition(
        cls,
        kernel: Kernel,
        mean: Mean,
        stacks: Stacks,
        x: Tensor,
        y: Tensor,
        noise: Tensor,
        variances: Tensor,
    ) -> StackedProcesses | None:
        """Given x (n, d) and y (n,); None: a matrix has no Cholesky factor without jitter.

        Args:
            noise (S,): noise variance of new observations.
            variances (S, 1) or (S, n): those of the data.

        Cost: S n^3 / 3 multiply-adds, S n^2 numbers.
        """
        rows = x.expand(len(noise), *x.shape)
        matrices = stacked_covariances(kernel, stacks, rows)
        matrices.diagonal(dim1=1, dim2=2).add_(variances)
        roots, info = torch.linalg.cholesky_ex(matrices)
        if bool(info.any()):
            return None
        residual = y - mapped(mean, stacks, lambda own, at: own(at), rows)
        weights = torch.cholesky_solve(residual.unsqueeze(2), roots).squeeze(2)
        return cls(kernel, mean, stacks, x, roots, weights, noise)

    @torch.no_grad()
    def leave_one_out(self) -> LeftOut:
        """Prediction (S, n) of every training value given all others, noise included.

        Cost: 2 S n^3 / 3 multiply-adds, and one n x n array.
        """
        each = zip(self.roots, self.weights, strict=True)
        found = [LeftOut.of_solution(root, alpha) for root, alpha in each]
        return LeftOut(*(torch.stack(part) for part in zip(*found, strict=True)))

    def marginals(self, x: Tensor) -> Marginals:
        """Mean and variance (S, t) of f at x (t, d), differentiable in x.

        Cost: S n^2 multiply-adds a row, in blocks of rows.
        """
        count, n = self.weights.shape
        budget = BLOCK_BYTES if x.is_cpu else DEFAULT_BUDGET
        blocks = row_chunks(x.shape[0], 3 * 8 * count * n, budget)
        parts = [self._marginals(x[rows]) for rows in blocks]
        if not parts:
            return Marginals(x.new_zeros(count, 0), x.new_zeros(count, 0))
        means, variances = zip(*parts, strict=True)
        return Marginals(torch.cat(means, 1), torch.cat(variances, 1))

    def _marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.expand(len(self.noise), *x.shape)
        mean, explained = self._projected(rows)
        prior = stacked_diagonals(self.kernel, self.stacks, rows)
        return mean, (prior - explained.square().sum(1)).clamp_min(0.0)

    def _projected(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (S, t) at rows (S, t, d), and L^-1 k (S, n, t), whose squares explain variance."""
        known = self.inputs.expand(len(rows), *self.inputs.shape)
        cross = stacked_covariances(self.kernel, self.stacks, rows, known)  # (S, t, n)
        offset = mapped(self.mean, self.stacks, lambda own, at: own(at), rows)
        mean = offset + (cross @ self.weights.unsqueeze(2)).squeeze(2)
        return mean, torch.linalg.solve_triangular(self.roots, cross.mT, upper=False)

    @torch.no_grad()
    def log_densities(self, x: Tensor, y: Tensor, variances: Tensor) -> Tensor | None:
        """log p(y | data, theta) (S,) of further rows x (m, d), y (m,), in nats.

        None: a covariance has no Cholesky factor without jitter.

        Args:
            variances (S, 1) or (S, m): of their noise.

        Cost: S (n^2 m + n m^2 + m^3 / 3) multiply-adds, S m (n + m) numbers.
        """
        rows = x.expand(len(self.noise), *x.shape)
        mean, explained = self._projected(rows)
        covariances = stacked_covariances(self.kernel, self.stacks, rows)
        covariances = covariances - explained.mT @ explained
        covariances.diagonal(dim1=1, dim2=2).add_(variances)
        roots, info = torch.linalg.cholesky_ex(covariances)
        if bool(info.any()):
            return None
        residual = (y - mean).unsqueeze(2)
        misfit = torch.linalg.solve_triangular(roots, residual, upper=False).square().sum((1, 2))
        half_log = roots.diagonal(dim1=1, dim2=2).log().sum(1)
        return -0.5 * (misfit + len(y) * LOG_TWO_PI) - half_log
