"""A preconditioner from the sparse triangular factor of the prior of nearest-neighbour values."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import splu
from torch import Tensor

from gpx.linalg import Preconditioner
from gpx.linalg.preconditioners.diagonal import columns_times


class TriangularFactor:
    """I - B (m, m), whose row j has the weights of the values before j, and its inverse.

    Args:
        near (m, k), weights (m, k): as in ``ValuePrior``. No value may depend on itself by way of
            others, but any order of the values is taken.

    Cost: m k, on the CPU, once and for each product or solve.
    """

    def __init__(self, near: Tensor, weights: Tensor) -> None:
        m, k = near.shape
        rows = np.repeat(np.arange(m), k)
        entries = weights.detach().cpu().numpy().ravel()
        pairs = rows, near.cpu().numpy().ravel()
        given = sparse.csr_matrix((entries, pairs), shape=(m, m))
        given.eliminate_zeros()  # of absent neighbours
        self._order = _topological_order(given)
        self._places = np.argsort(self._order)
        lower = sparse.eye(m, format="csr") - given[self._order][:, self._order]
        # the factor of a triangular matrix is the matrix itself, and its solves are compiled
        self._lower = lower.tocsr()
        self._factor = splu(self._lower.tocsc(), permc_spec="NATURAL", diag_pivot_thresh=0.0)

    def matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """(I - B) or its transpose times vectors (m,) or (m, c), float64."""
        matrix = self._lower.T if transpose else self._lower
        return self._back(matrix @ self._ordered(vectors), vectors)

    def solve(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """The inverse of (I - B) or of its transpose times vectors (m,) or (m, c), float64."""
        found = self._factor.solve(self._ordered(vectors), trans="T" if transpose else "N")
        return self._back(found, vectors)

    def _ordered(self, vectors: Tensor) -> NDArray[np.float64]:
        return np.ascontiguousarray(vectors.detach().cpu().numpy()[self._order])

    def _back(self, found: NDArray[np.float64], like: Tensor) -> Tensor:
        return torch.from_numpy(found[self._places]).to(like)


class UpdatedPrior(Preconditioner):
    """Q = (I - B)^T diag(q) (I - B), for the precision of the prior plus a diagonal matrix.

    With q = 1 / r + d it replaces (I - B)^T diag(1 / r) (I - B) + diag(d). It differs little where
    d is below most 1 / r, which is what smooth kernels make of them, and where a diagonal
    preconditioner fails.

    Args:
        factor: I - B.
        diagonal (m,): q, positive, float64.

    Cost: m k for each solve.
    Source: Kündig and Sigrist 2025, the preconditioner VADU.
    """

    def __init__(self, factor: TriangularFactor, diagonal: Tensor) -> None:
        super().__init__(len(diagonal), diagonal.dtype, diagonal.device, below_kernel=False)
        self.factor, self.diagonal = factor, diagonal

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors."""
        scaled = columns_times(self.diagonal, self.factor.matmul(vectors))
        return self.factor.matmul(scaled, transpose=True)

    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors."""
        back = self.factor.solve(vectors, transpose=True)
        return self.factor.solve(columns_times(1.0 / self.diagonal, back))

    def logdet(self) -> Tensor:
        """log det Q."""
        return self.diagonal.log().sum()

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """R = (I - B)^T diag(q)^{1/2} times vectors."""
        return self.factor.matmul(columns_times(self.diagonal.sqrt(), vectors), transpose=True)

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """R^{-1} times vectors, or R^{-T} with ``transpose``."""
        root = self.diagonal.rsqrt()
        if transpose:
            return self.factor.solve(columns_times(root, vectors))
        return columns_times(root, self.factor.solve(vectors, transpose=True))


def _topological_order(given: sparse.csr_matrix) -> NDArray[np.int64]:
    """An order (m,) in which each row of ``given`` comes after the columns of its entries.

    Raises:
        ValueError: there is none.
    """
    waiting, later = np.diff(given.indptr), given.tocsc()
    ready, found = np.flatnonzero(waiting == 0), []
    while len(ready):
        found.append(ready)
        rows = later[:, ready].indices
        np.subtract.at(waiting, rows, 1)
        rows = np.unique(rows)
        ready = rows[waiting[rows] == 0]
    order = np.concatenate(found) if found else ready
    if len(order) < given.shape[0]:
        raise ValueError("values depend on each other in a circle")
    return order
