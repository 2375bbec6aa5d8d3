"""The inverse of an operator that solves directly, as an operator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.operators.structured import Structured


class Inverse(Structured):
    """A^{-1}, (..., N, N), never formed: its products are solves of A, its solves products of A.

    For symmetric A with a cheap direct solve, such as ``KroneckerPlusDiagonal`` with a constant
    diagonal.

    Cost: a product one solve of A, a solve one product; logdet that of A.
    """

    def __init__(self, base: Structured) -> None:
        super().__init__(base)
        self.base, self.workspace = base, base.workspace

    def _size(self) -> torch.Size:
        return self.base._size()

    def _transpose_nonbatch(self) -> Inverse:
        return self

    def _product(self, right: Tensor) -> Tensor:
        return self.base._solution(right)

    def _rows_plan(self) -> Callable[[Tensor], Tensor]:
        return self.base._inverse_rows_plan()

    def _solution(self, right: Tensor) -> Tensor:
        return self.base._product(right)

    def _logdet(self) -> Tensor:
        return -self.base._logdet()
