"""Data rows gathered on one axis: as few rows as there are grid points.

On one axis W^T W is a band of the stencil's width, and so is its Cholesky factor U, W^T W = U^T U:
its rows, with as many weights as the data's own, stand for all of them.
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
"""By how much the diagonal of W^T W is enlarged, so that directions that no row has keep a pivot:
as much as sums of a few thousand terms are off in any case."""


class BandRows(NamedTuple):
    """m' <= m rows that stand for n data rows under Gaussian noise, of points that data touch.

    Attributes:
        weights (m', m): W' with W'^T W' = W^T W.
        total (q, q): sum of w w^T over all rows, by place in the stencil.
        num_data: n.
        factor (q, m): U by its diagonals, the main one last.
        indices (k, q): grid points of the cells that sums are given for.
        touched (m): grid points that data touch.
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
        """Of sums by cell, on the CPU; None where ``CellSums.rows`` has to do.

        That is with several axes, on another device, with fewer rows by cell than grid points, and
        where W^T W is not positive semi-definite to rounding.
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
        """As ``CellRows.residuals``: r' (m',) with W'^T r' = W^T r, and what is left of r^T r."""
        on_grid = projected.new_zeros(len(self.touched))
        on_grid = on_grid.index_add(0, self.indices.flatten(), projected.flatten())
        solved = _BandSolve.apply(on_grid, self.factor)
        assert isinstance(solved, Tensor)
        found = solved[self.touched]
        return found, (squared - found.square().sum()).clamp_min(0.0)


class _BandSolve(torch.autograd.Function):
    """U^{-T} b for b (m,) and a band U (q, m); differentiable in b."""

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
