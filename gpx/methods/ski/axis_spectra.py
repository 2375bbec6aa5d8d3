"""Eigenvectors of the axes of a Kronecker product, and products through them.

Matrices of smooth kernels on fine axes have far fewer eigenvalues above rounding than points.
Products through the eigenvectors of these then need far fewer operations, at the same accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.linalg.kronecker import kronecker_matmul, kronecker_vector

MIN_RELATIVE_EIGENVALUE = 1e-15
"""Eigenvalues of an axis below this share of its largest are dropped as rounding."""
NARROW_SHARE = 0.5
"""Largest ratio of eigenvectors to points for which products through eigenvectors are cheaper."""


@dataclass(frozen=True)
class AxisSpectra:
    """Eigenvalues (c_l,) above rounding, descending, and their eigenvectors (m_l, c_l), by axis."""

    values: tuple[Tensor, ...]
    vectors: tuple[Tensor, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, axes: Sequence[Tensor]) -> AxisSpectra:
        """Eigendecomposition of symmetric matrices (m_l, m_l).

        Cost: 10 m_l^3 operations per axis, a quarter of it on equidistant points.
        """
        values, vectors = [], []
        for matrix in axes:
            found, basis = symmetric_eigh(matrix.detach())
            kept = (found > MIN_RELATIVE_EIGENVALUE * found[0]).nonzero().squeeze(1)
            values.append(found[kept])
            vectors.append(basis[:, kept])
        return cls(tuple(values), tuple(vectors))

    @property
    def narrow(self) -> bool:
        """Whether products through the eigenvectors are cheaper than dense ones."""
        return all(v.shape[1] <= NARROW_SHARE * v.shape[0] for v in self.vectors)

    @torch.no_grad()
    def matmul(self, block: Tensor) -> Tensor:
        """(A_1 x ... x A_d) times (m, c).

        Cost: 4 m c_1 + ... multiply-adds per column.
        """
        low = kronecker_matmul([v.mT for v in self.vectors], block)
        low = low * kronecker_vector(self.values).unsqueeze(1)
        return kronecker_matmul(self.vectors, low)

    @torch.no_grad()
    def gradients(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """Gradient of sum_c left_c^T (A_1 x ... x A_d) right_c (m, c) by every A_l.

        The other axes are contracted through their eigenvectors.
        """
        count, sizes = left.shape[1], [len(v) for v in self.vectors]
        blocks = [b.mT.reshape(count, *sizes) for b in (left, right)]
        found = []
        for axis in range(len(sizes)):
            a, b = blocks
            for other, (v, own) in enumerate(zip(self.vectors, self.values, strict=True)):
                if other != axis:
                    a, b = _along(a, v * own, other + 1), _along(b, v, other + 1)
            a, b = (t.movedim(axis + 1, 0).reshape(sizes[axis], -1) for t in (a, b))
            found.append(a @ b.mT)
        return found


def _along(block: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """Multiply one axis of a block by a matrix (m_l, c_l)."""
    return (block.movedim(dim, -1) @ matrix).movedim(-1, dim)


def symmetric_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (m,), descending, and eigenvectors (m, m) of a symmetric matrix.

    A centrosymmetric matrix, such as that of a stationary kernel on equidistant points, has
    symmetric or antisymmetric eigenvectors, and is solved as two problems of half the size. The
    returned eigenvectors are then exactly symmetric or antisymmetric.
    """
    m, half = len(matrix), len(matrix) // 2
    if half == 0 or not torch.equal(matrix, matrix.flip(0, 1)):
        values, vectors = torch.linalg.eigh(matrix)
        return values.flip(0), vectors.flip(1)
    corner, across = matrix[:half, :half], matrix[:half, m - half :].flip(1)
    even, odd = corner + across, corner - across
    if m % 2:
        middle = math.sqrt(2.0) * matrix[:half, half : half + 1]
        last = torch.cat([middle.mT, matrix[half : half + 1, half : half + 1]], 1)
        even = torch.cat([torch.cat([even, middle], 1), last])
    parts = []
    for part, sign in ((even, 1.0), (odd, -1.0)):
        values, vectors = torch.linalg.eigh(part)
        top = vectors[:half] / math.sqrt(2.0)
        centre = vectors[half:] if m % 2 and sign > 0.0 else vectors.new_zeros(m % 2, len(values))
        parts.append((values, torch.cat([top, centre, sign * top.flip(0)])))
    values = torch.cat([part[0] for part in parts])
    order = values.argsort(descending=True, stable=True)
    return values[order], torch.cat([part[1] for part in parts], 1)[:, order]


def parities(vectors: Tensor) -> Tensor | None:
    """1 for symmetric, -1 for antisymmetric columns of (m, c): (c,); None if any is neither."""
    back = vectors.flip(0)
    same, negated = (back == vectors).all(0), (back == -vectors).all(0)
    if not bool((same | negated).all()):
        return None
    return torch.where(same, 1, -1)
