"""What every preconditioner gives."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gpx.errors import DTypeError, ShapeError


class Preconditioner(ABC):
    """A symmetric positive definite matrix Q (n, n) near K, cheap to invert.

    It is built once and not differentiated; all methods take vectors (n,) or (n, c) and return the
    same shape. R is a square root in the sense Q = R R^T; it is symmetric where the class says so.

    Args:
        rows: n.
        dtype, device: of the vectors it takes.
        below_kernel: whether Q <= K is known (as an order of positive semi-definite matrices), so
            that r^T Q^{-1} r certifies an error (``EvidenceBound``, ``PosteriorMeanError``) and 1
            is a lower bound of the spectrum of R^{-1} K R^{-T}.

    Attributes:
        shape: (n, n).
        dtype, device, below_kernel: as above.
    """

    def __init__(
        self, rows: int, dtype: torch.dtype, device: torch.device, *, below_kernel: bool
    ) -> None:
        self.shape = torch.Size((rows, rows))
        self.dtype, self.device, self.below_kernel = dtype, device, below_kernel

    @abstractmethod
    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors."""

    @abstractmethod
    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """log det Q, a scalar in nats."""

    @abstractmethod
    def root_matmul(self, vectors: Tensor) -> Tensor:
        """R times vectors."""

    @abstractmethod
    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """R^{-1} times vectors, or R^{-T} with ``transpose``."""

    def quadratic_form(self, vectors: Tensor) -> Tensor:
        """v^T Q^{-1} v of vectors (n,) or (n, c): () or (c,)."""
        return (vectors * self.solve(vectors)).sum(0)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Same as ``solve``, so that a preconditioner is the callable CG asks for."""
        return self.solve(vectors)

    def _check(self, vectors: Tensor) -> None:
        """Raise ShapeError or DTypeError for vectors that do not fit."""
        rows = self.shape[0]
        if vectors.ndim == 0 or vectors.shape[-1 if vectors.ndim == 1 else -2] != rows:
            raise ShapeError(
                f"a preconditioner of {rows} rows cannot meet vectors of shape "
                f"{tuple(vectors.shape)}; expected ({rows},) or (..., {rows}, c)"
            )
        if vectors.dtype != self.dtype or vectors.device != self.device:
            raise DTypeError(
                f"the preconditioner is {self.dtype} on {self.device}, the vectors {vectors.dtype} "
                f"on {vectors.device}; convert one of them"
            )
