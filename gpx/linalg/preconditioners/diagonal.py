"""The diagonal (Jacobi) preconditioner."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.preconditioners.base import Preconditioner


class Jacobi(Preconditioner):
    """Q = diag(q); the root is symmetric.

    Useful only when the diagonal varies (non-constant noise, non-stationary kernels): for a
    stationary kernel with constant noise it is a multiple of the identity.

    Args:
        diagonal (n,): positive; diag(K), or sigma^2 everywhere for Gibbs' and MacKay's criterion
            r^T Q^{-1} r (with ``below_kernel=True``).
        below_kernel: whether diag(q) <= K is known.

    Raises:
        NotPositiveDefinite: an entry is not positive.
    """

    def __init__(self, diagonal: Tensor, *, below_kernel: bool = False) -> None:
        if diagonal.ndim != 1:
            raise ShapeError(f"the diagonal must be (n,), got {tuple(diagonal.shape)}")
        if not bool(((diagonal > 0.0) & (diagonal < torch.inf)).all()):
            raise NotPositiveDefinite(
                f"the diagonal ranges from {float(diagonal.min()):.3g} to "
                f"{float(diagonal.max()):.3g}; a preconditioner needs positive, finite entries, "
                "check the noise variance and the kernel's outputscale"
            )
        self.diagonal = diagonal.detach()
        super().__init__(len(diagonal), diagonal.dtype, diagonal.device, below_kernel=below_kernel)

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors."""
        return columns_times(self.diagonal, vectors)

    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors."""
        return columns_times(1.0 / self.diagonal, vectors)

    def logdet(self) -> Tensor:
        """log det Q."""
        return self.diagonal.log().sum()

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """Q^{1/2} times vectors."""
        return columns_times(self.diagonal.sqrt(), vectors)

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """Q^{-1/2} times vectors."""
        return columns_times(self.diagonal.rsqrt(), vectors)


def columns_times(diagonal: Tensor, vectors: Tensor) -> Tensor:
    """diag(diagonal) times vectors (n,) or (n, c)."""
    return diagonal * vectors if vectors.ndim == 1 else diagonal.unsqueeze(-1) * vectors
