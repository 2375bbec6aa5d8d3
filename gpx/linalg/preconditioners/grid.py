"""Preconditioners of gappy grids from extreme eigenpairs of the full grid's Kronecker product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.errors import ConfigError, ShapeError
from gpx.linalg.khatri_rao import khatri_rao_columns
from gpx.linalg.kronecker_extremes import kronecker_extremes
from gpx.linalg.preconditioners.low_rank import LowRankPlusNoise

EIGENVALUE_FLOOR = 1e-12
"""Relative floor of each factor's eigenvalues: those of smooth kernels are rounded below zero."""


def observed_grid_preconditioner(
    eigenvectors: Sequence[Tensor],
    eigenvalues: Sequence[Tensor],
    observed: Tensor,
    rank: int,
    noise: Tensor | float,
) -> LowRankPlusNoise:
    """Top eigenpairs of the full grid, restricted to the observed points ("ignore the gaps").

    B = W Q S_p^T T_p^{1/2}, Q_pre = B B^T + sigma^2 I for K_XX + sigma^2 I = W (K + sigma^2 I) W^T:
    a Nystrom preconditioner whose inducing set contains the data. Below the kernel. Exact at full
    rank. A good rank is the number of eigenvalues above the noise variance.

    Args:
        eigenvectors: per factor (m_l, m_l), columns. For interpolated data (SKI) pass E_l Q_l
            (n, m_l) with ``observed`` = arange(n) in every column.
        eigenvalues: per factor (m_l,).
        observed (n, d): grid index of each observed point, one column per factor.
        rank: p.
        noise: sigma^2, or the diagonal (n,).

    Cost: O(d n p + n p^2) time, O(n p) memory.
    Source: grids_and_grief 2.8.1, 2.8.4.
    """
    factor, log_values = _restricted(eigenvectors, eigenvalues, observed, rank, largest=True)
    factor = factor * (0.5 * log_values).exp()
    return LowRankPlusNoise(factor.mT.contiguous(), noise, below_kernel=True)


def missing_grid_preconditioner(
    eigenvectors: Sequence[Tensor],
    eigenvalues: Sequence[Tensor],
    missing: Tensor,
    rank: int,
    noise: Tensor | float,
    *,
    shift: float | None = None,
) -> LowRankPlusNoise:
    """Smallest eigenpairs with a spectral shift, for the matrix F of the "fill the gaps" system.

    F = V (K + sigma^2 I)^{-1} V^T at the missing points is near C C^T + zeta I with
    C = V Q S_p^T (1 / (lambda + sigma^2) - zeta)^{1/2} over the p smallest lambda. The published
    experience is that it seldom pays: F's spectrum decays slowly.

    Args:
        eigenvectors, eigenvalues: per factor, as for ``observed_grid_preconditioner``.
        missing (L, d): grid index of each gap.
        rank: p.
        noise: sigma^2, scalar.
        shift: zeta in (0, 1 / (largest kept lambda + sigma^2)); default half of that end.

    Raises:
        ConfigError: ``shift`` outside its range.

    Source: grids_and_grief 2.8.2.
    """
    factor, log_values = _restricted(eigenvectors, eigenvalues, missing, rank, largest=False)
    inverse = 1.0 / (log_values.exp() + noise)
    end = float(inverse.min())
    zeta = 0.5 * end if shift is None else shift
    if not 0.0 < zeta < end:
        raise ConfigError(
            f"the spectral shift {zeta:.3g} must be above 0 and below {end:.3g}, the smallest "
            "inverse eigenvalue kept; leave it out for half of that"
        )
    return LowRankPlusNoise((factor * (inverse - zeta).sqrt()).mT.contiguous(), zeta)


def _restricted(
    eigenvectors: Sequence[Tensor],
    eigenvalues: Sequence[Tensor],
    points: Tensor,
    rank: int,
    *,
    largest: bool,
) -> tuple[Tensor, Tensor]:
    """Rows ``points`` of the extreme eigenvectors (n, p), and their log-eigenvalues (p,)."""
    if points.ndim != 2 or points.shape[1] != len(eigenvectors):
        raise ShapeError(
            f"grid indices are {tuple(points.shape)}; expected (n, {len(eigenvectors)})"
        )
    with torch.no_grad():
        extremes = kronecker_extremes(eigenvalues, rank, largest=largest, floor=EIGENVALUE_FLOOR)
        rows = [q[points[:, l]] for l, q in enumerate(eigenvectors)]
        return khatri_rao_columns(rows, extremes.index), extremes.log_values
