"""Evidence of functions whose weights are correlated a priori, from statistics alone.

The functions interpolate on a grid (``InterpolatedGrid``), the weights are the values there, their
covariance is that of the kernel: any kernel, since the functions know none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.bases.sufficient_statistics import LOG_TWO_PI, normal_columns
from gpx.linalg import cholesky
from gpx.methods.base.model import Marginals
from gpx.methods.reweighted.weights import CompressedStatistics, ReweightedForm, ReweightedWeights


class InterpolatedProcess(NamedTuple):
    """Evidence, and the posterior of the values u ~ N(0, K) on the grid.

    Attributes:
        fit (): r^T C^{-1} r with C = W K W^T + s I.
        log_determinant (): log det C.
        evidence (): log N(r; 0, C), nats.
        mean (m,): of u given the data.
        pulled (m,): W^T C^{-1} r.
        carried (m, rank): K L with L L^T = W^T W.
        factor (rank, rank): lower Cholesky factor of s I + L^T K L.
    """

    fit: Tensor
    log_determinant: Tensor
    evidence: Tensor
    mean: Tensor
    pulled: Tensor
    carried: Tensor
    factor: Tensor

    def marginals(self, weights: Tensor, prior: Tensor) -> Marginals:
        """Mean and variance of f = w^T u at interpolation weights (t, m).

        Args:
            weights (t, m): w of every test point.
            prior (t,): w^T K w.
        """
        cross = (weights @ self.carried).mT
        half = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return Marginals(weights @ self.mean, (prior - half.square().sum(0)).clamp_min(0.0))


def interpolated_process(
    compressed: CompressedStatistics, covariance: Tensor | LinearOperator, noise: Tensor
) -> InterpolatedProcess:
    """Gaussian process w(x)^T u with a fixed interpolation w and u ~ N(0, K), for any K.

    The interpolation does not depend on the kernel, so that every kernel, of any family, is an
    evaluation from the same sums; K may be singular and appears in products only. Additive kernels
    on one grid are the sum of their matrices.

    W^T r enters as it is: what of it lies in directions that L leaves out as rounding of W^T W has
    the size of the root of that rounding, and counts.

    Args:
        compressed: of the statistics of W.
        covariance (m, m): K; an operator keeps its structure (Kronecker, Toeplitz).
        noise (): s.

    Returns:
        evidence and posterior, differentiable in K and s.

    Exactness: exact for the interpolated kernel.
    Cost: rank products with K, rank^2 m + rank^3 / 3 multiply-adds.
    Source: Evans thesis, section 5.3.3; the low-rank form is ours.
    """
    root, projected = _root(compressed), compressed.projected
    carried = covariance @ root
    inner = root.mT @ carried
    inner = 0.5 * (inner + inner.mT)
    matrix = inner + noise * torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
    factor, _ = cholesky(matrix, name="s I + L^T K L of an interpolation", ladder=(0.0,))
    aimed = (covariance @ projected.unsqueeze(1)).squeeze(1)
    solved = torch.cholesky_solve((root.mT @ aimed).unsqueeze(1), factor).squeeze(1)
    mean = (aimed - carried @ solved) / noise
    n, rank = compressed.num_data, compressed.rank
    fit = (compressed.squared - torch.dot(projected, mean)) / noise
    logs = 2.0 * factor.diagonal().log().sum() + (n - rank) * noise.log()
    evidence = -0.5 * (fit + logs + n * LOG_TWO_PI)
    pulled = (projected - root @ solved) / noise
    return InterpolatedProcess(fit, logs, evidence, mean, pulled, carried, factor)


def _root(compressed: CompressedStatistics) -> Tensor:
    """L (m, rank) with L L^T = W^T W."""
    return compressed.vectors * compressed.values.sqrt()


class InterpolatedForm(ReweightedForm):
    """One factor of s I + L^T K L, K the prior covariance of all weights.

    What ``weights`` takes in the place of log g are the entries of K (m^2,), and its
    ``weight_gradient`` is that in them: hyperparameters of the kernel are reached through K.

    Cost: rank m^2 + rank^2 m multiply-adds an evaluation with its gradient, O(m^2) memory.
    """

    path = "interpolated"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.sums: CompressedStatistics = compressed
        self.num_weights = compressed.num_basis**2

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> _InterpolatedWeights:
        """As in ``ReweightedForm``, at the entries (m^2,) of K."""
        m = self.sums.num_basis
        return _InterpolatedWeights(self.sums, log_variances.view(m, m), log_noise)


class _InterpolatedWeights(ReweightedWeights):
    """The posterior at one K and s; ``pull`` and ``learned`` are empty: no weight is alone."""

    def __init__(
        self, compressed: CompressedStatistics, covariance: Tensor, log_noise: Tensor
    ) -> None:
        self.compressed, self.covariance, self.noise = compressed, covariance, log_noise.exp()
        self.process = interpolated_process(compressed, covariance, self.noise)
        self.fit, self.log_determinant = self.process.fit, self.process.log_determinant
        self.num_data = compressed.num_data
        self.pull = self.learned = covariance.new_zeros(0)

    def weight_gradient(self) -> Tensor:
        """d log N(r; 0, C) / dK (m^2,)."""
        root = _root(self.compressed)
        half = torch.linalg.solve_triangular(self.process.factor, root.mT, upper=False)
        pulled = self.process.pulled
        return 0.5 * (torch.outer(pulled, pulled) - half.mT @ half).flatten()

    def noise_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        mean = self.process.mean
        # s |C^{-1} r|^2 = fit - u^T W^T C^{-1} r
        quadratic = self.fit - torch.dot(mean, self.process.pulled)
        return 0.5 * (quadratic - self._unlearned().trace() - self._unseen)

    def fisher(self) -> Tensor:
        """Of the log noise variance alone (1,)."""
        return 0.5 * (self._unseen + self._unlearned().square().sum())[None]

    @property
    def _unseen(self) -> int:
        """Directions of the rows that no function reaches."""
        return self.num_data - self.compressed.rank

    def _unlearned(self) -> Tensor:
        """s (s I + L^T K L)^{-1}."""
        return self.noise * torch.cholesky_inverse(self.process.factor)

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.process.mean

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: m^2 multiply-adds a row."""
        return self.process.marginals(features, ((features @ self.covariance) * features).sum(1))

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``: prior values, corrected by the data (Matheron's rule).

        Cost: one eigendecomposition of K, which may be singular.
        """
        values, vectors = torch.linalg.eigh(self.covariance)
        noise = normal_columns(len(values), num, values, generator)
        prior = vectors @ (values.clamp_min(0.0).sqrt().unsqueeze(1) * noise)
        noise = normal_columns(self.compressed.rank, num, values, generator)
        seen = _root(self.compressed).mT @ prior + self.noise.sqrt() * noise
        solved = torch.cholesky_solve(seen, self.process.factor)
        return (prior + self.process.mean.unsqueeze(1) - self.process.carried @ solved).mT
