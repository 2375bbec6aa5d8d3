"""Low rank plus diagonal: Q = C^T C + D, the form of most preconditioners of kernel matrices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.preconditioners.diagonal import columns_times
from gpx.linalg.thin_products import thin_product

_GRAM_COLUMNS = 32768  # of the factor in float64 at a time

NEGLIGIBLE = 1e-13
"""Eigenvalues of the Gram matrix below this times the largest are dropped from the root."""


class Capacitance:
    """B = I + A A^T of a low-rank factor A (..., m, n), with its Cholesky factor; float64.

    Every solve, log determinant and root of I + A^T A goes through this m x m matrix (Woodbury's
    identity, matrix determinant lemma).

    Args:
        gram (..., m, m): A A^T in float64.
        name, hint: for ``cholesky``'s error message.

    Attributes:
        gram: A A^T.
        factor (..., m, m): LB = chol(B).

    Raises:
        NotPositiveDefinite: entries that are not finite; B has no eigenvalue below one.
    Source: Burt thesis, section 2.3.
    """

    def __init__(
        self, gram: Tensor, *, name: str = "I + A A^T of a low-rank factor", hint: str = ""
    ) -> None:
        self.gram = gram
        inner = gram.clone()
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        self.factor, _ = cholesky(inner, name=name, ladder=(0.0,), hint=hint)
        self._spectrum: tuple[Tensor, Tensor] | None = None
        self._complement: Tensor | None = None

    def solve(self, right: Tensor) -> Tensor:
        """B^{-1} right (..., m, c), in float64 inside."""
        half = self.half_solve(right.double())
        # unlike ``cholesky_solve`` these read the factor where it lies, without a copy
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True).to(right.dtype)

    def half_solve(self, right: Tensor) -> Tensor:
        """LB^{-1} right (..., m, c) in float64."""
        return torch.linalg.solve_triangular(self.factor, right, upper=False)

    def logdet(self) -> Tensor:
        """log det B = log det(I + A^T A), (...), in nats."""
        return 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @property
    def complement(self) -> Tensor:
        """I - B^{-1} = B^{-1} A A^T, without the cancellation; symmetric, computed once."""
        if self._complement is None:
            found = torch.cholesky_solve(self.gram, self.factor)
            self._complement = 0.5 * (found + found.mT)
        return self._complement

    @property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (m,), ascending, and eigenvectors of A A^T; computed once."""
        if self._spectrum is None:
            self._spectrum = torch.linalg.eigh(self.gram)
        return self._spectrum

    def power(self, right: Tensor, exponent: float) -> Tensor:
        """P right (m, c) with (I + A^T A)^exponent = I + A^T P A; float64."""
        values, modes = self.spectrum
        keep = values > NEGLIGIBLE * values.amax() if values.numel() else values > 0.0
        safe = torch.where(keep, values, 1.0)
        # log1p and expm1: exact also where an eigenvalue is far below one
        weights = torch.where(keep, torch.expm1(exponent * torch.log1p(safe)) / safe, 0.0)
        return modes @ (weights.unsqueeze(-1) * (modes.mT @ right))


class Woodbury(Preconditioner):
    """Q = D^{1/2} (I + A^T A) D^{1/2} for any A (m, n) known by its products and its Gram matrix.

    The one implementation of Woodbury's identity: a subclass says how A meets vectors (an array, a
    Kronecker product, a stream over the data) and hands its Gram matrix to ``capacitance``, which
    is factorised in float64 whatever the dtype of A.

    Args:
        rows: n.
        noise: D as sigma^2, scalar or (1,), or the diagonal (n,).
        dtype, device: of the vectors.
        below_kernel: see ``Preconditioner``.

    Attributes:
        capacitance: of A; a subclass sets it.

    Raises:
        NotPositiveDefinite: noise that is not positive.
        ShapeError: noise that does not fit.
    """

    capacitance: Capacitance

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
            low, high = float(diagonal.min()), float(diagonal.max())
            what = (
                f"variance is {low:.3g}" if low == high else f"ranges from {low:.3g} to {high:.3g}"
            )
            raise NotPositiveDefinite(
                f"the noise {what}; a low-rank matrix is only invertible with a positive, finite "
                "diagonal, raise the noise variance"
            )
        # a constant stays a scalar
        self._diagonal = diagonal.reshape(()) if diagonal.numel() == 1 else diagonal
        self._inverse_root = self._diagonal.rsqrt()
        super().__init__(rows, dtype, device, below_kernel=below_kernel)

    @property
    def rank(self) -> int:
        """m, rows of A."""
        return self.capacitance.gram.shape[0]

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors."""
        self._check(vectors)
        scaled = columns_times(self._diagonal.sqrt(), vectors)
        return columns_times(self._diagonal.sqrt(), scaled + self._expand(self._project(scaled)))

    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors."""
        self._check(vectors)
        constant = self._diagonal.ndim == 0
        scaled = vectors if constant else columns_times(self._inverse_root, vectors)
        carried = self._expand(_on_small(self.capacitance.solve, self._project(scaled)))
        rest = torch.sub(scaled, carried, out=carried)
        if constant:
            return rest.div_(self._diagonal)
        return columns_times(self._inverse_root, rest)

    def quadratic_form(self, vectors: Tensor) -> Tensor:
        """As in ``Preconditioner``, at the cost of half a solve."""
        self._check(vectors)
        if self._diagonal.ndim == 0:  # scales what is small
            whole = _squared(vectors) / self._diagonal
            low = self._project(vectors) * self._inverse_root
        else:
            scaled = columns_times(self._inverse_root, vectors)
            whole, low = _squared(scaled), self._project(scaled)
        return whole - _squared(_on_small(self.capacitance.half_solve, low))

    def logdet(self) -> Tensor:
        """log det Q."""
        each = self.shape[0] // self._diagonal.numel() if self.shape[0] else 0
        logs = self._diagonal.double().log().sum()
        return (self.capacitance.logdet() + each * logs).to(self.dtype)

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """D^{1/2} (I + A^T A)^{1/2} times vectors."""
        return columns_times(self._diagonal.sqrt(), self._power(vectors, 0.5))

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """(I + A^T A)^{-1/2} D^{-1/2} times vectors, or its transpose times them."""
        if transpose:
            return columns_times(self._inverse_root, self._power(vectors, -0.5))
        return self._power(columns_times(self._inverse_root, vectors), -0.5)

    def _power(self, vectors: Tensor, exponent: float) -> Tensor:
        """(I + A^T A)^exponent times vectors."""
        self._check(vectors)
        low = _on_small(lambda b: self.capacitance.power(b, exponent), self._project(vectors))
        return vectors + self._expand(low)

    @abstractmethod
    def _project(self, vectors: Tensor) -> Tensor:
        """A times vectors: (m,) or (m, c)."""

    @abstractmethod
    def _expand(self, low: Tensor) -> Tensor:
        """A^T times low: (n,) or (n, c)."""


def _squared(vectors: Tensor) -> Tensor:
    """Squared norms of vectors (n,) or (n, c)."""
    return torch.linalg.vector_norm(vectors, dim=0).square()


def _on_small(function: Callable[[Tensor], Tensor], low: Tensor) -> Tensor:
    """A function of (m, c) blocks in float64, on (m,) or (m, c) in the vectors' dtype."""
    block = (low.unsqueeze(-1) if low.ndim == 1 else low).double()
    return function(block).to(low.dtype).reshape(low.shape)


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
        self._scaled = factor.detach() * self._inverse_root
        gram = self._scaled.new_zeros(m, m, dtype=torch.float64)
        for start in range(0, n, _GRAM_COLUMNS):
            part = self._scaled[:, start : start + _GRAM_COLUMNS].double()
            gram.addmm_(part, part.mT)
        self.capacitance = Capacitance(gram)

    def _project(self, vectors: Tensor) -> Tensor:
        """A times vectors: (m,) or (m, c)."""
        return _product(self._scaled, vectors)

    def _expand(self, low: Tensor) -> Tensor:
        """A^T times low: (n,) or (n, c)."""
        return _product(self._scaled.mT, low)


def _product(matrix: Tensor, vectors: Tensor) -> Tensor:
    """A matrix times vectors (.,) or (., c), of any number of leading dimensions."""
    return matrix @ vectors if vectors.ndim != 2 else thin_product(matrix, vectors)


class ProductsPlusNoise(Woodbury):
    """Q = F^T F + sigma^2 I for F (m, n) known by its products and its Gram matrix alone.

    Args:
        project: (n, c) -> F times it, (m, c).
        expand: (m, c) -> F^T times it, (n, c).
        gram (m, m): F F^T.
        rows: n.
        noise: sigma^2, a scalar.
        below_kernel: see ``Preconditioner``.

    Cost: build m^3 / 3; a solve one ``project``, one ``expand`` and m^2 per vector. ``draws`` costs
    one ``expand``; ``root_matmul`` the eigendecomposition of the Gram matrix once.
    Source: Burt thesis, section 2.3.
    """

    def __init__(
        self,
        project: Callable[[Tensor], Tensor],
        expand: Callable[[Tensor], Tensor],
        gram: Tensor,
        rows: int,
        noise: Tensor,
        *,
        below_kernel: bool = False,
    ) -> None:
        super().__init__(
            rows, noise, dtype=gram.dtype, device=gram.device, below_kernel=below_kernel
        )
        self._factor, self._factor_transpose = project, expand
        self.capacitance = Capacitance(gram / self._diagonal)

    def draws(self, xi: Tensor) -> Tensor:
        """w (n, c) with covariance Q from xi (n + m, c) with covariance I: sigma xi_1 + F^T xi_2.

        Unlike ``root_matmul``, it needs no eigendecomposition.
        """
        first, second = xi.tensor_split([self.shape[0]])
        root = self._diagonal.sqrt()
        if not len(second):
            return first * root
        return torch.addcmul(self._factor_transpose(second), first, root)

    def _project(self, vectors: Tensor) -> Tensor:
        """A times vectors: (m,) or (m, c)."""
        return _on_block(self._factor, vectors) * self._inverse_root

    def _expand(self, low: Tensor) -> Tensor:
        """A^T times low: (n,) or (n, c)."""
        return _on_block(self._factor_transpose, low * self._inverse_root)


def _on_block(function: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
    """A function of blocks (., c) on (.,) or (., c)."""
    return function(vectors.unsqueeze(-1)).squeeze(-1) if vectors.ndim == 1 else function(vectors)


def nystrom_preconditioner(k_zz: Tensor, k_zx: Tensor, noise: Tensor | float) -> LowRankPlusNoise:
    """Q = K_xz K_zz^{-1} K_zx + D at given inducing points; below the kernel, with jitter, too.

    For users of the package: models have the factor already.

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
