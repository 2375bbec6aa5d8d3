"""All that regression on a fixed basis needs to know of the data: sums over its rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.bases.grid_eigenfunctions.sums import BLOCK_BYTES, FeatureSums, add_gram
from gpx.errors import ConfigError, ShapeError
from gpx.operators.interpolation import Interpolation


@dataclass(frozen=True)
class SufficientStatistics:
    """Sums over n rows of features Phi (n, m) and residuals r = y - m(x) (n,); float64.

    Statistics of disjoint rows add up, and rows that were added can be subtracted again: the model
    follows a stream of data at O(m^2) a row, and nothing computed from the sums depends on n.

    Attributes:
        gram (m, m): Phi^T Phi.
        projected (m,): Phi^T r.
        squared (): r^T r.
        num_data: n.

    Source: Evans thesis, section 5.2.
    """

    gram: Tensor
    projected: Tensor
    squared: Tensor
    num_data: int

    @classmethod
    def empty(cls, num_basis: int, device: torch.device | str = "cpu") -> SufficientStatistics:
        """Of no rows."""
        gram = torch.zeros(num_basis, num_basis, dtype=torch.float64, device=device)
        return cls(gram, gram.new_zeros(num_basis), gram.new_zeros(()), 0)

    def __add__(self, other: SufficientStatistics) -> SufficientStatistics:
        """Statistics of both sets of rows."""
        self._check(other)
        return SufficientStatistics(
            self.gram + other.gram,
            self.projected + other.projected,
            self.squared + other.squared,
            self.num_data + other.num_data,
        )

    def __sub__(self, other: SufficientStatistics) -> SufficientStatistics:
        """Statistics without rows that are among these.

        Raises:
            ConfigError: there are more rows to take away than there are.
        """
        self._check(other)
        if other.num_data > self.num_data:
            raise ConfigError(
                f"{other.num_data} rows cannot be taken from statistics of {self.num_data}; only "
                "rows that were added can be removed"
            )
        return SufficientStatistics(
            self.gram - other.gram,
            self.projected - other.projected,
            self.squared - other.squared,
            self.num_data - other.num_data,
        )

    def about(self, prior_mean: Tensor) -> SufficientStatistics:
        """Statistics of r - Phi mu: those to use where the weights have prior mean mu (m,).

        The posterior mean of the weights is then mu plus that of these statistics, the posterior
        covariance is the same. Cost: O(m^2).

        Source: Evans thesis, section 5.2.5.
        """
        mu = prior_mean.double()
        carried = self.gram @ mu
        squared = self.squared - 2.0 * torch.dot(self.projected, mu) + torch.dot(mu, carried)
        return SufficientStatistics(self.gram, self.projected - carried, squared, self.num_data)

    def of_functions(self, kept: Tensor) -> SufficientStatistics:
        """Those of some of the functions, by their numbers ``kept`` (k,)."""
        gram = self.gram[kept][:, kept]
        return SufficientStatistics(gram, self.projected[kept], self.squared, self.num_data)

    def with_noise(self, noise: Tensor) -> FeatureSums:
        """The same sums in units of a noise variance (), as ``WeightPosterior`` takes them."""
        s = noise.double()
        return FeatureSums(
            self.gram / s,
            self.projected / s,
            self.squared / s,
            self.num_data * s.log(),
            self.num_data,
        )

    def _check(self, other: SufficientStatistics) -> None:
        if other.gram.shape != self.gram.shape:
            raise ShapeError(
                f"statistics of {self.gram.shape[0]} and {other.gram.shape[0]} basis functions "
                "cannot be combined"
            )


@torch.no_grad()
def sufficient_statistics(
    basis: Basis, x: Tensor, residual: Tensor, *, rows: int | None = None
) -> SufficientStatistics:
    """One pass over the data; features are formed and dropped block by block.

    Args:
        basis: at the hyperparameters that it keeps.
        x (n, d), residual (n,): inputs and y - m(x).
        rows: per block; None: as many as stay in the device's cache.

    Cost: n m^2 / 2 multiply-adds (in the dtype of x, added up in float64) and the features; memory
    O(m^2 + block).
    """
    m = basis.num_basis
    if rows is None:
        limit = BLOCK_BYTES.get(x.device.type, BLOCK_BYTES["cpu"])
        rows = max(1, limit // (m * x.element_size()))
    total = torch.zeros(m, m, dtype=torch.float64, device=x.device)
    partial = total if x.dtype == torch.float64 else torch.zeros_like(total, dtype=x.dtype)
    projected, squared = total.new_zeros(m), total.new_zeros(())
    for start in range(0, x.shape[0], rows):
        block = basis(x[start : start + rows]).mT
        r = residual[start : start + rows]
        projected += (block @ r).double()
        squared += torch.dot(r, r).double()
        add_gram(partial, block)
        if partial is not total:
            total += partial
            partial.zero_()
    gram = total.tril() + total.tril(-1).mT
    return SufficientStatistics(gram, projected, squared, x.shape[0])


@torch.no_grad()
def interpolation_statistics(weights: Interpolation, residual: Tensor) -> SufficientStatistics:
    """Statistics of a sparse interpolation matrix W in place of Phi.

    A data point touches q^2 entries of the sums, whatever n and m: added to older statistics it is
    the online update of structured kernel interpolation.

    Args:
        weights: W (n, m) with q entries a row.
        residual (n,): y - m(x).

    Cost: O(n q^2) time, O(m^2 + n q^2) memory.
    Source: Evans thesis, section 5.3.3; Stanton et al. 2021 (online).
    """
    m = weights.num_columns
    values, indices, r = weights.values.double(), weights.indices, residual.double()
    gram = torch.zeros(m * m, dtype=torch.float64, device=r.device)
    places = indices.unsqueeze(2) * m + indices.unsqueeze(1)
    gram.index_add_(0, places.flatten(), (values.unsqueeze(2) * values.unsqueeze(1)).flatten())
    projected = gram.new_zeros(m)
    projected.index_add_(0, indices.flatten(), (values * r.unsqueeze(1)).flatten())
    return SufficientStatistics(gram.view(m, m), projected, torch.dot(r, r), len(r))
