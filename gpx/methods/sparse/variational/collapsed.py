"""The optimal q and the best noise variance for Gaussian noise: one streamed pass over the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.linalg import cholesky
from gpx.linalg.triangular import inverse_lower, lower_matmul
from gpx.methods.sparse.variational.whitened import whitening


@dataclass(frozen=True)
class CollapsedStatistics:
    """What the collapsed bound needs of the data, given Z and the kernel, in float64.

    Attributes:
        gram (M, M): A A^T with A = L^{-1} K_zx.
        moment (M,): A r, with r the targets minus the prior mean.
        residual_square (): r^T r.
        trace (): tr(K_xx - Q_xx), from clamped terms.
        num_data: n.
    """

    gram: Tensor
    moment: Tensor
    residual_square: Tensor
    trace: Tensor
    num_data: int

    def optimal_q(self, noise_variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (1, M) and lower factor (1, M, M) of q(v) = N(B^{-1} A r / s2, B^{-1}).

        B = I + A A^T / s2 with s2 the noise variance. Source: Burt thesis, section 2.3.
        """
        noise = noise_variance.double()
        gram = self.gram / noise
        gram.diagonal().add_(1.0)
        # B^{-1} = S S^T with S lower needs B = U U^T with U = S^{-T} upper: factorise B backwards
        backwards, _ = cholesky(
            gram.flip(0, 1), name=f"I + A A^T / s2 of {len(gram)} inducing points"
        )
        factor = inverse_lower(backwards).flip(0, 1).mT.contiguous()
        mean = factor @ (factor.mT @ self.moment) / noise
        return mean.unsqueeze(0), factor.unsqueeze(0)

    def best_noise(self, lowest: float, highest: float, num: int = 400) -> tuple[Tensor, Tensor]:
        """Noise variance of highest collapsed bound on a geometric grid, and the bound there.

        With A A^T = V diag(g) V^T and b = V^T A r the bound is, at noise variance s2,
        -(n log 2 pi s2 + sum log(1 + g / s2) + (r^T r + T) / s2 - sum b^2 / (s2 (s2 + g))) / 2.

        Cost: one eigendecomposition of M x M, then O(M) per grid point.
        """
        values, vectors = torch.linalg.eigh(self.gram)
        values = values.clamp_min(0.0)
        squares = (vectors.mT @ self.moment).square()
        grid = torch.linspace(
            math.log(lowest), math.log(highest), num, dtype=values.dtype, device=values.device
        ).exp()
        s2 = grid.unsqueeze(1)
        logdet = self.num_data * (2.0 * math.pi * grid).log() + torch.log1p(values / s2).sum(1)
        explained = (squares / (s2 * (s2 + values))).sum(1)
        bounds = -0.5 * (logdet + (self.residual_square + self.trace) / grid - explained)
        best = bounds.argmax()
        return grid[best], bounds[best]


@torch.no_grad()
def collapsed_statistics(
    kernel: Kernel,
    inducing: Tensor,
    x: Tensor,
    residual: Tensor,
    *,
    jitter: float,
    chunk: int = 4096,
) -> list[CollapsedStatistics]:
    """Accumulate the statistics over chunks of data.

    Args:
        kernel, inducing (M, d), jitter: as in ``whitened_marginals``.
        x (n, d): all training inputs.
        residual (n,) or (n, p): targets minus the prior mean.
        chunk: rows per step.

    Returns:
        those of each of the p outputs, which share ``gram`` and ``trace``.

    Cost: O(n M^2 + n p M) time, O(M^2 + M chunk) memory.
    """
    inverse = inverse_lower(whitening(kernel, inducing, jitter).cholesky)
    size = inverse.shape[0]
    gram = torch.zeros_like(inverse)
    outputs = residual.reshape(x.shape[0], -1).mT
    moment = inverse.new_zeros(len(outputs), size)
    square, trace = inverse.new_zeros(len(outputs)), inverse.new_zeros(())
    for start in range(0, x.shape[0], chunk):
        rows = slice(start, start + chunk)
        projection = lower_matmul(inverse, kernel.evaluate(inducing, x[rows]).double())
        targets = outputs[:, rows].double()
        gram.addmm_(projection, projection.mT)
        moment += targets @ projection.mT
        square += targets.square().sum(1)
        left = kernel.diagonal(x[rows]).double() - projection.square().sum(0)
        trace += left.clamp_min(0.0).sum()
    return [
        CollapsedStatistics(gram, each, its_square, trace, x.shape[0])
        for each, its_square in zip(moment, square, strict=True)
    ]
