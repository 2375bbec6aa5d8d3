"""Preconditioners of gappy grids from extreme eigenpairs of the full grid's Kronecker product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, ShapeError
from gpx.linalg.khatri_rao import khatri_rao_columns
from gpx.linalg.kronecker import flatten_index, split_index
from gpx.linalg.kronecker_extremes import KroneckerExtremes, kronecker_extremes
from gpx.linalg.preconditioners.grid_low_rank import GridLowRankPlusNoise
from gpx.linalg.preconditioners.low_rank import LowRankPlusNoise, Woodbury
from gpx.tensor_checks import check_one_of

EIGENVALUE_FLOOR = 1e-12
"""Relative floor of each factor's eigenvalues: those of smooth kernels are rounded below zero."""

Form = Literal["dense", "kronecker"]


def observed_grid_preconditioner(
    eigenvectors: Sequence[Tensor],
    eigenvalues: Sequence[Tensor],
    observed: Tensor,
    rank: int,
    noise: Tensor | float,
    *,
    form: Form = "dense",
) -> Woodbury:
    """Top eigenpairs of the full grid, restricted to the observed points ("ignore the gaps").

    B = W Q S_p^T T_p^{1/2}, Q_pre = B B^T + sigma^2 I for K_XX + sigma^2 I = W (K + sigma^2 I) W^T:
    a Nystrom preconditioner whose inducing set contains the data. Below the kernel. Exact at full
    rank. A good rank is the number of eigenvalues above the noise variance. Its log-determinant is
    log|sigma^2 I_p + B^T B| + (n - p) log sigma^2.

    Args:
        eigenvectors: per factor (m_l, m_l), columns. For interpolated data (SKI) pass E_l Q_l
            (n, m_l) with ``observed`` = arange(n) in every column. That has the dense form only:
            interpolation weights couple the grid's points, so that B^T D^{-1} B is no contraction
            over the grid.
        eigenvalues: per factor (m_l,).
        observed (n, d): grid index of each observed point, one column per factor; or (n,), the
            flat index (row-major).
        rank: p.
        noise: sigma^2, or the diagonal (n,).
        form: "dense" keeps B (n, p): O(n p) per application. "kronecker" never forms it, see
            ``GridLowRankPlusNoise``: O(M sum_l c_l) per application and O(M + p^2) memory, for
            grids whose B does not fit.

    Raises:
        ShapeError: ``observed`` is neither (n, d) nor (n,).
        ConfigError: the kronecker form with eigenvectors that are not square (interpolated data).

    Cost: dense O(d n p + n p^2) time, O(n p) memory; kronecker as its class says.
    Source: Evans thesis, section 3.3.4.
    """
    cells = _cells(eigenvectors, observed, form)
    with torch.no_grad():
        extremes = kronecker_extremes(eigenvalues, rank, largest=True, floor=EIGENVALUE_FLOOR)
        weights = (0.5 * extremes.log_values).exp()
        return _build(eigenvectors, cells, extremes, weights, noise, form, below_kernel=True)


def missing_grid_preconditioner(
    eigenvectors: Sequence[Tensor],
    eigenvalues: Sequence[Tensor],
    missing: Tensor,
    rank: int,
    noise: Tensor | float,
    *,
    shift: float | None = None,
    form: Form = "dense",
) -> Woodbury:
    """Smallest eigenpairs with a spectral shift, for the matrix F of the "fill the gaps" system.

    F = V (K + sigma^2 I)^{-1} V^T at the missing points is near C C^T + zeta I with
    C = V Q S_p^T (1 / (lambda + sigma^2) - zeta)^{1/2} over the p smallest lambda. According to the
    source it seldom pays, since F's spectrum decays slowly.

    Args:
        eigenvectors, eigenvalues, form: as for ``observed_grid_preconditioner``.
        missing (L, d) or (L,): grid index of each gap.
        rank: p.
        noise: sigma^2, scalar.
        shift: zeta in (0, 1 / (largest kept lambda + sigma^2)); default half of the upper limit.

    Raises:
        ConfigError: ``shift`` outside its range.

    Source: Evans thesis, section 3.3.4.
    """
    cells = _cells(eigenvectors, missing, form)
    with torch.no_grad():
        extremes = kronecker_extremes(eigenvalues, rank, largest=False, floor=EIGENVALUE_FLOOR)
        inverse = 1.0 / (extremes.log_values.exp() + noise)
        end = float(inverse.min())
        zeta = 0.5 * end if shift is None else shift
        if not 0.0 < zeta < end:
            raise ConfigError(
                f"the spectral shift {zeta:.3g} must be above 0 and below {end:.3g}, the smallest "
                "inverse eigenvalue kept; leave it out for half of that"
            )
        weights = (inverse - zeta).sqrt()
        return _build(eigenvectors, cells, extremes, weights, zeta, form, below_kernel=False)


def _cells(eigenvectors: Sequence[Tensor], points: Tensor, form: Form) -> tuple[Tensor, ...]:
    """Index of each point along every axis."""
    check_one_of(get_args(Form), form=form)
    if form == "kronecker" and any(q.shape[0] != q.shape[1] for q in eigenvectors):
        raise ConfigError(
            "the kronecker form takes the square eigenvectors of the grid's factors, got "
            f"{[tuple(q.shape) for q in eigenvectors]}; for interpolated data use form='dense'"
        )
    sizes = [q.shape[0] for q in eigenvectors]
    if points.ndim == 1:
        return split_index(points, sizes)
    if points.ndim != 2 or points.shape[1] != len(eigenvectors):
        raise ShapeError(
            f"grid indices are {tuple(points.shape)}; expected (n, {len(eigenvectors)}) or (n,)"
        )
    return points.unbind(1)


def _build(
    eigenvectors: Sequence[Tensor],
    cells: tuple[Tensor, ...],
    extremes: KroneckerExtremes,
    weights: Tensor,
    noise: Tensor | float,
    form: Form,
    *,
    below_kernel: bool,
) -> Woodbury:
    if form == "dense":
        rows = [q[i] for q, i in zip(eigenvectors, cells, strict=True)]
        factor = khatri_rao_columns(rows, extremes.index) * weights
        return LowRankPlusNoise(factor.mT.contiguous(), noise, below_kernel=below_kernel)
    flat = flatten_index(cells, [q.shape[0] for q in eigenvectors])
    return GridLowRankPlusNoise(
        eigenvectors, flat, extremes.index, weights, noise, below_kernel=below_kernel
    )
