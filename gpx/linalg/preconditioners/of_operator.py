"""Any operator with a direct solve as a preconditioner: circulants, Kronecker products, grids."""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.errors import ConfigError, ShapeError
from gpx.linalg.preconditioners.base import Preconditioner


class OperatorPreconditioner(Preconditioner):
    """Q given by an operator that solves exactly, such as a circulant.

    Args:
        operator (n, n): its ``solve`` and ``logdet`` must be direct (not iterative themselves: CG
            needs the same Q at every step).
        root: an operator R with Q = R R^T that multiplies and solves (for a circulant its ``sqrt``,
            symmetric); without it the root methods raise ConfigError.
        below_kernel: whether Q <= K is known; not so for circulant approximations.
    """

    def __init__(
        self,
        operator: LinearOperator,
        *,
        root: LinearOperator | None = None,
        below_kernel: bool = False,
    ) -> None:
        if len(operator.shape) != 2 or operator.shape[0] != operator.shape[1]:
            raise ShapeError(f"a preconditioner must be (n, n), got {tuple(operator.shape)}")
        self.operator, self.root, self.below_kernel = operator, root, below_kernel

    @property
    def shape(self) -> torch.Size:
        """(n, n)."""
        return self.operator.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the operator."""
        return self.operator.dtype

    @property
    def device(self) -> torch.device:
        """Of the operator."""
        return self.operator.device

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors."""
        return self.operator @ vectors

    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors."""
        return self.operator.solve(vectors)

    def logdet(self) -> Tensor:
        """log det Q."""
        return self.operator.logdet()

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """R times vectors."""
        return self._root() @ vectors

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """R^{-1} times vectors, or R^{-T} times them."""
        root = self._root()
        return (root.mT if transpose else root).solve(vectors)

    def _root(self) -> LinearOperator:
        if self.root is None:
            raise ConfigError(
                f"no root of {type(self.operator).__name__} was given; pass root=operator.sqrt() "
                "where the operator has one"
            )
        return self.root
