"""Posterior of the weights of a fixed basis at any prior variances, from statistics alone."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.sums import FeatureSums, WeightPosterior, add_gram
from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.linalg import cholesky
from gpx.linalg.triangular import inverse_lower, lower_matmul
from gpx.methods.base.model import Marginals
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics


class ReweightedWeights(ABC):
    """r = Phi w + noise with w ~ N(0, G), at one G = diag(g) and noise variance s.

    C = Phi G Phi^T + s I is the covariance of r (n,), which is never formed.

    Attributes:
        fit (): r^T C^{-1} r.
        log_determinant (): log det C.
        pull (k,): sqrt(g_i) phi_i^T C^{-1} r, the posterior mean of w_i / sqrt(g_i).
        learned (k,): g_i phi_i^T C^{-1} phi_i in [0, 1), the share of a weight's prior variance
            that the data have taken away.
        num_data: n.
    """

    fit: Tensor
    log_determinant: Tensor
    pull: Tensor
    learned: Tensor
    num_data: int

    def weight_gradient(self) -> Tensor:
        """d log N(r; 0, C) / d log g (k,)."""
        return 0.5 * (self.pull.square() - self.learned)

    @abstractmethod
    def noise_gradient(self) -> Tensor:
        """d log N(r; 0, C) / d log s, 0-d."""

    @abstractmethod
    def fisher(self) -> Tensor:
        """Diagonal of the expected information on (log g, log s), (k + 1,)."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Posterior mean of the m weights of the basis itself."""

    @abstractmethod
    def marginals(self, features: Tensor) -> Marginals:
        """Mean and variance of Phi w, (t,) each, at features from ``ReweightedForm.at``."""

    @abstractmethod
    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """Weights (num, m) drawn from their posterior."""


class ReweightedForm(ABC):
    """A path from statistics to posteriors; what does not depend on G and s is computed once.

    Attributes:
        path: its name, for records.
        num_weights: k, prior variances that there are.
    """

    path: str
    num_weights: int

    @abstractmethod
    def weights(self, log_variances: Tensor, log_noise: Tensor) -> ReweightedWeights:
        """The posterior at log g (k,) and log s (), both float64."""

    @abstractmethod
    def of_targets(self, projected: Tensor, squared: Tensor) -> ReweightedForm:
        """The path for the same rows with other targets r: Phi^T r (m,) and |r|^2 ().

        Nothing that depends on the features alone is computed again.
        """

    def at(self, features: Tensor) -> Tensor:
        """Features (t, m) in the form that marginals at every (g, s) take; float64."""
        return features.double()


class CovarianceForm(ReweightedForm):
    """One Cholesky factor of I + G^{1/2} Phi^T Phi G^{1/2} / s: finite where g_i goes to zero.

    Cost: m^3 multiply-adds an evaluation with its gradient, O(m^2) memory.
    Source: Evans thesis, section 5.2.1 (with the precision G^{-1}); this form is ours.
    """

    path = "covariance"

    def __init__(self, statistics: SufficientStatistics) -> None:
        self.statistics = statistics
        self.num_weights = len(statistics.projected)

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> _CovarianceWeights:
        """As in ``ReweightedForm``."""
        return _CovarianceWeights(self.statistics, log_variances, log_noise)

    def of_targets(self, projected: Tensor, squared: Tensor) -> CovarianceForm:
        """As in ``ReweightedForm``."""
        return CovarianceForm(replace(self.statistics, projected=projected, squared=squared))


class _CovarianceWeights(ReweightedWeights):
    def __init__(
        self, statistics: SufficientStatistics, log_variances: Tensor, log_noise: Tensor
    ) -> None:
        self.scale, root = (0.5 * log_variances).exp(), (0.5 * log_noise).exp()
        # features and targets in units of the noise's standard deviation; the m x m sums stay
        sums = FeatureSums(
            statistics.gram,
            statistics.projected / root,
            statistics.squared / root.square(),
            statistics.num_data * log_noise,
            statistics.num_data,
        )
        self.posterior = WeightPosterior(sums, self.scale / root)
        self.fit = sums.squared_residual - self.posterior.explained()
        logs = self.posterior.factor.diagonal().log().sum()
        self.log_determinant = 2.0 * logs + sums.log_noise
        self.pull = self.posterior.mean
        self.num_data = statistics.num_data
        self.learned = 1.0 - inverse_lower(self.posterior.factor).square_().sum(0)

    def noise_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        # s |C^{-1} r|^2 = fit - |pull|^2
        return 0.5 * (
            self.fit - self.pull.square().sum() + self.learned.sum() - float(self.num_data)
        )

    def fisher(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        unseen = self.num_data - len(self.pull)
        noise = 0.5 * (unseen + self.posterior.inverse().square().sum())
        return torch.cat([0.5 * self.learned.square(), noise[None]])

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.scale * self.pull

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: m^2 multiply-adds a row."""
        scaled = (features * self.scale).mT
        half = torch.linalg.solve_triangular(self.posterior.factor, scaled, upper=False)
        return Marginals(self.pull @ scaled, half.square_().sum(0))

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``. Cost: num m^2 multiply-adds."""
        noise = standard_normals(len(self.pull), num, self.pull, generator)
        drawn = torch.linalg.solve_triangular(self.posterior.factor.mT, noise, upper=True)
        return ((self.pull.unsqueeze(1) + drawn) * self.scale.unsqueeze(1)).mT


class CompressedForm(ReweightedForm):
    """One Cholesky factor of I + B G B^T / s with as many rows as Phi has rank.

    Cost: 1.5 rank^2 m multiply-adds an evaluation with its gradient, O(rank m) memory.
    """

    path = "compressed"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.compressed = compressed
        self.rows = compressed.values.sqrt().unsqueeze(1) * compressed.vectors.mT
        self.num_weights = compressed.num_basis

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> _CompressedWeights:
        """As in ``ReweightedForm``."""
        return _CompressedWeights(self.compressed, self.rows, log_variances, log_noise)

    def of_targets(self, projected: Tensor, squared: Tensor) -> CompressedForm:
        """As in ``ReweightedForm``."""
        found = copy.copy(self)
        found.compressed = self.compressed.of_targets(projected, squared)
        return found


class _CompressedWeights(ReweightedWeights):
    def __init__(
        self,
        compressed: CompressedStatistics,
        rows: Tensor,
        log_variances: Tensor,
        log_noise: Tensor,
    ) -> None:
        self.compressed, self.noise = compressed, log_noise.exp()
        self.scale = (0.5 * log_variances).exp()
        self.scaled = rows * (self.scale / self.noise.sqrt())  # B G^{1/2} s^{-1/2}
        inner = torch.eye(len(rows), dtype=torch.float64, device=rows.device)
        add_gram(inner, self.scaled)
        # at least one on every eigenvalue: a failure can only be NaN, which the error then names
        self.factor, _ = cholesky(inner, name="I + B G B^T / noise", ladder=(0.0,))
        # in units of the noise's standard deviation: alpha = s^{1/2} C^{-1} b
        self.targets = compressed.targets / self.noise.sqrt()
        self.alpha = torch.cholesky_solve(self.targets.unsqueeze(1), self.factor).squeeze(1)
        # a product with the inverse is twice as fast as a solve with this many columns
        self.half = lower_matmul(inverse_lower(self.factor), self.scaled)
        self.unreached = compressed.rest / self.noise
        self.fit = self.unreached + torch.dot(self.targets, self.alpha)
        logs = 2.0 * self.factor.diagonal().log().sum()
        self.log_determinant = logs + compressed.num_data * log_noise
        self.pull = self.alpha @ self.scaled
        self.learned = self.half.square().sum(0)
        self.num_data = compressed.num_data

    def noise_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        quadratic = self.unreached + self.alpha.square().sum()
        return 0.5 * (quadratic + self.learned.sum() - float(self.num_data))

    def fisher(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        inverse = torch.cholesky_inverse(self.factor)
        noise = 0.5 * (self.num_data - self.compressed.rank + inverse.square().sum())
        return torch.cat([0.5 * self.learned.square(), noise[None]])

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.scale * self.pull

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: rank m multiply-adds a row."""
        scaled = (features * self.scale).mT
        variance = scaled.square().sum(0) - (self.half @ scaled).square_().sum(0)
        return Marginals(self.pull @ scaled, variance.clamp_min(0.0))

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``: prior weights, corrected by the data (Matheron's rule).

        Cost: 2 num rank m multiply-adds.
        """
        v = standard_normals(len(self.pull), num, self.pull, generator)
        noise = standard_normals(len(self.alpha), num, self.pull, generator)
        misfit = self.targets.unsqueeze(1) - self.scaled @ v - noise
        v += self.scaled.mT @ torch.cholesky_solve(misfit, self.factor)
        return (v * self.scale.unsqueeze(1)).mT


def standard_normals(rows: int, columns: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """(rows, columns), float64, on the device of ``like``."""
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device=like.device)
