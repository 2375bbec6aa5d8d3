"""Exact dense factorisations, the defaults of operators without structured ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import (
    DenseLinearOperator,
    RootLinearOperator,
    TriangularLinearOperator,
)
from torch import Tensor

from gpx.errors import ConfigError, NotAvailable, NotPositiveDefinite, ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.operators.batches import BatchesAndEntries
from gpx.operators.symmetry import require_symmetric

DENSE_ROWS = 2_000
"""Up to this size an operator without a direct method is factorised densely."""

BY_EIGENVALUES = ("symeig", "diagonalization", "svd")
"""Names of linear_operator's methods that use the eigendecomposition."""


class DenseFactorisations(BatchesAndEntries):
    """Cholesky, roots, eigen- and singular value decompositions: complete, without jitter.

    The versions of linear_operator silently add jitter, clamp negative eigenvalues, read one
    triangle of a matrix that is not symmetric, or stop a Lanczos process early. Here a matrix that
    is not symmetric, not positive definite or larger than ``DENSE_ROWS`` is refused. Methods are
    chosen by linear_operator's names where they are exact; the approximate ones are refused.
    """

    def _square(self, what: str) -> None:
        if self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"{what} needs a square matrix; this is {self._name()}")

    @property
    def _fits_dense(self) -> bool:
        return max(self.shape[-2:]) <= DENSE_ROWS

    def _dense_size(self, what: str) -> None:
        if not self._fits_dense:
            raise ConfigError(
                f"{what} of {self._name()} would be dense (at most {DENSE_ROWS} rows); "
                "gpx.linalg.pivoted_cholesky gives a low-rank root and reports its error, "
                "gpx.linalg.Lanczos eigenvalue estimates"
            )

    def _factorisable(self, what: str) -> None:
        """Square, symmetric and small enough for a dense factorisation, or an error."""
        self._square(what)
        self._dense_size(what)
        require_symmetric(self, what)

    def _dense_cholesky(self) -> Tensor:
        lower, _ = cholesky(self.to_dense(), name=self._name(), ladder=(0.0,))
        return lower

    # --- the package's names ---------------------------------------------------------------------

    def _cholesky(self, upper: bool | None = False) -> LinearOperator:
        self._factorisable("cholesky")
        lower = self._dense_cholesky()
        return TriangularLinearOperator(lower.mT if upper else lower, upper=bool(upper))

    def _symeig(
        self, eigenvectors: bool = False, return_evals_as_lazy: bool | None = False
    ) -> tuple[Tensor, Any]:
        """All eigenvalues (..., N), negative ones as they are, and eigenvectors or None."""
        self._factorisable("an eigendecomposition")
        dense = self.to_dense()
        if not eigenvectors:
            return torch.linalg.eigvalsh(dense), None
        values, vectors = torch.linalg.eigh(dense)
        return values, DenseLinearOperator(vectors)

    def _svd(self) -> tuple[LinearOperator, Tensor, LinearOperator]:
        """U (..., M, r), singular values (..., r), V (..., N, r) with r = min(M, N)."""
        self._dense_size("a singular value decomposition")
        left, values, right = torch.linalg.svd(self.to_dense(), full_matrices=False)
        return DenseLinearOperator(left), values, DenseLinearOperator(right.mT)

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """R R^T = self as a ``RootLinearOperator``; default: the Cholesky factor, without jitter.

        Args:
            method: None for the class's own root, "cholesky", or a name of ``BY_EIGENVALUES``
                (which takes eigenvalues of zero, too).

        Raises:
            ConfigError: too large, or a method that approximates without an error.
            NotPositiveDefinite: not symmetric, or not positive (semi-)definite.
        """
        what = "root_decomposition"
        self._exact_method(what, method)
        if method in BY_EIGENVALUES:
            values, vectors = self._eigen_root(what)
            return RootLinearOperator(vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2))
        if method is None:
            return RootLinearOperator(self._root())
        return RootLinearOperator(DenseFactorisations._root(self))

    def root_inv_decomposition(
        self,
        initial_vectors: Tensor | None = None,
        test_vectors: Tensor | None = None,
        method: str | None = None,
    ) -> LinearOperator:
        """R R^T = self^{-1}, R = L^{-T} with the Cholesky factor L; at most ``DENSE_ROWS`` rows.

        R is the inverse transpose of the root of ``root_decomposition`` of the same method where
        that root is square. The start vectors are not used.

        Raises: as ``root_decomposition``.
        """
        what = "root_inv_decomposition"
        self._exact_method(what, method)
        if method in BY_EIGENVALUES:
            values, vectors = self._eigen_root(what)
            if not bool((values > 0).all()):
                raise NotPositiveDefinite(
                    f"{what} of {self._name()} met the eigenvalue {float(values.min()):.2e}; add a "
                    "positive diagonal (noise variance or jitter)"
                )
            return RootLinearOperator(vectors * values.rsqrt().unsqueeze(-2))
        if method is None:
            return RootLinearOperator(self._inverse_root())
        return RootLinearOperator(DenseFactorisations._inverse_root(self))

    def _root(self) -> Tensor | LinearOperator:
        """R with R R^T = self: the Cholesky factor. Classes with a structured root override it."""
        self._factorisable("root_decomposition")
        return self._dense_cholesky()

    def _inverse_root(self) -> Tensor | LinearOperator:
        """R with R R^T = self^{-1}, by default from the Cholesky factor: L^{-T}."""
        self._factorisable("root_inv_decomposition")
        return inverse_transpose(self._dense_cholesky())

    def zero_mean_mvn_samples(
        self, num_samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of N(0, self), (num_samples, ..., N): the root times standard normals.

        Raises: as ``root_decomposition``.
        """
        root = self.root_decomposition().root
        shape = (*self.batch_shape, root.shape[-1], num_samples)
        normals = torch.randn(shape, dtype=self.dtype, device=self.device, generator=generator)
        return root.matmul(normals).movedim(-1, 0)

    def diagonalization(self, method: str | None = None) -> tuple[Tensor, Any]:
        """Eigenvalues (..., N) and eigenvectors, complete; dense ones at most ``DENSE_ROWS`` rows.

        Raises: as ``root_decomposition``.
        """
        self._square("diagonalization")
        self._exact_method("diagonalization", method)
        return self._symeig(eigenvectors=True)

    def pivoted_cholesky(
        self, rank: int, error_tol: float | None = None, return_pivots: bool = False
    ) -> Any:
        """L (..., N, r) with r <= rank columns, L L^T at most self; with the pivots (..., N).

        ``error_tol``: stop at this trace of self - L L^T relative to the largest entry of the
        diagonal (the package's rule; None takes its setting). ``gpx.linalg.pivoted_cholesky`` is
        faster and reports its error.

        Raises:
            ShapeError: not square, no rows, or a rank below 1. NotPositiveDefinite: not symmetric,
                or a pivot that is not positive.
        """
        self._square("pivoted_cholesky")
        if rank < 1 or not self.shape[-1]:
            raise ShapeError(
                f"pivoted_cholesky needs a row and a rank of at least 1, got rank {rank} of "
                f"{self._name()}"
            )
        require_symmetric(self, "pivoted_cholesky")
        found, pivots = super().pivoted_cholesky(rank, error_tol, return_pivots=True)
        if not bool(torch.isfinite(found).all()):
            raise NotPositiveDefinite(
                f"pivoted_cholesky of {self._name()} met a pivot that is not positive; add a "
                "positive diagonal (noise variance or jitter)"
            )
        return (found, pivots) if return_pivots else found

    # --- shared ----------------------------------------------------------------------------------

    def _exact_method(self, what: str, method: str | None) -> None:
        known = (*BY_EIGENVALUES, "cholesky", "pinverse")
        if method is not None and method not in known:
            raise ConfigError(
                f"{what} of {self._name()} by method={method!r} is an approximation that does not "
                f"report its error, or unknown; use None or one of {', '.join(known)}, or "
                "gpx.linalg.pivoted_cholesky, which reports its error"
            )

    def _eigen_root(self, what: str) -> tuple[Tensor, Tensor]:
        self._factorisable(what)
        values, vectors = torch.linalg.eigh(self.to_dense())
        rounding = 100 * torch.finfo(values.dtype).eps * values.abs().amax(-1, keepdim=True)
        if not bool((values >= -rounding).all()):
            raise NotPositiveDefinite(
                f"{what} of {self._name()} met the eigenvalue {float(values.min()):.2e}; add a "
                "positive diagonal (noise variance or jitter)"
            )
        return values, vectors


def inverse_transpose(lower: Tensor) -> Tensor:
    """L^{-T} of lower triangles (..., n, n)."""
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, eye, upper=False).mT


def _refused(name: str, instead: str) -> Callable[..., Any]:
    def refuse(self: DenseFactorisations, *arguments: Any, **options: Any) -> Any:
        raise NotAvailable(f"torch.{name} of {self._name()} has no lazy form; {instead}")

    refuse.__name__, refuse.__doc__ = name, f"Refused: raises NotAvailable. Instead: {instead}."
    return refuse


REFUSED = {
    "abs": "take it of to_dense()",
    "exp": "take it of to_dense()",
    "log": "take it of to_dense(); logdet() is the log-determinant",
    "sqrt": "root_decomposition() has R R^T = A",
    "inverse": "solve(b) multiplies with it",
    "linalg.solve_triangular": "solve(b) takes the whole matrix",
    "sqrt_inv_matmul": "root_inv_decomposition() has R R^T = A^{-1}",
}
"""Inherited methods that are refused, with the advice in the error message."""

for _name, _instead in REFUSED.items():
    setattr(DenseFactorisations, _name.removeprefix("linalg."), _refused(_name, _instead))
