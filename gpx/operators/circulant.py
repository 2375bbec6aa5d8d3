"""Circulant matrices, of one level and of several, and their eigenvectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.fft_products import convolve
from gpx.linalg.prepared import Prepared
from gpx.operators.convolution import Convolution
from gpx.operators.structured import Structured

NEGATIVE_TOLERANCE = 1e-10
"""A negative eigenvalue of at most this size, relative to the diagonal entry, counts as zero."""

BLOCK_BYTES = 1 << 27
"""Largest number of bytes of one transform; further columns are transformed in blocks."""


class BlockCirculant(Convolution):
    """Multilevel circulant: entry (i, j) is generator[(i - j) mod n], axis by axis.

    Two levels make the BCCB matrix (block circulant with circulant blocks) that approximates a
    stationary kernel on a periodic grid. The generator need not be symmetric, except for roots and
    samples.

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
        smallest, largest = each.amin(-1), each.amax(-1)  # for each matrix of a batch
        rounding = 100 * torch.finfo(values.dtype).eps
        if not bool((smallest >= -rounding * largest).all()):  # also when it is NaN
            raise NotPositiveDefinite(
                f"a circulant of size {self.shape[-1]} has an eigenvalue "
                f"{float(smallest.min()):.2e} (largest {float(largest.max()):.2e}), so it has no "
                f"real square root; add at least {-float(smallest.min()):.1e} to its diagonal"
            )
        return self._rebuilt(self._from_spectrum(values.clamp(min=0).sqrt()))

    def _root(self) -> BlockCirculant:
        """The circulant root of a symmetric positive semi-definite C, at any size."""
        self._check_symmetric("a root")
        return self.sqrt()

    def _inverse_root(self) -> BlockCirculant:
        """C^{-1/2}, again circulant, for a symmetric positive definite C of any size."""
        self._check_symmetric("a root")
        return self.inverse().sqrt()

    def _from_spectrum(self, values: Tensor) -> Tensor:
        grid = self.grids[0]
        dims = tuple(range(-self.levels, 0))
        return torch.fft.irfftn(values + 0j, s=grid, dim=dims)

    def _check_symmetric(self, what: str) -> None:
        values = self._spectrum().detach().flatten(-self.levels)
        rounding = 1e3 * torch.finfo(values.dtype).eps
        # each matrix of a batch has its own scale
        if bool((values.imag.abs() > rounding * values.abs().amax(-1, keepdim=True)).any()):
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

    def half_eigenvalues(self) -> Tensor:
        """Eigenvalues of the symmetric part by frequency, (..., floor(n / 2) + 1), from float64."""
        return torch.fft.rfft(self.column.double()).real.to(self.dtype)

    @property
    def definite(self) -> bool:
        """Whether all eigenvalues are above minus rounding or ``NEGATIVE_TOLERANCE``. No batch."""
        rounding = 100.0 * torch.finfo(self.dtype).eps * float(self.column.double().abs().sum())
        allowed = max(rounding, NEGATIVE_TOLERANCE * float(self.column[0]))
        return float(self.half_eigenvalues().min()) >= -allowed

    def _symeig(
        self, eigenvectors: bool = False, return_evals_as_lazy: bool | None = False
    ) -> tuple[Tensor, Any]:
        """Eigenvalues (..., n) in the order of ``FourierVectors``, which are the eigenvectors."""
        self._check_symmetric("an eigendecomposition")
        vectors = FourierVectors(self.column)
        values = vectors.per_eigenvector(self.half_eigenvalues())
        return values, vectors if eigenvectors else None


class FourierVectors(Structured):
    """Q (n, n), orthonormal real eigenvectors of every symmetric circulant, or its transpose.

    Columns are cosines of frequency 0 ... floor(n / 2), then sines of 1 ... ceil(n / 2) - 1.

    Args:
        column (..., n): first column of a circulant; only its shape, dtype and device count.
        transposed: whether this is Q^T, which takes values on the circle to coefficients.

    Cost: one real FFT per column of a product; solve as product. Memory O(n) per column.
    """

    def __init__(self, column: Tensor, *, transposed: bool = False) -> None:
        super().__init__(column, transposed=transposed)
        self.column, self.transposed = column, transposed
        size = column.shape[-1]
        self.cosines, self.sines = size // 2 + 1, (size + 1) // 2 - 1

    def _size(self) -> torch.Size:
        return torch.Size((*self.column.shape, self.column.shape[-1]))

    def _dims(self) -> tuple[int, ...]:
        return (1,)

    def _transpose_nonbatch(self) -> FourierVectors:
        return FourierVectors(self.column, transposed=not self.transposed)

    def _product(self, right: Tensor) -> Tensor:
        batch = self.column.shape[:-1]
        if batch:
            batch = torch.broadcast_shapes(batch, right.shape[:-2])
            right = right.expand(*batch, *right.shape[-2:])
        return super()._product(right)

    def _multiply(self, right: Tensor) -> Tensor:
        return _in_blocks(self._analyse if self.transposed else self._synthesise, right.mT).mT

    def _t_multiply(self, right: Tensor) -> Tensor:
        return self._transpose_nonbatch()._multiply(right)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        return (None,)

    def _solution(self, right: Tensor) -> Tensor:
        return self._transpose_nonbatch()._product(right)

    def _analyse(self, rows: Tensor) -> Tensor:
        found = torch.fft.rfft(rows, norm="ortho")
        out = torch.empty_like(rows)
        scale = 2.0**0.5
        torch.mul(found.real, scale, out=out[..., : self.cosines])
        torch.mul(found.imag[..., 1 : self.sines + 1], -scale, out=out[..., self.cosines :])
        self._cosine_only(out).div_(scale)
        return out

    def _synthesise(self, rows: Tensor) -> Tensor:
        spectrum = torch.zeros(
            *rows.shape[:-1],
            self.cosines,
            dtype=torch.complex128 if rows.dtype == torch.float64 else torch.complex64,
            device=rows.device,
        )
        scale = 0.5**0.5
        torch.mul(rows[..., : self.cosines], scale, out=spectrum.real)
        torch.mul(rows[..., self.cosines :], -scale, out=spectrum.imag[..., 1 : self.sines + 1])
        self._cosine_only(spectrum).mul_(2.0**0.5)
        return torch.fft.irfft(spectrum, n=rows.shape[-1], norm="ortho")

    def _cosine_only(self, out: Tensor) -> Tensor:
        """Coefficients of the frequencies without a sine: 0, and n / 2 where n is even."""
        step = self.cosines - 1 if self.column.shape[-1] % 2 == 0 else self.cosines
        return out[..., : self.cosines : max(step, 1)]

    def per_eigenvector(self, half: Tensor) -> Tensor:
        """Numbers per frequency (..., floor(n / 2) + 1) as numbers per eigenvector (..., n)."""
        return torch.cat([half, half[..., 1 : self.sines + 1]], -1)

    def eigenvalue_gradient(self, weights: Tensor) -> Tensor:
        """d / d column (..., n) of sum_k weights_k lambda_k, lambda a circulant's eigenvalues.

        Every entry of the circulant's first column is a separate variable.
        """
        half = weights[..., : self.cosines].clone()
        half[..., 1 : self.sines + 1] += weights[..., self.cosines :]
        half[..., 1 : self.sines + 1] *= 0.5  # a real inverse FFT counts these frequencies twice
        size = self.column.shape[-1]
        return torch.fft.irfft(half + 0j, n=size) * size


def _in_blocks(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    size = rows.shape[-1]
    count = rows.numel() // max(size, 1)
    step = max(1, BLOCK_BYTES // (16 * size))
    if count <= step:
        return function(rows)
    flat = rows.reshape(count, size)
    out = torch.empty_like(flat)
    for start in range(0, count, step):
        out[start : start + step] = function(flat[start : start + step])
    return out.view(rows.shape)
