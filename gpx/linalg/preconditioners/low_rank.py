"""Low rank plus diagonal: Q = C^T C + D, the form of most preconditioners of kernel matrices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.linalg.pivoted_cholesky import pivoted_cholesky
from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.preconditioners.diagonal import columns_times

_GRAM_COLUMNS = 32768  # of the factor in float64 at a time

NEGLIGIBLE = 1e-13
"""Eigenvalues of the Gram matrix below this times the largest are dropped from the root."""


class Woodbury(Preconditioner):
    """Q = D^{1/2} (I + A^T A) D^{1/2} for any A (m, n) known by its products and its Gram matrix.

    The inner matrix I + A A^T is kept and factorised in float64 whatever the dtype of A.

    Args:
        rows: n.
        noise: D as sigma^2, scalar or (1,), or the diagonal (n,).
        dtype, device: of the vectors.
        below_kernel: see ``Preconditioner``.

    Raises:
        NotPositiveDefinite: noise that is not positive.
        ShapeError: noise that does not fit.
    """

    def __init__(
        self,
        rows: int,
        noise: Tensor | float,
        *,
        dtype: torch.dtype,
        device: torch.device,
        below_kernel: bool,
    ) -> None:
        diagonal = torch.as_tensor(noise, dtype=dtype, device=device).detach()
        if diagonal.ndim > 1 or (diagonal.ndim == 1 and diagonal.shape[0] not in (1, rows)):
            raise ShapeError(f"noise must be a scalar or ({rows},), got {tuple(diagonal.shape)}")
        if not bool(((diagonal > 0.0) & (diagonal < torch.inf)).all()):
            raise NotPositiveDefinite(
                f"the noise ranges from {float(diagonal.min()):.3g} to {float(diagonal.max()):.3g};"
                " a low-rank matrix is only invertible with a positive, finite diagonal, raise the "
                "noise variance"
            )
        # a constant stays a scalar, which costs nothing to keep or to apply
        self._diagonal = diagonal.reshape(()) if diagonal.numel() == 1 else diagonal
        self._rows = rows
        self.below_kernel = below_kernel
        self._spectral: tuple[Tensor, Tensor] | None = None

    def _factorise(self, gram: Tensor) -> None:
        """Take A A^T (m, m) in float64."""
        self._gram = gram
        inner = gram + torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
        self._inner, _ = cholesky(inner, name="I + A A^T of a preconditioner", ladder=(0.0,))

    @property
    def shape(self) -> torch.Size:
        """(n, n)."""
        return torch.Size((self._rows, self._rows))

    @property
    def rank(self) -> int:
        """m, rows of A."""
        return self._gram.shape[0]

    @property
    def noise(self) -> Tensor:
        """The diagonal of D, (n,); an expanded view when it is constant."""
        return self._diagonal.expand(self._rows)

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors."""
        return self._diagonal.dtype

    @property
    def device(self) -> torch.device:
        """Of the vectors."""
        return self._diagonal.device

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors."""
        self._check(vectors)
        scaled = columns_times(self._diagonal.sqrt(), vectors)
        return columns_times(self._diagonal.sqrt(), scaled + self._expand(self._project(scaled)))

    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors."""
        self._check(vectors)
        scaled = columns_times(self._diagonal.rsqrt(), vectors)
        low = self._project(scaled)
        low = self._on_small(lambda b: torch.cholesky_solve(b, self._inner), low)
        return columns_times(self._diagonal.rsqrt(), scaled - self._expand(low))

    def logdet(self) -> Tensor:
        """log det Q."""
        small = 2.0 * self._inner.diagonal().log().sum()
        each = self._rows // self._diagonal.numel() if self._rows else 0
        return (small + each * self._diagonal.double().log().sum()).to(self.dtype)

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """D^{1/2} (I + A^T A)^{1/2} times vectors."""
        return columns_times(self._diagonal.sqrt(), self._power(vectors, 0.5))

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """(I + A^T A)^{-1/2} D^{-1/2} times vectors, or its transpose times them."""
        if transpose:
            return columns_times(self._diagonal.rsqrt(), self._power(vectors, -0.5))
        return self._power(columns_times(self._diagonal.rsqrt(), vectors), -0.5)

    def _power(self, vectors: Tensor, exponent: float) -> Tensor:
        """(I + A^T A)^exponent times vectors, by the eigenvectors A^T V G^{-1/2} of A^T A."""
        self._check(vectors)
        if self._spectral is None:
            values, modes = torch.linalg.eigh(self._gram)
            keep = values > NEGLIGIBLE * values.amax() if values.numel() else values > 0.0
            self._spectral = values[keep], modes[:, keep]
        values, modes = self._spectral
        # log1p and expm1: exact also where an eigenvalue is far below one
        weights = torch.expm1(exponent * torch.log1p(values)) / values

        def weighted(block: Tensor) -> Tensor:
            return modes @ (weights.unsqueeze(-1) * (modes.mT @ block))

        low = self._on_small(weighted, self._project(vectors))
        return vectors + self._expand(low)

    def _check(self, vectors: Tensor) -> None:
        if vectors.ndim == 0 or vectors.shape[-1 if vectors.ndim == 1 else -2] != self._rows:
            raise ShapeError(
                f"a preconditioner of {self._rows} rows cannot meet vectors of shape "
                f"{tuple(vectors.shape)}; expected ({self._rows},) or (..., {self._rows}, c)"
            )
        if vectors.dtype != self.dtype or vectors.device != self.device:
            raise DTypeError(
                f"the preconditioner is {self.dtype} on {self.device}, the vectors {vectors.dtype} "
                f"on {vectors.device}; convert one of them"
            )

    def _on_small(self, function: Callable[[Tensor], Tensor], low: Tensor) -> Tensor:
        """A function of (m, c) blocks in float64, on (m,) or (m, c) in the factor's dtype."""
        block = (low.unsqueeze(-1) if low.ndim == 1 else low).double()
        return function(block).to(low.dtype).reshape(low.shape)

    @abstractmethod
    def _project(self, vectors: Tensor) -> Tensor:
        """A times vectors: (m,) or (m, c)."""

    @abstractmethod
    def _expand(self, low: Tensor) -> Tensor:
        """A^T times low: (n,) or (n, c)."""


class LowRankPlusNoise(Woodbury):
    """Q = C^T C + D with D = sigma^2 I or a positive diagonal; Woodbury in the scaled factor.

    With A = C D^{-1/2}: Q = D^{1/2} (I + A^T A) D^{1/2}. The Gram matrix A A^T is accumulated and
    factorised in float64 whatever the dtype of C. The root D^{1/2} (I + A^T A)^{1/2} is symmetric
    for constant noise.

    Args:
        factor (m, n): C; m may exceed n.
        noise: sigma^2, scalar, or the diagonal (n,).
        below_kernel: whether C^T C + D <= K is known: true for every Nystrom or incomplete Cholesky
            approximation of the noise-free part, with any jitter.

    Raises:
        NotPositiveDefinite: noise that is not positive.
        ShapeError: shapes that do not fit.

    Cost: build n m^2 + m^3; solve 4 n m per vector; memory n m + m^2.
    Source: Burt thesis, sections 2.3 and 4.1.2; Evans thesis, section 3.3.4.
    """

    def __init__(
        self, factor: Tensor, noise: Tensor | float, *, below_kernel: bool = False
    ) -> None:
        if factor.ndim != 2:
            raise ShapeError(f"the factor must be (m, n), got {tuple(factor.shape)}")
        m, n = factor.shape
        super().__init__(
            n, noise, dtype=factor.dtype, device=factor.device, below_kernel=below_kernel
        )
        self._scaled = factor.detach() * self._diagonal.rsqrt()
        gram = self._scaled.new_zeros(m, m, dtype=torch.float64)
        for start in range(0, n, _GRAM_COLUMNS):
            part = self._scaled[:, start : start + _GRAM_COLUMNS].double()
            gram.addmm_(part, part.mT)
        self._factorise(gram)

    def _project(self, vectors: Tensor) -> Tensor:
        """A times vectors: (m,) or (m, c)."""
        return self._scaled @ vectors

    def _expand(self, low: Tensor) -> Tensor:
        """A^T times low: (n,) or (n, c)."""
        return self._scaled.mT @ low


def pivoted_cholesky_preconditioner(
    rows: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    rank: int,
    noise: Tensor | float,
    *,
    tolerance: float = 0.0,
) -> LowRankPlusNoise:
    """Incomplete pivoted Cholesky of the noise-free kernel matrix, plus noise; below the kernel.

    Equals the Nystrom preconditioner at greedily chosen inducing points, without a factorisation of
    K_zz and therefore without jitter.

    Args:
        rows: indices (b,) -> rows of the noise-free K_xx, (b, n), in blocks.
        diagonal (n,): diag(K_xx).
        rank: most pivots.
        noise: sigma^2 or the diagonal (n,).
        tolerance: stop at this trace error.

    Cost: that of ``pivoted_cholesky`` plus n rank^2.
    Source: Burt thesis, sections 2.6 and 4.1.2.
    """
    with torch.no_grad():
        found = pivoted_cholesky(rows, diagonal, rank, tolerance=tolerance)
    return LowRankPlusNoise(found.factor, noise, below_kernel=True)


def nystrom_preconditioner(k_zz: Tensor, k_zx: Tensor, noise: Tensor | float) -> LowRankPlusNoise:
    """Q = K_xz K_zz^{-1} K_zx + D at given inducing points; below the kernel, with jitter, too.

    Args:
        k_zz (m, m), k_zx (m, n): covariances of the inducing points, and with the data.
        noise: sigma^2 or the diagonal (n,).

    Raises:
        NotPositiveDefinite: K_zz at every jitter.

    Cost: n m^2 (twice: the factor and its Gram matrix) + m^3.
    Source: Burt thesis, section 4.1.2.
    """
    with torch.no_grad():
        lower, _ = cholesky(k_zz.detach(), name=f"K_zz of {k_zz.shape[0]} inducing points")
        factor = torch.linalg.solve_triangular(lower, k_zx.detach(), upper=False)
    return LowRankPlusNoise(factor, noise, below_kernel=True)
