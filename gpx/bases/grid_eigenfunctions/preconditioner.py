"""Eigenfunctions of a grid as preconditioner of an exact kernel matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.grid_eigenfunctions.grid import GridOptions
from gpx.kernels.base import Kernel
from gpx.linalg import LowRankPlusNoise


@torch.no_grad()
def eigenfunction_preconditioner(
    kernel: Kernel,
    x: Tensor,
    noise: Tensor | float,
    rank: int,
    *,
    grid: GridOptions | None = None,
    factor_jitter: float = 1e-12,
) -> LowRankPlusNoise:
    """Q = Phi Phi^T + D near k(x, x) + D, with Phi the ``rank`` leading eigenfunctions of a grid.

    A Nystrom preconditioner whose inducing points are all points of a grid, of which there are far
    more than data, cut to its best ``rank`` directions. Below the kernel (up to rounding): Q <= K.

    Args:
        kernel: one that factors over the columns.
        x (n, d): inputs.
        noise: sigma^2, or the diagonal (n,) of D.
        rank: p; fewer where the grid has fewer points.
        grid: 10 nodes along every column by default.
        factor_jitter: on every one-dimensional covariance.

    Raises:
        ConfigError: the kernel does not factor.

    Cost: O(n (p + d m c)) for the features, n p^2 + p^3 for the Gram matrix and its factor, 2 n p
    per application; memory n p.
    Source: Evans thesis, section 4.3.3.
    """
    basis = GridEigenfunctions(kernel, x.shape[1], rank, grid, factor_jitter)
    basis.nodes = basis.nodes.to(x.device)
    basis.sizes, basis.index = basis.sizes.to(x.device), basis.index.to(x.device)
    basis.place(x)
    return LowRankPlusNoise(basis(x).mT.contiguous(), noise, below_kernel=True)
