"""The dense backend: the matrix is stored once and serves every product."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.backends.entries import Entries, gradients

TEMPORARIES = 4
"""Matrices of full size alive at once while a gradient is computed."""


class Dense:
    """Products with a matrix kept in memory; its values are refreshed when a tensor changes.

    Cost: O(n1 n2 d) once, then O(n1 n2 c) per product of c columns; n1 n2 numbers, and
    ``TEMPORARIES`` times that during a gradient, which evaluates the matrix again.
    """

    def __init__(self) -> None:
        self._values: Tensor | None = None
        self._versions: list[int] = []

    def product(self, entries: Entries, right: Tensor, *, transposed: bool) -> Tensor:
        """K @ right (n2, c), or K^T @ right (n1, c); not differentiable."""
        values = self._stored(entries)
        return (values.mT if transposed else values) @ right

    def derivative(
        self, entries: Entries, left: Tensor, right: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradient of sum_c left_c^T K right_c for every tensor of ``entries``."""
        leaves = entries.leaves()
        with torch.enable_grad():
            matrix = leaves.evaluate()
        return gradients(leaves, matrix, left @ right.mT)

    def _stored(self, entries: Entries) -> Tensor:
        versions = [-1 if t.is_inference() else t._version for t in entries.tensors]
        if self._values is None or versions != self._versions or -1 in versions:
            with torch.no_grad():
                self._values = entries.evaluate()
            self._versions = versions
        return self._values
