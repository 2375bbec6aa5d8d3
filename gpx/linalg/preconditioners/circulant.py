"""Circulant preconditioners of symmetric Toeplitz matrices, and of their multilevel forms.

For users of the package: the preconditioners of interpolated grids (SKI) are of low rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.linalg.circulant_approximation import Kind, circulant_approximation
from gpx.linalg.fft_products import convolve, spectrum
from gpx.linalg.preconditioners.base import Preconditioner


class CirculantPreconditioner(Preconditioner):
    """A symmetric positive definite circulant, of one axis or of several; the root is symmetric.

    Args:
        generator (n_1, ..., n_D): first column, on the grid.
        name: of the approximation, for the error message.

    Raises:
        NotPositiveDefinite: an eigenvalue that is not positive (one host synchronisation).

    Cost: O(n log n) once; every product, solve and root two FFTs per vector, without padding.
    """

    def __init__(self, generator: Tensor, *, name: str = "given") -> None:
        generator = generator.detach()
        super().__init__(generator.numel(), generator.dtype, generator.device, below_kernel=False)
        self._grid = tuple(generator.shape)
        self._values = spectrum(generator, generator.ndim).real
        self._every = torch.fft.fftn(generator).real
        smallest = float(self._values.min())
        if not smallest > 0.0:
            raise NotPositiveDefinite(
                f"the {name} circulant approximation of size {generator.numel()} has an "
                f"eigenvalue {smallest:.2e}. Add the noise variance at lag zero, or use "
                "kind='chan'."
            )

    def _power(self, exponent: float, vectors: Tensor) -> Tensor:
        """Q^exponent times vectors."""
        self._check(vectors)
        block = vectors.unsqueeze(-1) if vectors.ndim == 1 else vectors
        out = convolve(self._values.pow(exponent), block, self._grid, self._grid, self._grid)
        return out.squeeze(-1) if vectors.ndim == 1 else out

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors."""
        return self._power(1.0, vectors)

    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors."""
        return self._power(-1.0, vectors)

    def logdet(self) -> Tensor:
        """log det Q."""
        return self._every.log().sum()

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """Q^{1/2} times vectors."""
        return self._power(0.5, vectors)

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """Q^{-1/2} times vectors."""
        return self._power(-0.5, vectors)


def circulant_preconditioner(
    column: Tensor, *, kind: Kind = "chan", levels: int = 1
) -> CirculantPreconditioner:
    """A circulant near T = toep(column), or near a BTTB matrix, for conjugate gradients.

    Args:
        column (n,), or (n_1, ..., n_D) with ``levels`` = D > 1: the corner of lags of a kernel even
            in every coordinate, noise variance added at lag zero.
        kind: of several levels "strang" or "chan".

    Raises:
        NotPositiveDefinite: the approximation has an eigenvalue that is not positive; "chan" is
            positive definite whenever the matrix is.
        ConfigError: a batch of columns, or Tyrtyshnikov's approximation of several levels.

    Cost: O(n log n); no gradient.
    """
    if column.ndim != levels:
        raise ConfigError(
            f"lags of shape {tuple(column.shape)} and levels={levels}: a circulant preconditioner "
            "is for one matrix, with as many axes as levels"
        )
    generator = circulant_approximation(column.detach(), kind, levels)
    return CirculantPreconditioner(generator.contiguous(), name=kind)
