"""Data as few rows as their features have rank."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from gpx.inference.sufficient_statistics import SufficientStatistics

RANK_TOLERANCE = 1e-13
"""Eigenvalues of Phi^T Phi below this times the largest are rounding."""


class CompressedStatistics:
    """n rows of data as rank(Phi) rows that say the same of the weights.

    Phi^T Phi = V Lambda V^T with the eigenvalues that are not rounding; then for every G and s

        log N(r; 0, C) = log N(b; 0, B G B^T + s I) - ((n - rank) log(2 pi s) + rest / s) / 2

    with B = Lambda^{1/2} V^T, b = Lambda^{-1/2} V^T Phi^T r and rest = |r|^2 - |b|^2, the part of
    the targets that no function of the basis reaches.

    Args:
        statistics: of n rows.
        vectors (m, rank): V, from these statistics; None: computed.

    Attributes:
        vectors (m, rank), values (rank,): V and Lambda, largest first.
        targets (rank,): b.
        rest (): never negative.
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
        self._aim(statistics.projected, statistics.squared)
        self.num_data = statistics.num_data
        self.num_basis = statistics.gram.shape[0]

    def _aim(self, projected: Tensor, squared: Tensor) -> None:
        self.targets = (projected @ self.vectors) / self.values.sqrt()
        self.rest = (squared - self.targets.square().sum()).clamp_min(0.0)

    def of_targets(self, projected: Tensor, squared: Tensor) -> CompressedStatistics:
        """The same rows with other targets r, by Phi^T r (m,) and |r|^2 (). Cost: O(m rank)."""
        found = copy.copy(self)
        found._aim(projected, squared)
        return found

    @property
    def rank(self) -> int:
        """Directions of the weights that the data see."""
        return len(self.values)
