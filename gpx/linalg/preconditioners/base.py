"""What every preconditioner gives."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Preconditioner(ABC):
    """A symmetric positive definite matrix Q (n, n) near K, cheap to invert.

    It is built once and not differentiated; all methods take vectors (n,) or (n, c) and return the
    same shape. R is a square root in the sense Q = R R^T; it is symmetric where the class says so.

    Attributes:
        below_kernel: whether Q <= K is known (as an order of positive semi-definite matrices), so
            that r^T Q^{-1} r certifies an error (``EvidenceBound``, ``PosteriorMeanError``) and 1
            is a lower bound of the spectrum of R^{-1} K R^{-T}.
    """

    below_kernel: bool = False

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """(n, n)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the vectors it takes."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Of the vectors it takes."""

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

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """``count`` draws of N(0, Q) as columns, (n, count): R times standard normals."""
        normals = torch.randn(
            self.shape[0], count, dtype=self.dtype, device=self.device, generator=generator
        )
        return self.root_matmul(normals)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Same as ``solve``, so that a preconditioner is the callable CG asks for."""
        return self.solve(vectors)
