"""Evidence of basis functions with a dense prior covariance of weights, from sums over the data.

The functions interpolate between the points of a grid (``InterpolatedGrid``); the weights are
values at these points, with the covariance of any kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import normal_columns
from gpx.linalg import cholesky
from gpx.methods.base.posterior import Marginals
from gpx.methods.reweighted.weights import CompressedStatistics, ReweightedForm, ReweightedWeights


class InterpolatedForm(ReweightedForm):
    """By a Cholesky factor of s I + L^T K L, K the prior covariance of all weights.

    ``weights`` takes the entries of K (m^2,) in place of log g, and ``weight_gradient`` is the
    gradient with respect to them, from which that of the kernel's hyperparameters follows.

    Cost: rank m^2 + rank^2 m multiply-adds per evaluation with its gradient, O(m^2) memory.
    """

    path = "interpolated"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.sums: CompressedStatistics = compressed
        self.num_weights = compressed.num_basis**2

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> InterpolatedWeights:
        """As in ``ReweightedForm``, at the entries (m^2,) of K."""
        m = self.sums.num_basis
        return InterpolatedWeights(self.sums, log_variances.view(m, m), log_noise.exp())


class InterpolatedWeights(ReweightedWeights):
    """Gaussian process w(x)^T u with a fixed interpolation w and u ~ N(0, K), for any K.

    The interpolation does not depend on the kernel, so any kernel can be evaluated from the same
    sums. K may be singular and is used in products only. ``scaled_mean`` and
    ``variance_reduction`` are empty, as weights are correlated a priori.

    W^T r is used without projection onto L: its components in directions that L drops as rounding
    of W^T W are not negligible.

    Args:
        compressed: of the statistics of W.
        covariance (m, m): K.
        noise (): s. Evidence and posterior are differentiable in K and s.

    Exactness: exact for the interpolated kernel.
    Cost: rank products with K, rank^2 m + rank^3 / 3 multiply-adds.
    Source: Evans thesis, section 5.3.3; the low-rank form is derived from it.
    """

    def __init__(self, compressed: CompressedStatistics, covariance: Tensor, noise: Tensor) -> None:
        self.covariance, self.noise = covariance, noise
        # L (m, rank) with L L^T = W^T W
        self.root = compressed.vectors * compressed.values.sqrt()
        self.carried = covariance @ self.root
        inner = self.root.mT @ self.carried
        inner = 0.5 * (inner + inner.mT)
        matrix = inner + noise * torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
        self.factor, _ = cholesky(matrix, name="s I + L^T K L of an interpolation", ladder=(0.0,))
        projected = compressed.projected
        aimed = (covariance @ projected.unsqueeze(1)).squeeze(1)
        solved = torch.cholesky_solve((self.root.mT @ aimed).unsqueeze(1), self.factor).squeeze(1)
        self._mean = (aimed - self.carried @ solved) / noise
        self.pulled = (projected - self.root @ solved) / noise  # W^T C^{-1} r
        self.fit = (compressed.squared - torch.dot(projected, self._mean)) / noise
        self.misfit = self.fit - torch.dot(self._mean, self.pulled)
        self.num_data = compressed.num_data
        self.unseen = compressed.num_data - compressed.rank
        self.log_determinant = 2.0 * self.factor.diagonal().log().sum() + self.unseen * noise.log()
        self.scaled_mean = self.variance_reduction = projected.new_zeros(0)

    def weight_gradient(self) -> Tensor:
        """d log N(r; 0, C) / dK (m^2,)."""
        half = torch.linalg.solve_triangular(self.factor, self.root.mT, upper=False)
        return 0.5 * (torch.outer(self.pulled, self.pulled) - half.mT @ half).flatten()

    def inverse_trace(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.unseen + self._unlearned().trace()

    def inverse_square_trace(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.unseen + self._unlearned().square().sum()

    def _unlearned(self) -> Tensor:
        """s (s I + L^T K L)^{-1}."""
        return self.noise * torch.cholesky_inverse(self.factor)

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self._mean

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: m^2 multiply-adds a row."""
        prior = ((self.covariance @ features.mT).mT * features).sum(1)
        cross = (features @ self.carried).mT
        half = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return Marginals(features @ self._mean, (prior - half.square().sum(0)).clamp_min(0.0))

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``: prior values, corrected by the data (Matheron's rule).

        Cost: one eigendecomposition of K, which may be singular.
        """
        values, vectors = torch.linalg.eigh(self.covariance)
        noise = normal_columns(len(values), num, values, generator)
        prior = vectors @ (values.clamp_min(0.0).sqrt().unsqueeze(1) * noise)
        noise = normal_columns(len(self.factor), num, values, generator)
        seen = self.root.mT @ prior + self.noise.sqrt() * noise
        solved = torch.cholesky_solve(seen, self.factor)
        return (prior + self._mean.unsqueeze(1) - self.carried @ solved).mT
