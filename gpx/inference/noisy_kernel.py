"""K = k(x, x) + noise I through its products, alone and with a Nystrom preconditioner Q <= K."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from gpx.backends import BackendName, Chunked, Dense, Sharded
from gpx.bases.grid_eigenfunctions.data_pass import EigenfunctionPass
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.grid_eigenfunctions.grid import GridOptions
from gpx.constraints import cached_parameters
from gpx.inference.exact_solver import IterativeOptions
from gpx.inference.kernel_gradient import has_slope_products, stationary_gradient
from gpx.kernels.base import Kernel
from gpx.linalg import (
    LowRankPlusNoise,
    PivotedCholesky,
    pivoted_cholesky,
    randomly_pivoted_cholesky,
)
from gpx.linalg.matmul import rounded_products
from gpx.linalg.thin_products import thin_product
from gpx.operators import KernelMatrix

NEGLIGIBLE_TRACE = 1e-2
"""Trace error, in noise variances, below which further greedy points hardly change Q."""


MAX_GRID_NODES = 20
"""Largest number of grid nodes per input for the eigenfunctions of the "grief" preconditioner; the
cost of such small eigenproblems is negligible."""


class NoisyKernel:
    """K = k(x, x) + noise I: products in two precisions, and the derivative of a bilinear form.

    An n x n matrix is stored only if it fits the budget.

    Args:
        kernel, x (n, d), noise (): covariance function, inputs, noise variance.
        reduced: lower dtype in which products are available too; None: none.
        memory_budget: bytes that products may hold; a stored matrix may take half of it.
        backend: "dense", "chunked", "keops" or "triton"; None chooses.

    Attributes:
        kernel, x, noise: as given, the noise without its gradient.
        product_dtype: the lowest dtype of products: ``reduced``, or that of x.
        memory_budget: as given.

    Cost: a product n^2 (d + 1) multiply-adds and n^2 / 2 kernel evaluations; where the matrix is
    stored n^2 multiply-adds per column.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        noise: Tensor,
        *,
        reduced: torch.dtype | None = None,
        memory_budget: int = 2**30,
        backend: BackendName | None = None,
    ) -> None:
        self.kernel, self.x, self.noise = kernel, x, noise.detach()
        self._noises: dict[torch.dtype, Tensor] = {}  # by the dtype of the vectors
        self.memory_budget = memory_budget
        self._full: KernelMatrix = kernel(x, memory_budget=memory_budget, backend=backend)
        self._reduced: KernelMatrix | None = None
        self.product_dtype = x.dtype
        if reduced is not None and reduced != x.dtype:
            narrow = self._full.to(reduced)
            assert isinstance(narrow, KernelMatrix)
            self._reduced, self.product_dtype = narrow, reduced

    @property
    def backend(self) -> str:
        """Backend and dtype of the products in the lowest precision."""
        matrix = self._matrix(self.product_dtype)
        return f"{matrix.backend} {str(self.product_dtype).removeprefix('torch.')}"

    def __call__(self, vectors: Tensor) -> Tensor:
        """Same as ``matmul``: solvers take a callable."""
        return self.matmul(vectors)

    @torch.no_grad()
    def matmul(self, vectors: Tensor) -> Tensor:
        """K times vectors (n,) or (n, c), in their own dtype."""
        matrix = self._matrix(vectors.dtype)
        block = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
        product = matrix.with_engine(lambda engine: self._multiply_entries(engine, matrix, block))
        if vectors.dtype not in self._noises:
            self._noises[vectors.dtype] = self.noise.to(vectors.dtype)
        product = product.addcmul_(block, self._noises[vectors.dtype])
        return product.squeeze(1) if vectors.ndim == 1 else product

    def _multiply_entries(self, engine: Any, matrix: KernelMatrix, block: Tensor) -> Tensor:
        """k(x, x) times block (n, c); reduced products may use TF32, see ``rounded_products``."""
        if matrix is self._reduced and isinstance(engine, Dense):
            values = engine.stored(matrix.entries)  # computed without TF32
            with rounded_products():
                return thin_product(values, block, symmetric=True)
        return engine.product(matrix.entries, block, transposed=False)

    def derivative(
        self, left: Tensor, right: Tensor, product: Tensor | None = None
    ) -> dict[Tensor, Tensor]:
        """Gradient of sum_c left_c^T k(x, x) right_c for the kernel's parameters and x.

        Args:
            left, right: (n,) or (n, c).
            product: k(x, x) right, if known.

        Always in the data's dtype: with v near K^{-1} y the terms of the sum nearly cancel, and
        float32 would leave no correct digit. Cost: about four products, fewer for stationary
        kernels with ``product`` known (``stationary_gradient``); memory of tiles.
        """
        entries = self._full.entries
        # Triton has its own gradient in one pass; slope products are not shared among processes
        whole = self._full.backend != "triton" and not isinstance(self._full.engine, Sharded)
        if product is not None and whole and has_slope_products(entries.kernel, entries):
            engine = Chunked(self.memory_budget)
            grads = stationary_gradient(engine, entries, left, right, product)
            return dict(zip((p for p in entries.parameters if p.requires_grad), grads, strict=True))
        sides = [v.unsqueeze(1) if v.ndim == 1 else v for v in (left, right)]
        found = self._full.with_engine(lambda engine: engine.derivative(entries, *sides))
        sums: dict[Tensor, Tensor] = {}
        for tensor, gradient in zip(entries.tensors, found, strict=True):
            if gradient is not None:  # x occurs twice, for rows and for columns
                sums[tensor] = sums[tensor] + gradient if tensor in sums else gradient
        return sums

    def _matrix(self, dtype: torch.dtype) -> KernelMatrix:
        reduced = self._reduced is not None and dtype == self.product_dtype
        found = self._reduced if reduced else self._full
        assert found is not None
        return found


class PreconditionedKernel(NoisyKernel):
    """K with a preconditioner Q, for iterative solvers; no gradients.

    Recurrences are in float64. Q = C^T C + noise I, with C the incomplete pivoted Cholesky factor
    of k(x, x), is the Nystrom approximation at the pivots. Then sigma^2 I <= Q <= K, so that
    r^T Q^{-1} r certifies errors and 1 is a lower bound of the spectrum of Q^{-1/2} K Q^{-1/2}.
    With ``preconditioner="grief"`` the rows of C are the leading eigenfunctions of a grid, for
    which Q <= K holds too.

    Args:
        kernel: covariance function; a float64 copy is used.
        x (n, d): training inputs.
        noise (): noise variance.
        options: see ``IterativeOptions``.
        exact_products: float64 products whatever the options (for certified brackets).

    Attributes:
        x (n, d), noise (): in float64.
        preconditioner: Q.
        factor (m, n), pivots (m,): C and the greedy points, C[:, pivots] upper triangular; no
            pivots where C holds eigenfunctions.
        eigenfunctions: of the "grief" preconditioner, else None.
        product_dtype: of the products in a solve's steps.

    Cost: n m^2 once; a product n^2 kernel entries, or n^2 multiply-adds per column where the matrix
    is stored.
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
        wanted = options.product_dtype or str(x.dtype).removeprefix("torch.")
        reduced = wanted == "float32" and not exact_products
        super().__init__(
            copy.deepcopy(kernel).double().requires_grad_(False),
            x.detach().double(),
            noise.double(),
            reduced=torch.float32 if reduced else None,
            memory_budget=options.budget,
        )
        with torch.no_grad():
            diagonal = self.kernel.diagonal(self.x)
            self.prior_variance = diagonal.max()
            # one transfer to the host
            numbers = torch.stack([self.noise, self.prior_variance])
            self._noise, self._largest = (float(number) for number in numbers.tolist())
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
                found = self._pivoted(diagonal, rank, greedy=exact_products)
                self.factor, self.pivots = found.factor, found.pivots
                self.trace_error = found.residual.sum()
            self.preconditioner = LowRankPlusNoise(self.factor, self.noise, below_kernel=True)

    def _pivoted(self, diagonal: Tensor, rank: int, *, greedy: bool) -> PivotedCholesky:
        """C of the Nystrom approximation, from the prior variances (n,) of the data.

        Greedy pivots on a CPU, and for certified brackets, since their factor has the smallest
        rounding error. On a GPU random pivots with a fixed seed: greedy ones synchronise with the
        device at every pivot, random ones a few times per block of up to 64.
        """

        def rows(chosen: Tensor) -> Tensor:
            return self.kernel.evaluate(self.x[chosen], self.x)

        negligible = NEGLIGIBLE_TRACE * self._noise
        if self.x.is_cpu or greedy:
            return pivoted_cholesky(rows, diagonal, rank, tolerance=negligible)
        draws = torch.Generator(self.x.device).manual_seed(0)
        with cached_parameters(self.x.device):  # the same kernel in every block
            return randomly_pivoted_cholesky(
                rows, diagonal, rank, tolerance=negligible, generator=draws
            )

    @property
    def node(self) -> float:
        """A lower bound of the spectrum of ``whitened`` as computed: 1 minus rounding."""
        return 1.0 - min(0.5, 64.0 * self.rounding)

    @property
    def rounding(self) -> float:
        """Order of the rounding error of ``whitened``: eps ||K|| / noise."""
        condition = 1.0 + self.x.shape[0] * self._largest / self._noise
        return torch.finfo(torch.float64).eps * condition

    def whitened(self, vectors: Tensor) -> Tensor:
        """Q^{-1/2} K Q^{-1/2} times vectors (n, c); Q^{-1/2} is the symmetric root."""
        q = self.preconditioner
        return q.inverse_root_matmul(self.matmul(q.inverse_root_matmul(vectors)))


def _eigenfunctions(kernel: Kernel, x: Tensor, rank: int) -> GridEigenfunctions:
    """The ``rank`` leading eigenfunctions at the kernel's parameters, on a grid over x (n, d)."""
    options = GridOptions(points_per_dim=MAX_GRID_NODES, margin=0.0)
    basis = GridEigenfunctions(kernel, x.shape[1], rank, options).to(x.device)
    basis.place(x)
    basis.select()
    return basis
