"""Circulant matrices, of one level and of several (blocks of circulants)."""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from linear_operator.operators import RootLinearOperator
from torch import Tensor

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.fft_products import convolve
from gpx.linalg.prepared import Prepared
from gpx.operators.convolution import Convolution


class BlockCirculant(Convolution):
    """Multilevel circulant: entry (i, j) is generator[(i - j) mod n], axis by axis.

    Two levels make the BCCB matrix (block circulant with circulant blocks) that approximates a
    stationary kernel on a periodic grid. The generator need not be symmetric; ``sqrt`` does ask.

    Args:
        generator (..., n_1, ..., n_levels): the first column, on the grid.
        levels: number of grid axes.

    Cost: everything by FFT, O(n log n) time and O(n) memory for n = n_1 ... n_levels: products,
    exact ``solve`` (symmetric or not), ``logdet`` (log |det C|), ``eigenvalues``, square root.

    Raises:
        ShapeError: the generator has fewer axes than ``levels``, or an empty one.
        NotPositiveDefinite: a solve or logdet, when an eigenvalue is zero to rounding (one host
            synchronisation per matrix); ``sqrt``, when one is negative; a root or samples of a
            matrix that is not symmetric.

    Source: Hultin thesis, sections 3.1.2 and 3.4.1.
    """

    def __init__(self, generator: Tensor, *, levels: int, plan: Prepared | None = None) -> None:
        super().__init__(generator, levels=levels, plan=plan)
        self.generator, self.levels = generator, levels
        if levels < 1 or generator.ndim < levels or 0 in generator.shape[-levels:]:
            raise ShapeError(
                f"a generator with {levels} grid axes (at least one, none empty) was expected, "
                f"got {tuple(generator.shape)}"
            )

    @property
    def grids(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The same grid three times: rows, columns, circular lengths."""
        grid = tuple(self.generator.shape[-self.levels :])
        return grid, grid, grid

    def _generator(self) -> Tensor:
        return self.generator

    def _fold(self, gradient: Tensor) -> tuple[Tensor, ...]:
        return (gradient,)

    def _transpose_nonbatch(self) -> BlockCirculant:
        dims = tuple(range(-self.levels, 0))
        reversed_lags = self.generator.flip(dims).roll((1,) * self.levels, dims)
        return self._rebuilt(reversed_lags)

    def eigenvalues(self) -> Tensor:
        """All eigenvalues (..., n), complex, in the order of the n-dimensional FFT."""
        dims = tuple(range(-self.levels, 0))
        return torch.fft.fftn(self.generator, dim=dims).flatten(-self.levels)

    def _by_function(self, values: Tensor, right: Tensor) -> Tensor:
        """The circulant with the half spectrum ``values`` times right (..., n, c)."""
        grid = self.grids[0]
        return convolve(values, right, grid, grid, grid)

    def _solution(self, right: Tensor) -> Tensor:
        """C^-1 right for any non-singular circulant, differentiable, symmetric or not."""
        self._check_regular()
        return self._by_function(self._spectrum().reciprocal(), right)

    def _inverse_product(self, right: Tensor) -> Tensor:
        return self._solution(right)

    def _logdet(self) -> Tensor:
        """Sum of log |eigenvalue|: the logarithm of the absolute determinant."""
        self._check_regular()
        return self.eigenvalues().abs().log().sum(-1)

    def inverse(self) -> BlockCirculant:
        """C^-1, again circulant."""
        self._check_regular()
        return self._rebuilt(self._from_spectrum(self._spectrum().reciprocal()))

    def sqrt(self) -> BlockCirculant:
        """The symmetric root R with R R = (C + C^T) / 2, again circulant.

        Raises:
            NotPositiveDefinite: an eigenvalue of the symmetric part is negative beyond rounding.
        """
        values = self._spectrum().real
        each = values.detach().flatten(-self.levels)
        smallest, largest = each.amin(-1), each.amax(-1)  # every matrix of a batch has its scale
        rounding = 100 * torch.finfo(values.dtype).eps
        if not bool((smallest >= -rounding * largest).all()):  # also when it is NaN
            raise NotPositiveDefinite(
                f"a circulant of size {self.shape[-1]} has an eigenvalue "
                f"{float(smallest.min()):.2e} (largest {float(largest.max()):.2e}), so it has no "
                f"real square root; add at least {-float(smallest.min()):.1e} to its diagonal"
            )
        return self._rebuilt(self._from_spectrum(values.clamp(min=0).sqrt()))

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """R R^T = C with the circulant root; C symmetric positive semi-definite."""
        if method:
            return super().root_decomposition(method)
        self._check_symmetric("root")
        return RootLinearOperator(self.sqrt())

    def root_inv_decomposition(
        self,
        initial_vectors: Tensor | None = None,
        test_vectors: Tensor | None = None,
        method: str | None = None,
    ) -> LinearOperator:
        """C^{-1/2}, again circulant, for a symmetric positive definite C of any size."""
        if method:
            return super().root_inv_decomposition(initial_vectors, test_vectors, method)
        self._check_symmetric("root")
        return RootLinearOperator(self.inverse().sqrt())

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        """Draws (num_samples, ..., n) of N(0, C), C symmetric positive semi-definite."""
        self._check_symmetric("samples")
        noise = torch.randn(*self.shape[:-1], num_samples, dtype=self.dtype, device=self.device)
        drawn: Tensor = self.sqrt().matmul(noise)
        return drawn.movedim(-1, 0)

    def _from_spectrum(self, values: Tensor) -> Tensor:
        grid = self.grids[0]
        dims = tuple(range(-self.levels, 0))
        return torch.fft.irfftn(values + 0j, s=grid, dim=dims)

    def _check_symmetric(self, what: str) -> None:
        values = self._spectrum().detach()
        rounding = 1e3 * torch.finfo(values.dtype).eps
        if bool((values.imag.abs() > rounding * values.abs().max()).any()):
            raise NotPositiveDefinite(
                f"{what} of a circulant of size {self.shape[-1]} that is not symmetric: its "
                "eigenvalues are complex; expected generator[j] = generator[n - j]"
            )

    def _check_regular(self) -> None:
        smallest = self.plan.get("smallest", self._args, self._smallest)
        if not smallest > 0.0:  # also when it is NaN
            raise NotPositiveDefinite(
                f"the circulant of size {self.shape[-1]} is singular to rounding: its smallest "
                "eigenvalue is below 1e-15 (float32: 1e-7) of the largest; add to its diagonal"
            )

    def _smallest(self) -> float:
        size = self._spectrum().detach().abs().flatten(-self.levels)
        smallest, largest = size.amin(-1), size.amax(-1)
        return float((smallest - torch.finfo(size.dtype).eps * largest).min())


class Circulant(BlockCirculant):
    """C with C_ij = column[(i - j) mod n]; the one-level case of ``BlockCirculant``.

    Args:
        column (..., n): first column; symmetric matrices have column[j] = column[n - j].

    Cost: as ``BlockCirculant``.
    """

    def __init__(self, column: Tensor, *, plan: Prepared | None = None, levels: int = 1) -> None:
        super().__init__(column, levels=levels, plan=plan)
        self.column = column
