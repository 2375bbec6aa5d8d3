"""Sparse interpolation matrices: a few weights per row."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.errors import DTypeError, ShapeError
from gpx.linalg.interpolation import Boundary, Method, Outside, RegularAxis, interpolate
from gpx.linalg.prepared import Prepared
from gpx.operators.algebra import Index, combine, rule
from gpx.operators.structured import Structured, as_columns


class Interpolation(Structured):
    """W (n, m) with q entries per row, W[i, indices[i, k]] += values[i, k].

    Build it from inputs with ``Interpolation.of``. Products use compressed rows of W and of W^T,
    made on first use and kept in ``plan``.

    Args:
        values (..., n, q): weights, differentiable.
        indices (..., n, q): int64 columns; same batch shape.
        num_columns: m.
        plan: cache of the compressed forms; a new one by default.

    Cost: product either way O(n q) time per column, O(n q + m) memory. Rows are free: indexing them
    slices values and indices. Columns and elements by comparing indices, O(q) each.

    Source: Hultin thesis, section 3.2.1.
    """

    def __init__(
        self, values: Tensor, indices: Tensor, *, num_columns: int, plan: Prepared | None = None
    ) -> None:
        self.plan = Prepared() if plan is None else plan
        super().__init__(values, indices, num_columns=num_columns, plan=self.plan)
        self.values, self.indices, self.num_columns = values, indices, num_columns
        if values.ndim < 2 or values.shape != indices.shape:
            raise ShapeError(
                f"interpolation values {tuple(values.shape)} and indices {tuple(indices.shape)} "
                "must both be (..., n, q)"
            )
        if not values.is_floating_point() or indices.dtype != torch.long:
            raise DTypeError(
                f"interpolation needs floating values and int64 indices, got {values.dtype} and "
                f"{indices.dtype}"
            )

    @classmethod
    def of(
        cls,
        x: Tensor,
        axes: Sequence[RegularAxis | Tensor],
        *,
        method: Method = "cubic",
        boundary: Boundary = "margin",
        outside: Outside = "error",
    ) -> Interpolation:
        """The matrix that interpolates values on the grid of ``axes`` to inputs x (n, d).

        Options, errors and cost: ``gpx.linalg.interpolate``. Differentiable in x.
        """
        indices, values = interpolate(x, axes, method=method, boundary=boundary, outside=outside)
        sizes = [len(axis) for axis in axes]
        return cls(values, indices, num_columns=torch.Size(sizes).numel())

    # --- the contract of linear_operator -----------------------------------------------------

    def _size(self) -> torch.Size:
        return torch.Size((*self.values.shape[:-1], self.num_columns))

    def _transpose_nonbatch(self) -> LinearOperator:
        return InterpolationTranspose(self)

    def _multiply(self, right: Tensor) -> Tensor:
        return self._by_batch(right, forward=True)

    def _t_multiply(self, right: Tensor) -> Tensor:
        return self._by_batch(right, forward=False)

    def _by_batch(self, block: Tensor, *, forward: bool) -> Tensor:
        """One sparse product: batches of the block become columns, batches of W blocks of rows."""
        batch = self.values.shape[:-2]
        name = "rows" if forward else "columns"
        matrix = self.plan.get(name, self._args, self._rows if forward else self._columns)
        if not batch and block.ndim == 2:
            if block.is_cpu and block.shape[1] > 1 and block.stride(0) == 1:
                # of columns: a result by rows would cost two more passes that rearrange entries
                out = block.new_empty(block.shape[1], matrix.shape[0]).mT
                return torch.mm(matrix, block, out=out)
            return matrix @ block
        if not batch.numel() > 1:  # one matrix: fold every batch of the block into columns
            folded = block.movedim(-2, 0)
            out = matrix @ folded.reshape(block.shape[-2], -1)
            out = out.reshape(-1, *folded.shape[1:]).movedim(0, -2)
            return out.expand(*torch.broadcast_shapes(batch, out.shape[:-2]), *out.shape[-2:])
        full = torch.broadcast_shapes(batch, block.shape[:-2])
        extra = full[: len(full) - len(batch)]
        if full[len(extra) :] != batch:  # the matrices themselves repeat
            return self._expand_batch(full)._by_batch(block, forward=forward)
        block = block.expand(*full, *block.shape[-2:])
        rows, c = block.shape[-2:]
        folded = block.reshape(extra.numel(), batch.numel() * rows, c).movedim(0, -1)
        out = matrix @ folded.reshape(batch.numel() * rows, c * extra.numel())
        out = out.reshape(*batch, -1, c, extra.numel()).movedim(-1, 0)
        return out.reshape(*full, *out.shape[-2:])

    def _flat(self) -> tuple[Tensor, Tensor, int]:
        """Values and indices as one block-diagonal matrix of two dimensions."""
        blocks = self.values.shape[:-2].numel()
        values, indices = self.values.detach(), self.indices
        if indices.numel():  # sparse products do not check, and would read outside the vector
            low, high = torch.stack(indices.aminmax()).tolist()
            if low < 0 or high >= self.num_columns:
                raise ShapeError(
                    f"interpolation indices from {low} to {high} do not fit {self.num_columns} "
                    "columns"
                )
        if blocks > 1:
            offset = self.num_columns * torch.arange(blocks, device=indices.device)
            indices = indices + offset.view(*self.values.shape[:-2], 1, 1)
        q = values.shape[-1]
        rows = blocks * values.shape[-2]
        return values.reshape(rows, q), indices.reshape(rows, q), blocks * self.num_columns

    def _rows(self) -> Tensor:
        values, indices, m = self._flat()
        n, q = values.shape
        starts = torch.arange(0, n * q + 1, max(q, 1), device=values.device)[: n + 1]
        return _compressed(starts, indices.reshape(-1), values.reshape(-1), (n, m))

    def _columns(self) -> Tensor:
        values, indices, m = self._flat()
        n, q = values.shape
        flat = indices.reshape(-1)
        order = torch.argsort(flat, stable=True)
        starts = torch.zeros(m + 1, dtype=torch.long, device=values.device)
        torch.cumsum(torch.bincount(flat, minlength=m), 0, out=starts[1:])
        return _compressed(starts, order // max(q, 1), values.reshape(-1)[order], (m, n))

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        """Gradient of sum_c left_c^T W right_c: left at the row times right at the column."""
        if not self.values.requires_grad:
            return None, None
        left, right = as_columns(left_vecs, right_vecs)
        total = torch.zeros_like(self.values)
        for c in range(right.shape[-1]):
            picked = _pick(right[..., c], self.indices)
            total += (left[..., c].unsqueeze(-1) * picked).sum_to_size(self.values.shape)
        return total, None

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        place = (*batch_indices, row_index)
        found = self.indices[place] == col_index.unsqueeze(-1)
        values = self.values[place]
        return torch.where(found, values, torch.zeros_like(values)).sum(-1)

    def to_dense(self) -> Tensor:
        """The matrix itself, (..., n, m), differentiable."""
        empty = self.values.new_zeros(self._size())
        return empty.scatter_add(-1, self.indices, self.values)


class InterpolationTranspose(Structured):
    """W^T (m, n) of an ``Interpolation``; transposing again gives W back."""

    def __init__(self, base: Interpolation) -> None:
        super().__init__(base)
        self.base = base

    def _size(self) -> torch.Size:
        *batch, n, m = self.base._size()
        return torch.Size((*batch, m, n))

    def _transpose_nonbatch(self) -> Interpolation:
        return self.base

    def _multiply(self, right: Tensor) -> Tensor:
        return self.base._t_multiply(right)

    def _t_multiply(self, right: Tensor) -> Tensor:
        return self.base._multiply(right)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        return self.base._bilinear_derivative(right_vecs, left_vecs)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        return self.base._get_indices(col_index, row_index, *batch_indices)

    def to_dense(self) -> Tensor:
        """The matrix itself, (..., m, n), differentiable."""
        return self.base.to_dense().mT


@rule("select", Interpolation, Index)
def _(operator: Interpolation, index: Index) -> LinearOperator | None:
    """Rows stay an interpolation: only weights are picked."""
    if index.rows is None or index.columns is not None:
        return None
    values, indices = (t.index_select(-2, index.rows) for t in operator._broadcast_args())
    return Interpolation(values, indices, num_columns=operator.num_columns)


@rule("select", InterpolationTranspose, Index)
def _(operator: InterpolationTranspose, index: Index) -> LinearOperator | None:
    found = combine("select", operator.base, Index(index.columns, index.rows))
    return None if found is None else found._transpose_nonbatch()


def _compressed(starts: Tensor, place: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    if max(*shape, values.numel()) < 2**31:  # narrower indices are a third faster
        starts, place = starts.int(), place.int()
    return torch.sparse_csr_tensor(
        starts, place, values.contiguous(), size=shape, check_invariants=False
    )


with warnings.catch_warnings():
    # torch says once in a process that compressed rows are in beta state. Heard here, it needs no
    # filter where matrices are made, which would change those of other threads.
    warnings.simplefilter("ignore", UserWarning)
    _single = torch.zeros(1, device="cpu")
    _compressed(torch.tensor([0, 1], device="cpu"), _single.long(), _single, (1, 1))


def _pick(vector: Tensor, indices: Tensor) -> Tensor:
    """vector (..., m) at indices (..., n, q)."""
    if indices.ndim == 2:
        return vector[..., indices]
    batch = torch.broadcast_shapes(vector.shape[:-1], indices.shape[:-2])
    flat = indices.expand(*batch, *indices.shape[-2:]).flatten(-2)
    found = vector.expand(*batch, vector.shape[-1]).gather(-1, flat)
    return found.unflatten(-1, indices.shape[-2:])
