"""Batch dimensions, indexing, dtype and device of operators."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.errors import ConfigError, DTypeError, ShapeError
from gpx.operators.algebra import Index, combined
from gpx.operators.indexing import WHOLE, as_positions, checked_index


class BatchesAndEntries(LinearOperator):
    """Shapes and indices of an operator whose positional arguments carry the batch dimensions.

    These broadcast. A class whose arguments do not all have two further dimensions overrides
    ``_dims``.
    """

    def _name(self) -> str:
        return f"{type(self).__name__} of shape {tuple(self.shape)}"

    def _dims(self) -> tuple[int, ...]:
        """Number of trailing dimensions of each positional argument that are not batch."""
        return (2,) * len(self._args)

    def _broadcast_args(self, batch: torch.Size | None = None) -> list[Any]:
        """Positional arguments expanded to the common batch shape."""
        shape = self.batch_shape if batch is None else batch
        return [
            a.expand(torch.Size((*shape, *a.shape[a.ndim - dims :])))
            for a, dims in zip(self._args, self._dims(), strict=True)
        ]

    def _expand_batch(self, batch_shape: Any) -> LinearOperator:
        return type(self)(*self._broadcast_args(torch.Size(batch_shape)), **self._kwargs)

    def _permute_batch(self, *dims: int) -> LinearOperator:
        moved = [a.permute(*dims, *range(len(dims), a.ndim)) for a in self._broadcast_args()]
        return type(self)(*moved, **self._kwargs)

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return type(self)(*[a.unsqueeze(dim) for a in self._broadcast_args()], **self._kwargs)

    def repeat(self, *sizes: Any) -> LinearOperator:
        """Repeated along batch dimensions; an expansion where these have size one."""
        given = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        batch = (*(1,) * (len(given) - 2 - len(self.batch_shape)), *self.batch_shape)
        if given[-2:] != (1, 1) or len(given) != len(batch) + 2:
            raise ShapeError(
                f"{self._name()} can be repeated along batch dimensions only, {len(batch)} of them "
                f"or more and then (1, 1); got {given}"
            )
        pairs = list(zip(given, batch, strict=False))
        wide = self.expand(*[b if b > 1 else a for a, b in pairs], *self.shape[-2:])
        for dim, (times, size) in enumerate(pairs):
            if times != 1 and size != 1:
                again = torch.arange(size, device=self.device).repeat(times)
                before, after = (WHOLE,) * dim, (WHOLE,) * (len(pairs) - dim - 1)
                wide = wide._getitem(WHOLE, WHOLE, *before, again, *after)
        return wide

    def __getitem__(self, index: Any) -> Any:
        """Rows, columns, blocks and batch members by integer, slice, list, mask or positions.

        Raises:
            ShapeError, IndexOutOfRange: see ``gpx.operators.indexing.checked_index``.
        """
        index = checked_index(index, self.shape, self.device)
        tensors = [isinstance(i, Tensor) for i in index]
        wide = [i for i in index[-2:] if isinstance(i, Tensor) and i.ndim > 1]
        if wide and sum(tensors[-2:]) + any(tensors[:-2]) < 2:
            raise ShapeError(
                f"positions of shape {tuple(wide[0].shape)} on their own do not give rows of "
                f"{self._name()}; use a vector of positions"
            )
        return super().__getitem__(index)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        base = self
        if any(not isinstance(i, slice) or i != WHOLE for i in batch_indices):
            base = type(self)(*[a[batch_indices] for a in self._broadcast_args()], **self._kwargs)
        rows, columns = self.shape[-2:]
        index = Index(
            as_positions(row_index, rows, self.device),
            as_positions(col_index, columns, self.device),
        )
        if rows == columns and isinstance(row_index, slice) and row_index == col_index:
            index = Index(index.rows, index.rows)  # one tensor: a symmetric matrix stays one
        if index.rows is None and index.columns is None:
            return base
        return combined("select", base, index)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        """Entries, each from a product for its row; classes with cheaper entries override this."""
        rows, columns, *batch = torch.broadcast_tensors(row_index, col_index, *batch_indices)
        one = torch.zeros(self.shape[-2], rows.numel(), dtype=self.dtype, device=self.device)
        one[rows.reshape(-1), torch.arange(rows.numel(), device=self.device)] = 1.0
        found = self._transpose_nonbatch()._matmul(one)  # (..., N, entries)
        flat = tuple(b.reshape(-1) for b in batch)
        where = torch.arange(rows.numel(), device=self.device)
        at = (*flat, columns.reshape(-1), where)
        return found[at].reshape(rows.shape)

    def _diagonal(self) -> Tensor:
        """From the dense matrix; classes with a cheaper diagonal override this."""
        return self.to_dense().diagonal(dim1=-2, dim2=-1)

    def diagonal(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
        """The main diagonal, (..., min(N, M)).

        Raises:
            ShapeError: another diagonal, or other dimensions than the last two.
        """
        if offset != 0 or {dim1 % self.ndim, dim2 % self.ndim} != {self.ndim - 2, self.ndim - 1}:
            raise ShapeError(
                f"diagonal(offset={offset}, dim1={dim1}, dim2={dim2}) of {self._name()}: only the "
                "main diagonal of the last two dimensions is there; index the others, a[i, j]"
            )
        return self._diagonal()

    # --- dtypes, devices, graphs -----------------------------------------------------------------

    def detach_(self) -> LinearOperator:
        """Detached in place.

        Raises:
            ConfigError: a tensor is a view of another, which torch cannot detach in place.
        """
        if any(t._is_view() for t in self.representation()):
            raise ConfigError(f"{self._name()} holds views of other tensors; use detach()")
        return super().detach_()

    def type(self, dtype: torch.dtype) -> LinearOperator:
        """As ``to(dtype)``; ``float()``, ``double()`` and ``half()`` come here."""
        return self.to(dtype)

    def to(self, *args: Any, **kwargs: Any) -> LinearOperator:
        """Like ``Tensor.to``; indices stay integers.

        Raises:
            DTypeError: neither float32 nor float64.
        """
        device, dtype = self._destination(*args, **kwargs)

        def convert(a: Any) -> Any:
            if isinstance(a, Tensor) and not a.is_floating_point():
                return a.to(device)
            return a.to(dtype=dtype, device=device) if hasattr(a, "to") else a

        return type(self)(
            *[convert(a) for a in self._args], **{k: convert(v) for k, v in self._kwargs.items()}
        )

    def _destination(self, *args: Any, **kwargs: Any) -> tuple[torch.device, torch.dtype]:
        probe = torch.empty(0, dtype=self.dtype, device=self.device).to(*args, **kwargs)
        if probe.dtype not in (torch.float32, torch.float64):
            raise DTypeError(
                f"{self._name()} cannot be {probe.dtype}: operators compute in float32 and float64"
            )
        return probe.device, probe.dtype
