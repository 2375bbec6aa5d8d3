"""The dense backend: the matrix is stored once and used for every product."""

from __future__ import annotations

from torch import Tensor

from gpx.backends.chunked import Chunked
from gpx.backends.entries import Entries
from gpx.linalg.prepared import Prepared
from gpx.linalg.thin_products import thin_product

BUDGET_RATIO = 2
"""The stored matrix may take the budget divided by this; vectors and tiles need the rest."""


class Dense:
    """Products with a stored matrix, which is recomputed when one of its tensors changes.

    Cost: O(n1 n2 d) once, then O(n1 n2 c) per product with c columns; n1 n2 numbers of memory.
    Gradients are computed tile by tile, as in ``Chunked``.

    Args:
        memory_budget: bytes that tiles may occupy beside the matrix.
    """

    def __init__(self, memory_budget: int) -> None:
        self._chunked = Chunked(memory_budget)
        self._prepared = Prepared()

    def product(self, entries: Entries, right: Tensor, *, transposed: bool) -> Tensor:
        """K @ right (n2, c), or K^T @ right (n1, c); not differentiable."""
        values = self.stored(entries)
        return thin_product(values.mT if transposed else values, right, symmetric=entries.square)

    def derivative(
        self, entries: Entries, left: Tensor, right: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradient of sum_c left_c^T K right_c for every tensor of ``entries``."""
        return self._chunked.derivative(entries, left, right)

    def stored(self, entries: Entries) -> Tensor:
        """K itself (n1, n2), recomputed if a tensor of ``entries`` has changed."""
        return self._prepared.get("matrix", entries.tensors, lambda: self._chunked.matrix(entries))
