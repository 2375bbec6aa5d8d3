"""Posterior of the weights of a fixed basis at any prior variances, from sums over the data."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import FittedWeights, SufficientStatistics, normal_columns
from gpx.constants import LOG_TWO_PI
from gpx.linalg import cholesky
from gpx.linalg.triangular import add_lower_product, inverse_lower, lower_matmul
from gpx.methods.base.posterior import Marginals

RANK_TOLERANCE = 1e-13
"""Eigenvalues of Phi^T Phi below this fraction of the largest count as zero."""


class ReweightedWeights(ABC):
    """Posterior of w in r = Phi w + noise, w ~ N(0, G), at G = diag(g) and noise variance s.

    C = Phi G Phi^T + s I is the covariance of r (n,), which is never formed.

    Attributes:
        fit (): r^T C^{-1} r.
        log_determinant (): log det C.
        scaled_mean (k,): sqrt(g_i) phi_i^T C^{-1} r, the posterior mean of w_i / sqrt(g_i).
        variance_reduction (k,): g_i phi_i^T C^{-1} phi_i in [0, 1), the relative reduction of the
            variance of w_i by the data.
        misfit (): s |C^{-1} r|^2.
        num_data: n.
    """

    fit: Tensor
    log_determinant: Tensor
    scaled_mean: Tensor
    variance_reduction: Tensor
    misfit: Tensor
    num_data: int

    def log_marginal_likelihood(self) -> Tensor:
        """log N(r; 0, C) in nats, 0-d; exact."""
        return -0.5 * (self.fit + self.log_determinant + self.num_data * LOG_TWO_PI)

    def parts(self, log_noise: Tensor) -> dict[str, Tensor]:
        """The terms whose sum is ``log_marginal_likelihood``, at the log noise variance ()."""
        noise = self.num_data * log_noise
        return {
            "fit": -0.5 * self.fit,
            "complexity": -0.5 * (self.log_determinant - noise),
            "constant": -0.5 * (noise + self.num_data * LOG_TWO_PI),
        }

    def weight_gradient(self) -> Tensor:
        """d log N(r; 0, C) / d log g (k,)."""
        return 0.5 * (self.scaled_mean.square() - self.variance_reduction)

    def noise_gradient(self) -> Tensor:
        """d log N(r; 0, C) / d log s, 0-d."""
        return 0.5 * (self.misfit - self.inverse_trace())

    def fisher(self) -> Tensor:
        """Diagonal of the expected information on (log g, log s), (k + 1,)."""
        return 0.5 * torch.cat(
            [self.variance_reduction.square(), self.inverse_square_trace()[None]]
        )

    def inverse_trace(self) -> Tensor:
        """s tr C^{-1}, 0-d."""
        return float(self.num_data) - self.variance_reduction.sum()

    @abstractmethod
    def inverse_square_trace(self) -> Tensor:
        """s^2 tr C^{-2}, 0-d."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Posterior mean of the m weights of the basis itself."""

    @abstractmethod
    def marginals(self, features: Tensor) -> Marginals:
        """Mean and variance (t,) of phi^T w, for features from ``prepare_features``."""

    @abstractmethod
    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """Weights (num, m) drawn from their posterior."""


class ReweightedForm(ABC):
    """A way to compute posteriors from sums over the data at any G and s.

    Attributes:
        path: its name, for facts.
        sums: over the data.
        num_weights: k, number of prior parameters.
    """

    path: str
    sums: SufficientStatistics | CompressedStatistics
    num_weights: int

    @abstractmethod
    def weights(self, log_variances: Tensor, log_noise: Tensor) -> ReweightedWeights:
        """The posterior at log g (k,) and log s (), both float64."""

    def with_targets(self, projected: Tensor, squared: Tensor) -> ReweightedForm:
        """The form for the same rows with other targets r, by Phi^T r (m,) and |r|^2 ().

        Reuses everything that depends on the features only.
        """
        found = copy.copy(self)
        found.sums = self.sums.with_targets(projected, squared)
        return found

    def prepare_features(self, features: Tensor) -> Tensor:
        """Features (t, m), float64, prepared for ``ReweightedWeights.marginals`` at any (g, s)."""
        return features.double()


class CovarianceForm(ReweightedForm):
    """By a Cholesky factor of I + G^{1/2} Phi^T Phi G^{1/2} / s, which is finite for g_i -> 0.

    Cost: m^3 multiply-adds per evaluation with its gradient, O(m^2) memory.
    Source: Evans thesis, section 5.2.1, written with G instead of the precision G^{-1}.
    """

    path = "covariance"

    def __init__(self, statistics: SufficientStatistics) -> None:
        self.sums: SufficientStatistics = statistics
        self.num_weights = len(statistics.projected)

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> _CovarianceWeights:
        """As in ``ReweightedForm``."""
        return _CovarianceWeights(self.sums, log_variances, log_noise)


class _CovarianceWeights(ReweightedWeights):
    def __init__(
        self, statistics: SufficientStatistics, log_variances: Tensor, log_noise: Tensor
    ) -> None:
        self.posterior = FittedWeights(statistics, (0.5 * log_variances).exp(), log_noise.exp())
        self.fit, self.log_determinant = self.posterior.fit, self.posterior.log_determinant
        self.scaled_mean = self.posterior.mean
        self.misfit = self.fit - self.scaled_mean.square().sum()
        self.num_data = statistics.num_data
        self.variance_reduction = 1.0 - inverse_lower(self.posterior.factor).square_().sum(0)

    def inverse_square_trace(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        inverse = torch.cholesky_inverse(self.posterior.factor)
        return self.num_data - len(self.scaled_mean) + inverse.square().sum()

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.posterior.scale * self.scaled_mean

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: m^2 / 2 multiply-adds a row."""
        return Marginals(*self.posterior.marginals(features.mT))

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``. Cost: num m^2 / 2 multiply-adds."""
        return self.posterior.draw(num, generator=generator)


class CompressedStatistics:
    """n rows of data reduced to rank(Phi) rows with the same information on the weights.

    Phi^T Phi = V Lambda V^T with eigenvalues above rounding; then for every G and s

        log N(r; 0, C) = log N(b; 0, B G B^T + s I) - ((n - rank) log(2 pi s) + rest / s) / 2

    with B = Lambda^{1/2} V^T, b = Lambda^{-1/2} V^T Phi^T r and rest = |r|^2 - |b|^2, the squared
    norm of the targets orthogonal to all functions.

    Args:
        statistics: of n rows.
        vectors (m, rank): V of these statistics; None: computed.

    Attributes:
        vectors (m, rank), values (rank,): V and Lambda, largest first.
        targets (rank,): b.
        rest (): never negative.
        projected (m,), squared (): Phi^T r and |r|^2.
        num_data: n.

    Cost: one eigendecomposition, about 10 m^3 operations.
    Source: derived from Evans thesis, section 5.2.2.
    """

    def __init__(self, statistics: SufficientStatistics, vectors: Tensor | None = None) -> None:
        if vectors is None:
            values, vectors = torch.linalg.eigh(statistics.gram)
            kept = values > RANK_TOLERANCE * values.amax().clamp_min(1e-300)
            self.values, self.vectors = values[kept].flip(0), vectors[:, kept].flip(1).contiguous()
        else:
            self.values = (vectors * (statistics.gram @ vectors)).sum(0)
            self.vectors = vectors
        self._set_targets(statistics.projected, statistics.squared)
        self.num_data = statistics.num_data
        self.num_basis = statistics.gram.shape[0]

    def _set_targets(self, projected: Tensor, squared: Tensor) -> None:
        self.projected, self.squared = projected, squared
        self.targets = (projected @ self.vectors) / self.values.sqrt()
        self.rest = (squared - self.targets.square().sum()).clamp_min(0.0)

    def with_targets(self, projected: Tensor, squared: Tensor) -> CompressedStatistics:
        """The same rows with other targets r, by Phi^T r (m,) and |r|^2 (). Cost: O(m rank)."""
        found = copy.copy(self)
        found._set_targets(projected, squared)
        return found

    @property
    def rank(self) -> int:
        """Rank of Phi."""
        return len(self.values)


class CompressedForm(ReweightedForm):
    """By a Cholesky factor of I + B G B^T / s (rank, rank).

    Cost: 1.5 rank^2 m multiply-adds per evaluation with its gradient, O(rank m) memory.
    """

    path = "compressed"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.sums: CompressedStatistics = compressed
        self.rows = compressed.values.sqrt().unsqueeze(1) * compressed.vectors.mT
        self.num_weights = compressed.num_basis

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> _CompressedWeights:
        """As in ``ReweightedForm``."""
        return _CompressedWeights(self.sums, self.rows, log_variances, log_noise)


class _CompressedWeights(ReweightedWeights):
    def __init__(
        self,
        compressed: CompressedStatistics,
        rows: Tensor,
        log_variances: Tensor,
        log_noise: Tensor,
    ) -> None:
        noise = log_noise.exp()
        self.scale = (0.5 * log_variances).exp()
        self.scaled = rows * (self.scale / noise.sqrt())  # B G^{1/2} s^{-1/2}
        inner = torch.eye(len(rows), dtype=torch.float64, device=rows.device)
        add_lower_product(inner, self.scaled, self.scaled.mT)
        # all eigenvalues are at least one, so only NaN can fail
        self.factor, _ = cholesky(inner, name="I + B G B^T / noise", ladder=(0.0,))
        # in units of the noise's standard deviation: alpha = s^{1/2} C^{-1} b
        self.targets = compressed.targets / noise.sqrt()
        self.alpha = torch.cholesky_solve(self.targets.unsqueeze(1), self.factor).squeeze(1)
        # for so many columns a product with the inverse is faster than a solve
        self.half = lower_matmul(inverse_lower(self.factor), self.scaled)
        unreached = compressed.rest / noise
        self.fit = unreached + torch.dot(self.targets, self.alpha)
        logs = 2.0 * self.factor.diagonal().log().sum()
        self.log_determinant = logs + compressed.num_data * log_noise
        self.scaled_mean = self.alpha @ self.scaled
        self.variance_reduction = self.half.square().sum(0)
        self.misfit = unreached + self.alpha.square().sum()
        self.num_data = compressed.num_data

    def inverse_square_trace(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        inverse = torch.cholesky_inverse(self.factor)
        return self.num_data - len(self.alpha) + inverse.square().sum()

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.scale * self.scaled_mean

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: rank m multiply-adds a row."""
        scaled = (features * self.scale).mT
        variance = scaled.square().sum(0) - (self.half @ scaled).square_().sum(0)
        return Marginals(self.scaled_mean @ scaled, variance.clamp_min(0.0))

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``: prior draws, corrected by the data (Matheron's rule).

        Cost: 2 num rank m multiply-adds.
        """
        v = normal_columns(len(self.scaled_mean), num, self.scaled_mean, generator)
        noise = normal_columns(len(self.alpha), num, self.scaled_mean, generator)
        misfit = self.targets.unsqueeze(1) - self.scaled @ v - noise
        v += self.scaled.mT @ torch.cholesky_solve(misfit, self.factor)
        return (v * self.scale.unsqueeze(1)).mT
