"""The M x M core of the collapsed posterior, and the noise variance that suits it best."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inference.nystrom import NystromSums
from gpx.linalg import cholesky


class InnerFactor:
    """B = I + A A^T / noise and what follows from it; float64.

    Attributes:
        factor (M, M): LB = chol(B).
        weights (M,): beta = B^{-1} A r / noise, the posterior mean of L^{-1} u.
        complement (M, M): I - B^{-1}, symmetric.
    """

    def __init__(self, sums: NystromSums, noise: Tensor) -> None:
        self._scaled_gram = sums.gram / noise
        inner = self._scaled_gram.clone()
        inner.diagonal().add_(1.0)
        # at least one on every eigenvalue: a failure can only be NaN, which the error then names
        self.factor, _ = cholesky(
            inner, name="I + A A^T / noise of the inducing points", ladder=(0.0,)
        )
        right = (sums.projected / noise).unsqueeze(1)
        self.weights = torch.cholesky_solve(right, self.factor).squeeze(1)

    @property
    def complement(self) -> Tensor:
        """I - B^{-1} = B^{-1} (A A^T / noise), without the cancellation."""
        found = torch.cholesky_solve(self._scaled_gram, self.factor)
        return 0.5 * (found + found.mT)


def best_noise(sums: NystromSums, n: int, current: Tensor) -> Tensor:
    """Noise variance that maximises the collapsed bound with everything else fixed.

    With the eigenvalues lambda of A A^T and p the squares of A r in its eigenvectors,
    -2 F(s) = n log s + sum log(1 + lambda / s) + (r^T r - sum p / (s + lambda) + T) / s + const,
    looked up on a grid of 400 points from ``current`` (never below it) to twice the mean square of
    the residuals: a step of at most a few per cent, enough for a start.

    Cost: one M x M eigendecomposition.
    """
    values, vectors = torch.linalg.eigh(sums.gram)
    values = values.clamp(min=0.0)
    power = (vectors.mT @ sums.projected).square()
    top = torch.maximum(2.0 * sums.squared_residual / n, current)
    share = torch.linspace(0.0, 1.0, 400, dtype=values.dtype, device=values.device).unsqueeze(1)
    grid = current * (top / current) ** share
    fit = sums.squared_residual - (power / (grid + values)).sum(1, keepdim=True)
    logs = n * grid.log() + (values / grid).log1p().sum(1, keepdim=True)
    return grid[torch.argmin(logs + (fit + sums.trace_error) / grid)].squeeze()
