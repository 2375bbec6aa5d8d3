"""K = k(x, x) + noise I known by its products, with the Nystrom matrix Q below it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.data_pass import EigenfunctionPass
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.grid_eigenfunctions.grid import GridOptions
from gpx.inference.exact_solver import IterativeOptions
from gpx.kernels.base import Kernel
from gpx.linalg import LowRankPlusNoise, pivoted_cholesky

NEGLIGIBLE_TRACE = 1e-2
"""Trace error, in noise variances, at which more greedy points no longer change Q noticeably."""


NODES = 20
"""Most nodes along an input for the eigenfunctions of a grid: their one-dimensional problems are
nothing beside the kernel's products."""


class NoisyKernel:
    """The system every iterative path solves, at given hyperparameters; nothing is differentiated.

    Recurrences are in float64. Q = C^T C + noise I, with C the incomplete pivoted Cholesky factor
    of k(x, x), is the Nystrom approximation at the greedily chosen training points: sigma^2 I <= Q
    <= K, so that r^T Q^{-1} r certifies errors and 1 bounds the spectrum of Q^{-1/2} K Q^{-1/2}.
    With ``preconditioner="grief"`` the rows of C are the leading eigenfunctions of a grid, which
    keep to the same order.

    Args:
        kernel: covariance function; a float64 copy is used.
        x (n, d): training inputs.
        noise (): noise variance.
        options: see ``IterativeOptions``.
        exact_products: float64 products whatever the options say (for certified brackets).

    Attributes:
        x (n, d), noise (): in float64.
        preconditioner: Q.
        factor (m, n), pivots (m,): C and the greedy points, C[:, pivots] upper triangular; none
            where C holds eigenfunctions.
        eigenfunctions: those, or None.
        product_dtype: in which products of a solve's steps are computed.

    Cost: n m^2 once; a product n^2 kernel entries, or n^2 multiply-adds per column where the budget
    keeps the matrix.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        noise: Tensor,
        options: IterativeOptions,
        *,
        exact_products: bool = False,
    ) -> None:
        with torch.no_grad():
            self.kernel = copy.deepcopy(kernel).double().requires_grad_(False)
            self.x = x.detach().double()
            self.noise = noise.detach().double()
            wanted = options.product_dtype or str(x.dtype).removeprefix("torch.")
            reduced = wanted == "float32" and not exact_products
            self.product_dtype = torch.float32 if reduced else torch.float64
            budget = options.budget
            self._matrix = self.kernel(self.x, memory_budget=budget)
            self._reduced = (
                copy.deepcopy(self.kernel).float()(self.x.float(), memory_budget=budget)
                if reduced
                else None
            )
            diagonal = self.kernel.diagonal(self.x)
            self.prior_variance = diagonal.max()
            rank = options.points(self.x.shape[0])
            self.eigenfunctions: GridEigenfunctions | None = None
            self.pivots = torch.empty(0, dtype=torch.int64, device=self.x.device)
            if options.preconditioner == "grief":
                self.eigenfunctions = basis = _eigenfunctions(self.kernel, self.x, rank)
                functions = EigenfunctionPass(basis, basis.modes(), self.x)
                self.factor = self.x.new_empty(basis.num_basis, len(self.x))
                for rows in functions.blocks():
                    self.factor[:, rows] = functions(rows)
                self.factor *= basis.factors.outputscale.sqrt()
                missed = diagonal - self.factor.square().sum(0)
                self.trace_error = missed.clamp_(min=0.0).sum()
            else:
                found = pivoted_cholesky(
                    lambda rows: self.kernel.evaluate(self.x[rows], self.x),
                    diagonal,
                    rank,
                    tolerance=NEGLIGIBLE_TRACE * float(self.noise),
                )
                self.factor, self.pivots = found.factor, found.pivots
                self.trace_error = found.residual.sum()
            self.preconditioner = LowRankPlusNoise(self.factor, self.noise, below_kernel=True)

    @property
    def backend(self) -> str:
        """How products are computed, and in which dtype."""
        matrix = self._matrix if self._reduced is None else self._reduced
        return f"{matrix.backend} {str(self.product_dtype).removeprefix('torch.')}"

    @property
    def node(self) -> float:
        """A lower bound of the spectrum of ``whitened`` as computed: 1, less rounding."""
        return 1.0 - min(0.5, 64.0 * self.rounding)

    @property
    def rounding(self) -> float:
        """Order of the rounding of ``whitened``: eps ||K|| of a product, divided by the noise."""
        condition = 1.0 + self.x.shape[0] * float(self.prior_variance / self.noise)
        return torch.finfo(torch.float64).eps * condition

    def matmul(self, vectors: Tensor) -> Tensor:
        """K times vectors (n,) or (n, c), in their own dtype."""
        reduced = vectors.dtype == torch.float32 and self._reduced is not None
        matrix = self._reduced if reduced else self._matrix
        assert matrix is not None
        block = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
        product = matrix.engine.product(matrix.entries, block, transposed=False)
        product = product.add_(block * self.noise.to(block.dtype))
        return product.squeeze(1) if vectors.ndim == 1 else product

    def whitened(self, vectors: Tensor) -> Tensor:
        """Q^{-1/2} K Q^{-1/2} times vectors (n, c); Q^{-1/2} is the symmetric root."""
        q = self.preconditioner
        return q.inverse_root_matmul(self.matmul(q.inverse_root_matmul(vectors)))


def _eigenfunctions(kernel: Kernel, x: Tensor, rank: int) -> GridEigenfunctions:
    """The ``rank`` leading ones at the kernel's parameters, on a grid over x (n, d)."""
    options = GridOptions(points_per_dim=NODES, margin=0.0)
    basis = GridEigenfunctions(kernel, x.shape[1], rank, options).to(x.device)
    basis.place(x)
    basis.select()
    return basis
