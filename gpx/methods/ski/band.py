"""Replaces the data rows on one axis by at most as many rows as there are grid points.

On one axis W^T W is a band matrix of the stencil's width, and so is its Cholesky factor U with
W^T W = U^T U, whose rows replace those of W.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from scipy.linalg.lapack import dpbtrf, dtbtrs
from torch import Tensor

from gpx.linalg.known_gradient import first_derivative_only
from gpx.methods.ski.cells import CellSums
from gpx.operators import Interpolation

ROUNDING = 64.0 * torch.finfo(torch.float64).eps
"""Relative increase of the diagonal of W^T W, so that empty directions keep a positive pivot; as
large as the rounding of sums over a few thousand rows."""


class BandRows(NamedTuple):
    """m' <= m rows that replace n data rows under Gaussian noise, one per grid point with data.

    Attributes:
        weights (m', m): W' with W'^T W' = W^T W.
        total (q, q): sum of w w^T over all rows, by place in the stencil.
        num_data: n.
        factor (q, m): diagonals of U, the main one last.
        indices (k, q): grid points of the cells of the sums.
        touched (m): whether data have weight on a grid point.
    """

    weights: Interpolation
    total: Tensor
    num_data: int
    factor: Tensor
    indices: Tensor
    touched: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, sums: CellSums) -> BandRows | None:
        """Rows from sums by cell, on the CPU; None if ``CellSums.rows`` has to be used.

        That is with several axes, on another device, if ``CellSums.rows`` gives fewer rows than
        grid points, or if W^T W is not positive definite to rounding.
        """
        (k, q), m, device = sums.indices.shape, sums.num_columns, sums.indices.device
        steps = torch.arange(q, device=device)
        if device.type != "cpu" or k * q < m or m < q:
            return None
        if not torch.equal(sums.indices, sums.indices[:, :1] + steps):
            return None
        band = sums.gram.new_zeros(q, m)
        for shift in range(q):
            pairs = sums.gram.diagonal(shift, 1, 2)  # (k, q - shift): of points i and i + shift
            band[q - 1 - shift].index_add_(0, sums.indices[:, shift:].flatten(), pairs.flatten())
        touched = band[-1] > 0.0
        band[-1] = torch.where(touched, band[-1] * (1.0 + ROUNDING), 1.0)
        found, failed = dpbtrf(band.numpy(), lower=0)
        if failed:
            return None
        factor = torch.from_numpy(found)
        # row i has U[i, i + s] = factor[q - 1 - s, i + s]; the last rows end at the last point
        first = torch.arange(m).clamp_max(m - q)
        indices = first.unsqueeze(1) + steps
        apart = indices - torch.arange(m).unsqueeze(1)
        weights = torch.where(apart >= 0, factor[q - 1 - apart.clamp_min(0), indices], 0.0)
        rows = Interpolation(weights[touched], indices[touched], num_columns=m)
        return cls(rows, sums.gram.sum(0), sums.num_data, factor, sums.indices, touched)

    def residuals(self, projected: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
        """As ``CellRows.residuals``: r' (m',) with W'^T r' = W^T r, and r^T r - r'^T r'."""
        on_grid = projected.new_zeros(len(self.touched))
        on_grid = on_grid.index_add(0, self.indices.flatten(), projected.flatten())
        solved = _BandSolve.apply(on_grid, self.factor)
        assert isinstance(solved, Tensor)
        found = solved[self.touched]
        return found, (squared - found.square().sum()).clamp_min(0.0)


class _BandSolve(torch.autograd.Function):
    """U^{-T} b for b (m,) and a band matrix U (q, m); differentiable in b."""

    @staticmethod
    def forward(ctx: Any, right: Tensor, factor: Tensor) -> Tensor:
        ctx.factor = factor
        return _solve(factor, right, "T")

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _solve(ctx.factor, grad, "N"), None


def _solve(factor: Tensor, right: Tensor, transposed: str) -> Tensor:
    found, _ = dtbtrs(factor.numpy(), right.detach().numpy().reshape(-1, 1), trans=transposed)
    return torch.from_numpy(found).reshape(-1)
