"""Toeplitz matrices: constant along every diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite, ShapeError
from gpx.linalg.fft_products import embed_general, embed_symmetric, fast_length
from gpx.linalg.levinson import toeplitz_logdet, toeplitz_solve
from gpx.linalg.prepared import Prepared
from gpx.operators.convolution import Convolution
from gpx.operators.structured import DENSE_ROWS


class Toeplitz(Convolution):
    """T with T_ij = column[i - j] below and row[j - i] above the diagonal; row[0] is not used.

    Without ``row`` the matrix is symmetric, T_ij = column[|i - j|]: a stationary kernel on an
    equidistant grid. With it, (M, N) may be rectangular.

    Args:
        column (..., M): first column.
        row (..., N): first row; batch shapes broadcast.
        plan: cache of the spectrum between products; a new one by default.

    Cost: product O(n log n) time and O(n) memory per column (two real FFTs of a fast length
    >= M + N - 1, after one for the spectrum). Symmetric positive definite: ``logdet`` and
    ``solve`` exact by the Durbin recursion, O(n^2) time and O(n) memory once, then O(n log n) per
    right-hand side and for the gradient; ``inv_quad_logdet`` both. For n beyond some 10^4 use
    conjugate gradients with ``gpx.linalg.circulant_preconditioner``. Given by column and row: dense
    LU up to ``DENSE_ROWS`` rows, ``logdet`` then being log |det T|.

    Raises:
        ShapeError: an empty column or row.
        DTypeError: column and row differ in dtype or device, or are not real floating numbers.
        NotPositiveDefinite: a solve or logdet, when a pivot of the recursion is not positive; a
            solve of a singular matrix given by column and row.
        DidNotConverge: a solve, when the matrix is too near singular for its dtype.

    Source: Hultin thesis, section 3.1.2 (algorithm 2, embedding length corrected).
    """

    levels = 1

    def __init__(
        self, column: Tensor, row: Tensor | None = None, *, plan: Prepared | None = None
    ) -> None:
        tensors = (column,) if row is None else (column, row)
        super().__init__(*tensors, plan=plan)
        self.column, self.row = column, row
        if column.ndim < 1 or column.shape[-1] == 0:
            raise ShapeError(f"a first column (..., M) with M >= 1, got {tuple(column.shape)}")
        if row is not None and (row.ndim < 1 or row.shape[-1] == 0):
            raise ShapeError(f"a first row (..., N) with N >= 1, got {tuple(row.shape)}")

    @property
    def grids(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """((M,), (N,), (circular length,))."""
        m = self.column.shape[-1]
        n = m if self.row is None else self.row.shape[-1]
        return (m,), (n,), (fast_length(m + n - 1),)

    def _generator(self) -> Tensor:
        length = self.grids[2][0]
        if self.row is None:
            return embed_symmetric(self.column, length)
        return embed_general(self.column, self.row, length)

    def _fold(self, gradient: Tensor) -> tuple[Tensor, ...]:
        (m,), (n,), _ = self.grids
        backwards = torch.cat([torch.zeros_like(gradient[..., :1]), gradient.flip(-1)], -1)[..., :n]
        column = gradient[..., :m]
        return (column + backwards,) if self.row is None else (column, backwards)

    def _transpose_nonbatch(self) -> Toeplitz:
        if self.row is None:
            return self
        first = self.column[..., :1].expand(*self._batch(), 1)
        rest = self.row[..., 1:].expand(*self._batch(), -1)
        return Toeplitz(torch.cat([first, rest], -1), self.column)

    def _logdet(self) -> Tensor:
        if self.row is None:
            return toeplitz_logdet(self.column, self.plan)
        found = torch.linalg.slogdet(self._dense("log-determinant"))[1]
        if not bool(torch.isfinite(found).all()):
            raise NotPositiveDefinite(
                f"{self._name()} is singular or not finite: its log |det| is {float(found.min())}"
            )
        return found

    def _solution(self, right: Tensor) -> Tensor:
        if self.row is None:
            return super()._solution(right)
        return self._lu_solve(right)

    def _inverse_product(self, right: Tensor) -> Tensor:
        return toeplitz_solve(self.column, right, self.plan)

    def _lu_solve(self, right: Tensor) -> Tensor:
        found, info = torch.linalg.solve_ex(self._dense("solve"), right)
        if bool(info.any()) or bool(found.isnan().any()):
            raise NotPositiveDefinite(
                f"{self._name()} is singular or not finite: its LU factorisation broke down"
            )
        return found

    def _dense(self, what: str) -> Tensor:
        if self.shape[-1] > DENSE_ROWS:
            raise ConfigError(
                f"no {what} of a non-symmetric Toeplitz matrix of {self.shape[-1]} rows (at most "
                f"{DENSE_ROWS}). If row and column are the same, leave the row out."
            )
        return self.to_dense()
