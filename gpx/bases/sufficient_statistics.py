"""Bayesian linear regression on the functions of a basis, from sums over the rows of the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.errors import ConfigError, ShapeError
from gpx.linalg import cholesky
from gpx.linalg.triangular import add_lower_product
from gpx.operators import Interpolation

BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""Bytes of one block of features; on a CPU it stays in the cache between the passes over it."""


@dataclass(frozen=True)
class SufficientStatistics:
    """Sums over n rows of features Phi (n, m) and residuals r = y - m(x) (n,); float64.

    Statistics of disjoint rows add up, and added rows can be subtracted again, so that a model can
    follow a stream of data at O(m^2) a row, at a cost independent of n.

    Rows may be weighted by E = D^{-1}, the precision of their noise; by default E = I.

    Attributes:
        gram (m, m): Phi^T E Phi.
        projected (m,): Phi^T E r.
        squared (): r^T E r.
        num_data: n.
        log_noise (): log det D.

    Source: Evans thesis, section 5.2.
    """

    gram: Tensor
    projected: Tensor
    squared: Tensor
    num_data: int
    log_noise: Tensor | float = 0.0

    @classmethod
    def empty(cls, num_basis: int, device: torch.device | str = "cpu") -> SufficientStatistics:
        """Statistics of no rows."""
        gram = torch.zeros(num_basis, num_basis, dtype=torch.float64, device=device)
        return cls(gram, gram.new_zeros(num_basis), gram.new_zeros(()), 0)

    def __add__(self, other: SufficientStatistics) -> SufficientStatistics:
        """Statistics of both sets of rows."""
        return self._combined(other, 1)

    def __sub__(self, other: SufficientStatistics) -> SufficientStatistics:
        """Statistics without some of the rows.

        Raises:
            ConfigError: more rows are removed than there are.
        """
        if other.num_data > self.num_data:
            raise ConfigError(
                f"{other.num_data} rows cannot be taken from statistics of {self.num_data}; only "
                "rows that were added can be removed"
            )
        return self._combined(other, -1)

    def _combined(self, other: SufficientStatistics, sign: int) -> SufficientStatistics:
        if other.gram.shape != self.gram.shape:
            raise ShapeError(
                f"statistics of {self.gram.shape[0]} and {other.gram.shape[0]} basis functions "
                "cannot be combined"
            )
        return SufficientStatistics(
            self.gram + sign * other.gram,
            self.projected + sign * other.projected,
            self.squared + sign * other.squared,
            self.num_data + sign * other.num_data,
            self.log_noise + sign * other.log_noise,
        )

    def about(self, prior_mean: Tensor) -> SufficientStatistics:
        """Statistics of r - Phi mu, for weights with prior mean mu (m,).

        The posterior mean of the weights is then mu plus that of these statistics, the posterior
        covariance is the same. Cost: O(m^2).

        Source: Evans thesis, section 5.2.5.
        """
        mu = prior_mean.double()
        carried = self.gram @ mu
        squared = self.squared - 2.0 * torch.dot(self.projected, mu) + torch.dot(mu, carried)
        return self.with_targets(self.projected - carried, squared)

    def with_targets(self, projected: Tensor, squared: Tensor) -> SufficientStatistics:
        """The same rows with other targets r, by Phi^T r (m,) and |r|^2 ()."""
        return replace(self, projected=projected, squared=squared)

    def select_functions(self, kept: Tensor) -> SufficientStatistics:
        """Statistics of the functions with numbers ``kept`` (k,) only."""
        return replace(self, gram=self.gram[kept][:, kept], projected=self.projected[kept])

    def scaled(self, factor: Tensor) -> SufficientStatistics:
        """Statistics of the functions times sqrt(factor), factor ()."""
        return replace(self, gram=factor * self.gram, projected=factor.sqrt() * self.projected)

    def standardised(self, scale: Tensor) -> SufficientStatistics:
        """Statistics of the functions times scale (m,), for weights in units of the scale."""
        scale = scale.double()
        gram = self.gram * scale * scale.unsqueeze(1)
        return replace(self, gram=gram, projected=self.projected * scale)


@torch.no_grad()
def interpolation_statistics(weights: Interpolation, residual: Tensor) -> SufficientStatistics:
    """Statistics of a sparse interpolation matrix W in place of Phi.

    A row changes q^2 entries of the sums, whatever n and m; adding the result to older statistics
    is the online update of structured kernel interpolation.

    Args:
        weights: W (n, m) with q entries a row.
        residual (n,): y - m(x).

    Cost: O(n q^2) time, O(m^2 + block) memory.
    Source: Evans thesis, section 5.3.3; Stanton et al. 2021 (online).
    """
    m, q = weights.num_columns, weights.values.shape[1]
    gram = torch.zeros(m * m, dtype=torch.float64, device=residual.device)
    projected = gram.new_zeros(m)
    for rows in row_chunks(len(residual), 2 * 8 * q * q, block_bytes(residual.device)):
        values, indices = weights.values[rows].double(), weights.indices[rows]
        places = indices.unsqueeze(2) * m + indices.unsqueeze(1)
        gram.index_add_(0, places.flatten(), (values.unsqueeze(2) * values.unsqueeze(1)).flatten())
        aimed = values * residual[rows].double().unsqueeze(1)
        projected.index_add_(0, indices.flatten(), aimed.flatten())
    squared = torch.dot(residual.double(), residual.double())
    return SufficientStatistics(gram.view(m, m), projected, squared, len(residual))


BYTES_PER_FEATURE = 8
"""Those of a float64 number: sums over a block are taken in it, whatever the features' dtype."""


def block_bytes(device: torch.device) -> int:
    """Bytes that one block of features may take on a device, at ``BYTES_PER_FEATURE``."""
    return BLOCK_BYTES.get(device.type, BLOCK_BYTES["cpu"])


def accumulate_statistics(
    blocks: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    num_basis: int,
    x: Tensor,
) -> SufficientStatistics:
    """Statistics from blocks of features, which are multiplied in float64 whatever their dtype.

    The rounding of float32 products grows with n and is divided by the noise variance: it would
    exceed the identity in I + Phi^T Phi / noise, and what the features leave of r^T r / noise.

    Args:
        blocks: features transposed (m, b), residuals (b,) and noise variances (b,) of some rows;
            None for the latter: rows without weights.
        num_basis: m.
        x (n, d): all inputs, for their number and device.

    Cost: n m^2 / 2 multiply-adds in float64. For features in float32 that is twice the time of
    float32 products on CPUs, no more than theirs on A100, H100 and H200 (``float64_is_free``), and
    up to 64 times that on other GPUs.
    """
    total = torch.zeros(num_basis, num_basis, dtype=torch.float64, device=x.device)
    projected, squared = total.new_zeros(num_basis), total.new_zeros(())
    logs = total.new_zeros(())
    for functions, targets, noise in blocks:
        features, r = functions.double(), targets.double()
        weighted, block = r, features
        if noise is not None:
            wide = noise.double()
            weighted, block = r / wide, features * wide.rsqrt()
            logs += wide.log().sum()
        projected += features @ weighted
        squared += torch.dot(r, weighted)
        add_lower_product(total, block, block.mT)
    gram = total.tril() + total.tril(-1).mT
    return SufficientStatistics(gram, projected, squared, x.shape[0], logs)


class WeightPosterior:
    """Posterior of weights w = scale v, v ~ N(0, I): v ~ N(mean, B^{-1}), B = factor factor^T.

    Args:
        scale (m,): prior standard deviation of every weight.
        mean (m,): of v.
        factor (m, m): lower Cholesky factor of B = I + diag(scale) Phi^T E Phi diag(scale).
    """

    def __init__(self, scale: Tensor, mean: Tensor, factor: Tensor) -> None:
        self.scale, self.mean, self.factor = scale, mean, factor

    def marginals(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (t,) of Phi w at features transposed (m, t), in their dtype.

        Cost: m^2 / 2 multiply-adds a column.
        """
        dtype = features.dtype
        block = self.scale.to(dtype).unsqueeze(1) * features
        half = torch.linalg.solve_triangular(self.factor.to(dtype), block, upper=False)
        return self.mean.to(dtype) @ block, torch.linalg.vecdot(half, half, dim=0)

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """Weights w (num, m) drawn from their posterior. Cost: num m^2 / 2 multiply-adds."""
        noise = normal_columns(len(self.mean), num, self.mean, generator)
        drawn = torch.linalg.solve_triangular(self.factor.mT, noise, upper=True)
        return ((self.mean.unsqueeze(1) + drawn) * self.scale.unsqueeze(1)).mT


class FittedWeights(WeightPosterior):
    """The posterior from sums over the data, and the terms of the evidence.

    Args:
        sums: of n rows.
        scale (m,): prior standard deviation of every weight.
        noise (): noise variance, for sums without weights; None: the sums are weighted.

    Attributes:
        fit (): r^T C^{-1} r with C = Phi diag(scale^2) Phi^T + D, the covariance of r.
        log_determinant (): log det C.

    Raises:
        NotPositiveDefinite: the sums are not finite, or so large relative to the noise variance
            that float64 rounds the identity away.

    Cost: m^3 / 3 multiply-adds.
    """

    def __init__(
        self, sums: SufficientStatistics, scale: Tensor, noise: Tensor | None = None
    ) -> None:
        squared, log_noise, root = sums.squared, sums.log_noise, scale.new_ones(())
        if noise is not None:
            squared, log_noise = squared / noise, sums.num_data * noise.log()
            root = noise.sqrt()
        relative = scale / root  # so that the m x m sums are read once
        inner = sums.gram * relative * relative.unsqueeze(1)
        projected = sums.projected * relative / root
        inner.diagonal().add_(1.0)
        # all eigenvalues are at least one: a jitter would not help
        factor, _ = cholesky(inner, name="I + Phi^T Phi / noise", ladder=(0.0,))
        mean = torch.cholesky_solve(projected.unsqueeze(1), factor).squeeze(1)
        super().__init__(scale, mean, factor)
        self.fit = squared - torch.dot(projected, mean)
        self.log_determinant = 2.0 * factor.diagonal().log().sum() + log_noise


def normal_columns(rows: int, columns: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers (rows, columns), float64, on the device of ``like``."""
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device=like.device)
