"""Block Toeplitz matrices with Toeplitz blocks: stationary kernels on regular grids."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.fft_products import fast_length
from gpx.linalg.preconditioners import CirculantPreconditioner, circulant_preconditioner
from gpx.linalg.prepared import Prepared
from gpx.operators.convolution import Convolution


class BlockToeplitz(Convolution):
    """K on a regular grid with K_pq = lags[p - q], axis by axis (BTTB for two axes).

    No factorising kernel is needed, unlike for a Kronecker product of Toeplitz matrices.

    Args:
        lags: the value at every lag. Of shape (..., n_1, ..., n_D): lags 0 .. n_d - 1 of every
            axis, for kernels even in every coordinate; the matrix is symmetric. Of shape
            (..., 2 n_1 - 1, ..., 2 n_D - 1): all lags in the order 0 .. n_d - 1, -(n_d - 1) .. -1
            (position lag mod 2 n_d - 1), for kernels that are only jointly even, or neither.
        grid: (n_1, ..., n_D), the points of each axis; row-major.

    Cost: product O(a log a) time, 2 a numbers of memory per column, a about 2^D n_1 ... n_D: padded
    axis by axis, which saves a quarter (D = 2) to 5/12 (D = 3) of the transforms. Solve and
    logdet as ``Structured``; at any size, for even lags, with an error bar by
    ``gpx.linalg.logdet_quadrature(a.matmul, probes, preconditioner=a.preconditioner())``.

    Source: Hultin thesis, section 3.4.1.
    """

    def __init__(self, lags: Tensor, *, grid: Sequence[int], plan: Prepared | None = None) -> None:
        grid = tuple(int(n) for n in grid)
        super().__init__(lags, grid=grid, plan=plan)
        self.lags, self.grid, self.levels = lags, grid, len(grid)
        found = tuple(lags.shape[-len(grid) :]) if grid else ()
        every = tuple(2 * n - 1 for n in grid)
        if not grid or min(grid) < 1 or found not in (grid, every):
            raise ShapeError(
                f"a grid {grid} needs lags of shape (..., {', '.join(map(str, grid))}) or "
                f"(..., {', '.join(map(str, every))}), got {tuple(lags.shape)}"
            )
        self.even = found == grid

    @property
    def grids(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """(grid, grid, circular lengths)."""
        lengths = (1 if n == 1 else fast_length(2 * n - 1) for n in self.grid)
        return self.grid, self.grid, tuple(lengths)

    def _generator(self) -> Tensor:
        out = self.lags
        for axis, (n, length) in enumerate(zip(self.grid, self.grids[2], strict=True)):
            dim = axis - self.levels
            ahead = out.narrow(dim, 0, n)
            behind = (ahead.flip(dim) if self.even else out).narrow(
                dim, 0 if self.even else n, n - 1
            )
            shape = list(out.shape)
            shape[dim] = length - 2 * n + 1
            out = torch.cat([ahead, out.new_zeros(shape), behind], dim)
        return out

    def _fold(self, gradient: Tensor) -> tuple[Tensor, ...]:
        for axis, (n, length) in enumerate(zip(self.grid, self.grids[2], strict=True)):
            dim = axis - self.levels
            ahead = gradient.narrow(dim, 0, n)
            behind = gradient.narrow(dim, length - n + 1, n - 1)
            if self.even:
                gradient = ahead.clone()
                gradient.narrow(dim, 1, n - 1).add_(behind.flip(dim))
            else:
                gradient = torch.cat([ahead, behind], dim)
        return (gradient,)

    _preconditioner_hint = ", preconditioner=operator.preconditioner()"

    def preconditioner(self) -> CirculantPreconditioner:
        """T. Chan's circulant with circulant blocks, for ``gpx.linalg``; lags even, no batch.

        For users of the package. Positive definite wherever this matrix is. Cost: O(n log n) to
        build and per product.

        Raises:
            ShapeError: lags that are not even, or a batch of matrices.
        """
        if not self.even or len(self.batch_shape):
            raise ShapeError(
                f"the circulant preconditioner is for one matrix with even lags; this is "
                f"{self._name()} with lags {tuple(self.lags.shape)}"
            )
        return circulant_preconditioner(self.lags, levels=self.levels)

    def _transpose_nonbatch(self) -> BlockToeplitz:
        if self.even:
            return self
        dims = tuple(range(-self.levels, 0))
        reversed_lags = self.lags.flip(dims).roll((1,) * self.levels, dims)
        return BlockToeplitz(reversed_lags, grid=self.grid)


def grid_lags(spacing: Tensor, grid: Sequence[int], *, even: bool = False) -> Tensor:
    """Lag vectors (m_1, ..., m_D, D) in the order ``BlockToeplitz`` takes them.

    m_d = n_d when ``even``, else 2 n_d - 1; spacing (D,) gives units, dtype and device. Lags are
    multiples of the spacing, never differences of rounded coordinates.
    """
    if spacing.shape != (len(grid),):
        raise ShapeError(f"one spacing per axis of the grid {tuple(grid)}, got {spacing.tolist()}")
    axes = []
    for h, n in zip(spacing, grid, strict=True):
        steps = torch.arange(n, dtype=spacing.dtype, device=spacing.device)
        if not even:
            steps = torch.cat([steps, -steps[1:].flip(0)])
        axes.append(h * steps)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
