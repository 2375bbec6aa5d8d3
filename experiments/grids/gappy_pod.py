"""Gappy proper orthogonal decomposition: gaps filled by a low-rank model of the snapshots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GappyPOD:
    """A filled field and facts of its computation.

    Attributes:
        filled (s, tau): observed entries as given, gaps from the best rank.
        low_rank (s, tau): temporal mean plus the rank-k reconstruction, at every entry.
        rank: the best k.
        held_out (K,): RMSE on the observed entries kept apart, for k = 1 ... K.
        iterations: of the last rebuild.
        converged: whether it met the tolerance.
        change: relative change at the gaps in its last iteration.
    """

    filled: Tensor
    low_rank: Tensor
    rank: int
    held_out: Tensor
    iterations: int
    converged: bool
    change: float


def gappy_pod(
    values: Tensor,
    observed: Tensor,
    *,
    max_rank: int | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    hold_out: float = 0.02,
    patience: int = 3,
    generator: torch.Generator | None = None,
) -> GappyPOD:
    """Fill gaps by repeated rank-k reconstruction, with k chosen on held-out entries.

    The temporal mean of the observed entries is removed and gaps start at zero. For k = 1, 2, ...
    the filled matrix is replaced at its gaps by its own best rank-k approximation until that
    changes little; the error on observed entries kept apart says which k is best; with all
    entries, the ranks up to it are run again.

    Args:
        values (s, tau): one snapshot per column; entries at gaps are not read.
        observed (s, tau): which entries are observed; every point in some snapshot.
        max_rank: most ranks tried; None: min(s, tau) - 1.
        tolerance: of the relative change at the gaps.
        max_iterations: per rank.
        hold_out: share of observed entries kept apart.
        patience: ranks in a row without a lower held-out error before the search ends (published
            schemes stop at the first).
        generator: of the choice of held-out entries; None: torch's default one.

    Cost: per iteration s tau min(s, tau) multiply-adds and an eigendecomposition of the smaller
    side; memory four matrices (s, tau).
    Source: the standard scheme (Everson and Sirovich 1995; Venturi and Karniadakis 2004), which
        Evans thesis, section 3.5.4, compares with without specifying it.
    """
    most = min(values.shape) - 1 if max_rank is None else max_rank
    kept = observed & ~_choose(observed, hold_out, generator)
    kept[~kept.any(1)] = observed[~kept.any(1)]  # a point observed once or twice keeps its entries
    apart = observed & ~kept
    errors: list[float] = []
    search = _Filling(values, kept)
    for k in range(1, most + 1):
        search.run(k, tolerance, max_iterations)
        wrong = search.low_rank()[apart] - values[apart]
        errors.append(float(wrong.square().mean().sqrt()))
        if k - errors.index(min(errors)) > patience:
            break
    best = errors.index(min(errors)) + 1
    final = _Filling(values, observed)
    for k in range(1, best + 1):
        final.run(k, tolerance, max_iterations)
    low_rank = final.low_rank()
    return GappyPOD(
        filled=torch.where(observed, values, low_rank),
        low_rank=low_rank,
        rank=best,
        held_out=torch.tensor(errors, dtype=torch.float64),
        iterations=final.iterations,
        converged=final.change < tolerance,
        change=final.change,
    )


class _Filling:
    """Deviations from the temporal mean, filled; goes from one rank to the next."""

    def __init__(self, values: Tensor, observed: Tensor) -> None:
        self.gaps = ~observed
        zeroed = values.masked_fill(self.gaps, 0.0)
        self.mean = zeroed.sum(1, keepdim=True) / observed.sum(1, keepdim=True)
        self.deviations = (zeroed - self.mean).masked_fill_(self.gaps, 0.0)
        self.approximation = self.deviations
        self.iterations, self.change = 0, 0.0

    def run(self, rank: int, tolerance: float, max_iterations: int) -> None:
        """Rank-k reconstruction and overwriting of gaps, until the gaps change little."""
        for step in range(1, max_iterations + 1):
            self.iterations = step
            self.approximation = leading_part(self.deviations, rank)
            new = self.approximation[self.gaps]
            before = self.deviations[self.gaps]
            scale = float(new.norm())
            self.change = float((new - before).norm()) / scale if scale else 0.0
            self.deviations[self.gaps] = new
            if self.change < tolerance:
                return

    def low_rank(self) -> Tensor:
        """Mean plus the last reconstruction."""
        return self.mean + self.approximation


def fill_by_temporal_modes(
    values: Tensor, observed: Tensor, modes: Tensor, *, noise_variance: float = 0.0
) -> Tensor:
    """Fill every point's gaps from known modes in time, fitted to the point's data.

    A point's series is a constant plus the modes times its own coefficients. Least squares over
    the frames in which it was seen, or the posterior mean under noise and coefficients of unit
    variance.

    Args:
        values (s, tau): one snapshot per column; entries at gaps are not read.
        observed (s, tau): which entries are observed.
        modes (k, tau): scaled by the standard deviations of their coefficients.
        noise_variance: of an entry; zero: least squares.

    Returns:
        (s, tau): the fit, at every entry.

    Cost: s k^2 tau multiply-adds, memory s k^2.
    """
    design = torch.cat([modes, modes.new_ones(1, modes.shape[1])])
    seen = observed.to(values.dtype)
    gram = torch.einsum("kt,st,lt->skl", design, seen, design)
    shrinkage = torch.full((len(design),), noise_variance, dtype=values.dtype)
    shrinkage[-1] = 0.0
    right = (seen * values.masked_fill(~observed, 0.0)) @ design.mT
    # points seen in fewer frames than there are modes have many solutions: the shortest
    coefficients = torch.linalg.pinv(gram + shrinkage.diag(), hermitian=True) @ right[:, :, None]
    return coefficients.squeeze(-1) @ design


def leading_part(matrix: Tensor, rank: int) -> Tensor:
    """Best rank-k approximation of (s, tau), through the Gram matrix of the smaller side."""
    if matrix.shape[0] < matrix.shape[1]:
        return leading_part(matrix.mT, rank).mT
    vectors = torch.linalg.eigh(matrix.mT @ matrix).eigenvectors[:, -rank:]
    return (matrix @ vectors) @ vectors.mT


def _choose(observed: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    cells = observed.reshape(-1).nonzero().squeeze(1)
    count = max(1, round(share * cells.shape[0]))
    order = torch.randperm(cells.shape[0], generator=generator, device=cells.device)[:count]
    chosen = torch.zeros_like(observed).reshape(-1)
    chosen[cells[order]] = True
    return chosen.reshape(observed.shape)
