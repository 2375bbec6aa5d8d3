"""The kernel matrix as a lazy operator: products and their gradients in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from linear_operator import LinearOperator
from torch import Tensor, nn
from torch.func import functional_call

from gpx.backends import DEFAULT_BUDGET, row_chunks, rows_per_chunk

if TYPE_CHECKING:
    from gpx.kernels.base import Kernel

_TEMPORARIES = 4  # matrices of the size of a chunk alive at once, with gradients


class KernelMatrix(LinearOperator):
    """K with K_ij = k(x1_i, x2_j), (n1, n2), never stored unless ``to_dense`` asks.

    Build it with ``kernel(x1, x2)``. The kernel's parameters travel as tensor arguments, so that
    gradients reach them through every operation of ``linear_operator``.

    Cost: matmul with c columns O(n1 n2 (d + c)) time; memory min(n1 n2, ``memory_budget``), forward
    and backward (chunks are recomputed for the gradient; a square matrix evaluates each
    off-diagonal chunk once for both triangles). Diagonal O(n d). Row access O(n2 d) per row.
    Solve and logdet: the package's defaults (dense Cholesky to 800 rows, then CG); use
    ``gpx.linalg`` where the result must be certified. First derivatives only.

    Attributes:
        backend: "dense" when products fit the budget in one piece, else "chunked".
    """

    def __init__(
        self,
        x1: Tensor,
        x2: Tensor,
        *parameters: Tensor,
        kernel: Kernel,
        names: tuple[str, ...],
        square: bool,
        memory_budget: int = DEFAULT_BUDGET,
    ) -> None:
        super().__init__(
            x1,
            x2,
            *parameters,
            kernel=kernel,
            names=names,
            square=square,
            memory_budget=memory_budget,
        )
        self.x1, self.x2, self.parameters = x1, x2, parameters
        self.kernel, self.names, self.square = kernel, names, square
        self.memory_budget = memory_budget

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        x1: Tensor,
        x2: Tensor | None = None,
        *,
        memory_budget: int = DEFAULT_BUDGET,
    ) -> KernelMatrix:
        """The matrix of ``kernel`` at x1 (n1, d) and x2 (n2, d), or square at x1 alone."""
        named = dict(kernel.named_parameters())
        square = x2 is None or x2 is x1
        return cls(
            x1,
            x1 if x2 is None else x2,
            *named.values(),
            kernel=kernel,
            names=tuple(named),
            square=square,
            memory_budget=memory_budget,
        )

    @property
    def backend(self) -> str:
        """How products are computed: "dense" (one chunk) or "chunked"."""
        return "dense" if self.chunk_rows >= self.x1.shape[-2] else "chunked"

    @property
    def chunk_rows(self) -> int:
        """Rows evaluated at a time."""
        return rows_per_chunk(self.x1.shape[-2], self._bytes_per_row(), self.memory_budget)

    def _bytes_per_row(self) -> int:
        return _TEMPORARIES * self.x2.shape[-2] * self.x2.element_size()

    def _chunks(self) -> Iterator[slice]:
        return row_chunks(self.x1.shape[-2], self._bytes_per_row(), self.memory_budget)

    def _evaluate(self, x1: Tensor, x2: Tensor | None, parameters: tuple[Tensor, ...]) -> Tensor:
        return _call(self.kernel, "evaluate", self.names, parameters, (x1, x2))

    # --- the contract of linear_operator -----------------------------------------------------

    def _size(self) -> torch.Size:
        return torch.Size((self.x1.shape[-2], self.x2.shape[-2]))

    def _transpose_nonbatch(self) -> KernelMatrix:
        if self.square:
            return self
        return self._rebuild(self.x2, self.x1)

    def _rebuild(self, x1: Tensor, x2: Tensor, *, square: bool = False) -> KernelMatrix:
        return KernelMatrix(
            x1,
            x2,
            *self.parameters,
            kernel=self.kernel,
            names=self.names,
            square=square,
            memory_budget=self.memory_budget,
        )

    def _matmul(self, rhs: Tensor) -> Tensor:
        block = rhs.unsqueeze(-1) if rhs.ndim == 1 else rhs
        out = block.new_zeros(*block.shape[:-2], self.x1.shape[-2], block.shape[-1])
        for rows, columns in self._tiles():
            tile = self._tile(self.x1, self.x2, self.parameters, rows, columns)
            out[..., rows, :] += tile @ block[..., columns, :]
            if self.square and columns != rows:
                out[..., columns, :] += tile.mT @ block[..., rows, :]
        return out.squeeze(-1) if rhs.ndim == 1 else out

    def _tiles(self) -> Iterator[tuple[slice, slice]]:
        """Row and column slices to evaluate; a square matrix needs its upper triangle only."""
        n1, n2 = self.x1.shape[-2], self.x2.shape[-2]
        for rows in self._chunks():
            if not self.square:
                yield rows, slice(0, n2)
                continue
            yield rows, rows
            if rows.stop < n1:
                yield rows, slice(rows.stop, n1)

    def _tile(
        self, x1: Tensor, x2: Tensor, parameters: tuple[Tensor, ...], rows: slice, columns: slice
    ) -> Tensor:
        if self.square:
            inputs = None if rows == columns else x1[columns]
            return self._evaluate(x1[rows], inputs, parameters)
        return self._evaluate(x1[rows], x2[columns], parameters)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        """Gradient of sum_c left_c^T K right_c, one recomputed tile at a time."""
        left = left_vecs.unsqueeze(-1) if left_vecs.ndim == 1 else left_vecs
        right = right_vecs.unsqueeze(-1) if right_vecs.ndim == 1 else right_vecs
        left, right = _fold(left), _fold(right)
        sources = [t.detach().requires_grad_(t.requires_grad) for t in self._args]
        wanted = [t for t in sources if t.requires_grad]
        totals = [torch.zeros_like(t) for t in wanted]
        if wanted:
            x1, x2, parameters = sources[0], sources[1], tuple(sources[2:])
            for rows, columns in self._tiles():
                with torch.enable_grad():
                    tile = self._tile(x1, x2, parameters, rows, columns)
                weights = left[rows] @ right[columns].mT
                if self.square and columns != rows:
                    weights.addmm_(right[rows], left[columns].mT)
                found = torch.autograd.grad(tile, wanted, weights, allow_unused=True)
                for total, gradient in zip(totals, found, strict=True):
                    if gradient is not None:
                        total += gradient
        remaining = iter(totals)
        return tuple(next(remaining) if t.requires_grad else None for t in sources)

    def _diagonal(self) -> Tensor:
        if self.square:
            return _call(self.kernel, "diagonal", self.names, self.parameters, (self.x1,))
        n = min(self._size())
        return self._pairs(self.x1[:n], self.x2[:n])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, columns = torch.broadcast_tensors(row_index, col_index)
        found = self._pairs(self.x1[rows.reshape(-1)], self.x2[columns.reshape(-1)])
        return found.reshape(rows.shape)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        """Rows and columns of a kernel matrix are a kernel matrix: nothing is evaluated."""
        return self._rebuild(self.x1[row_index], self.x2[col_index])

    def _pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        return _call(self.kernel, "pairs", self.names, self.parameters, (x1, x2))

    def to_dense(self) -> Tensor:
        """The matrix itself, (n1, n2), differentiable; the only method that stores it."""
        return self._evaluate(self.x1, None if self.square else self.x2, self.parameters)


class _Evaluation(nn.Module):
    """A method of a kernel as a module's forward, which is what ``functional_call`` can call."""

    def __init__(self, kernel: nn.Module, method: str) -> None:
        super().__init__()
        self.kernel, self.method = kernel, method

    def forward(self, *args: Tensor | None) -> Tensor:
        return getattr(self.kernel, self.method)(*args)


def _call(
    kernel: nn.Module,
    method: str,
    names: tuple[str, ...],
    parameters: tuple[Tensor, ...],
    args: tuple[Tensor | None, ...],
) -> Tensor:
    """``kernel.method(*args)`` with the given tensors in the place of its parameters."""
    values = {f"kernel.{name}": value for name, value in zip(names, parameters, strict=True)}
    return functional_call(_Evaluation(kernel, method), values, args)


def _fold(vectors: Tensor) -> Tensor:
    """(..., n, c) -> (n, all the others): batches of vectors are just more columns."""
    return vectors.movedim(-2, 0).reshape(vectors.shape[-2], -1)
