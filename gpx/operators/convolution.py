"""Base class of Toeplitz, circulant and their multilevel forms: products by FFT convolution."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from gpx.errors import DTypeError
from gpx.linalg.fft_products import convolve, correlate, spectrum
from gpx.linalg.kronecker import flatten_index, split_index
from gpx.linalg.prepared import Prepared
from gpx.operators.algebra import Index, rule
from gpx.operators.dense_matrix import DenseMatrix
from gpx.operators.indexing import common_batch
from gpx.operators.structured import Structured, as_columns
from gpx.tensor_checks import check_alike

DENSE_ENTRIES = 1 << 14
"""Matrices of up to this many entries are multiplied densely: an FFT would be mostly overhead."""

LOOKUP_RATIO = 16
"""A block is looked up entry by entry if it has at most this many times the generator's entries."""


class Convolution(Structured):
    """A matrix whose entry (i, j) depends on the lag i - j alone, on a grid of one or more axes.

    Rows and columns of the matrix are the points of two grids in row-major order; lags are
    differences axis by axis. A subclass defines how its tensors fill a circular generator
    (``_generator``), how a gradient of that generator maps back to them (``_fold``), and the
    lengths (``grids``).

    Cost: product with c columns O(c a log a) time, 2 a numbers of memory per column (at most
    ``gpx.linalg.fft_products.COLUMN_BYTES`` at a time), a = product of the circular lengths; the
    generator's spectrum is made on first use and kept in ``plan``. Matrices of at most
    DENSE_ENTRIES entries are multiplied densely. Gradient: three FFTs. Diagonal and single
    entries O(1) each. Nothing is computed at construction. First derivatives only.
    """

    levels: int
    """Number of grid axes; the last ``levels`` axes of every tensor are the grid's."""

    def __init__(self, *tensors: Tensor, plan: Prepared | None = None, **options: Any) -> None:
        self.plan = Prepared() if plan is None else plan
        super().__init__(*tensors, plan=self.plan, **options)
        check_alike(f"the tensors of a {type(self).__name__}", *tensors)
        if not tensors[0].is_floating_point():
            raise DTypeError(
                f"{type(self).__name__} needs real floating numbers, got {tensors[0].dtype}"
            )

    @property
    @abstractmethod
    def grids(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Grid of the rows, grid of the columns and circular lengths, one entry per level."""

    @abstractmethod
    def _generator(self) -> Tensor:
        """Value at every lag, at position lag mod length: (..., *lengths), differentiable."""

    @abstractmethod
    def _fold(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradient of each positional tensor from that of the generator (..., *lengths)."""

    # --- the contract of linear_operator -----------------------------------------------------

    def _size(self) -> torch.Size:
        rows, columns, _ = self.grids
        batch = self._batch()
        return torch.Size((*batch, torch.Size(rows).numel(), torch.Size(columns).numel()))

    def _batch(self) -> torch.Size:
        if len(self._args) == 1:
            return self._args[0].shape[: -self.levels]
        shapes = (t.shape[: -self.levels] for t in self._args)
        return common_batch(*shapes, what=f"the tensors of a {type(self).__name__}")

    def _dims(self) -> tuple[int, ...]:
        return (self.levels,) * len(self._args)

    def _spectrum(self) -> Tensor:
        """Half spectrum of the generator, from the plan unless a gradient is to flow through it."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in self._args):
            return spectrum(self._generator(), self.levels)
        return self.plan.get(
            "spectrum", self._args, lambda: spectrum(self._generator(), self.levels)
        )

    def _multiply(self, right: Tensor) -> Tensor:
        with torch.no_grad():
            rows, columns, lengths = self.grids
            if self._small:
                return self.plan.get("dense", self._args, self.to_dense) @ right
            return convolve(self._spectrum(), right, lengths, columns, rows)

    def _t_multiply(self, right: Tensor) -> Tensor:
        """T^T right: the transposed convolution has the conjugate spectrum."""
        with torch.no_grad():
            rows, columns, lengths = self.grids
            if self._small:
                return self.plan.get("dense", self._args, self.to_dense).mT @ right
            return convolve(self._spectrum().conj(), right, lengths, rows, columns)

    def _t_matmul(self, rhs: Tensor | LinearOperator) -> Any:
        if not isinstance(rhs, Tensor) or rhs.ndim == 1 or torch.is_grad_enabled():
            return super()._t_matmul(rhs)
        return self._t_multiply(rhs)

    @property
    def _small(self) -> bool:
        shape = self._size()
        return shape[-1] * shape[-2] <= DENSE_ENTRIES

    def gradient(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        """Of sum_c left_c^T T right_c, per positional tensor: a correlation, by FFT.

        Args:
            left, right: (..., M, c) and (..., N, c).
        """
        rows, columns, lengths = self.grids
        found = self._fold(correlate(left, right, lengths, rows, columns))
        return tuple(g.sum_to_size(t.shape) for g, t in zip(found, self._args, strict=True))

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        if not any(t.requires_grad for t in self._args):
            return (None,) * len(self._args)
        left, right = as_columns(left_vecs, right_vecs)
        found = self.gradient(left, right)
        return tuple(g if t.requires_grad else None for g, t in zip(found, self._args, strict=True))

    def _lag_index(self, row: Tensor, column: Tensor) -> Tensor:
        """Flat position in the generator of the lag between matrix rows and columns."""
        rows, columns, lengths = self.grids
        places = zip(split_index(row, rows), split_index(column, columns), lengths, strict=True)
        return flatten_index([(i - j) % length for i, j, length in places], lengths)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        place = (*batch_indices, self._lag_index(row_index, col_index))
        return self._generator().flatten(-self.levels)[place]

    def _diagonal(self) -> Tensor:
        # every tensor of every subclass holds lag zero in its first entry
        zero = self._args[0].flatten(-self.levels)[..., :1]
        return zero.expand(*self._batch(), min(self.matrix_shape))

    def to_dense(self) -> Tensor:
        """The matrix itself, (..., M, N): windows of the lags, axis by axis; differentiable."""
        rows, columns, lengths = self.grids
        d, out = self.levels, self._generator()
        for axis, (m, n, a) in enumerate(zip(rows, columns, lengths, strict=True)):
            # out: lags of the axes still to come, then a row and a column axis per axis done
            dim = -d - axis
            lags = [out.narrow(dim, 0, m).flip(dim), out.narrow(dim, a - n + 1, n - 1).flip(dim)]
            # lags m - 1 .. 0, -1 .. -(n - 1); window i from the end is row i
            out = torch.cat(lags, dim).unfold(dim, n, 1).flip(dim - 1)
            out = out.movedim(dim - 1, -2)
        if d > 1:
            batch = out.ndim - 2 * d
            order = [*range(batch), *range(batch, out.ndim, 2), *range(batch + 1, out.ndim, 2)]
            out = out.permute(order).flatten(-d).flatten(-d - 1, -2)
        return out

    def _rebuilt(self, *tensors: Tensor) -> Any:
        """The same kind of matrix from other tensors, with a plan of its own."""
        return self.__class__(*tensors, **{**self._nondifferentiable_kwargs, "plan": None})

    def _sum_batch(self, dim: int) -> LinearOperator:
        return self._rebuilt(*(t.sum(dim) for t in self._broadcast_args()))

    def _scaled(self, factor: Tensor) -> Convolution:
        factor = factor.reshape(*factor.shape, *(1,) * self.levels)
        return self._rebuilt(*(t * factor for t in self._args))

    def _shifted(self, amount: Tensor) -> Convolution:
        """This matrix plus ``amount`` (a scalar, or one per batch member) times the identity."""
        first = self._args[0]
        pick = torch.zeros(first.shape[-self.levels :], dtype=first.dtype, device=first.device)
        pick.view(-1)[0] = 1.0
        amount = amount.reshape(*amount.shape, *(1,) * self.levels)
        return self._rebuilt(first + amount * pick, *self._args[1:])


@rule("select", Convolution, Index)
def _(operator: Convolution, index: Index) -> LinearOperator | None:
    """Few rows or columns are looked up, O(1) per entry, instead of multiplied out."""
    device = operator.device
    rows, columns = (
        torch.arange(size, device=device) if chosen is None else chosen
        for chosen, size in zip(index, operator.matrix_shape, strict=True)
    )
    most = max(DENSE_ENTRIES, LOOKUP_RATIO * torch.Size(operator.grids[2]).numel())
    if rows.numel() * columns.numel() > most:
        return None
    where = operator._lag_index(rows.unsqueeze(-1), columns)
    return DenseMatrix(operator._generator().flatten(-operator.levels)[..., where])


@rule("scale", Convolution, Tensor)
def _(operator: Convolution, factor: Tensor) -> LinearOperator:
    return operator._scaled(factor)


@rule("add", Convolution, ConstantDiagLinearOperator)
def _(operator: Convolution, diagonal: ConstantDiagLinearOperator) -> LinearOperator | None:
    """Noise is a change of lag zero."""
    return operator._shifted(diagonal.diag_values.squeeze(-1)) if operator.is_square else None


@rule("add", Convolution, Convolution)
def _(left: Convolution, right: Convolution) -> LinearOperator | None:
    """Two of one kind and shape stay one."""
    if not _same_layout(left, right):
        return None
    return left._rebuilt(*(a + b for a, b in zip(left._args, right._args, strict=True)))


@rule("mul", Convolution, Convolution)
def _(left: Convolution, right: Convolution) -> LinearOperator | None:
    """Two of one kind and shape multiply lag by lag."""
    if not _same_layout(left, right):
        return None
    return left._rebuilt(*(a * b for a, b in zip(left._args, right._args, strict=True)))


def _same_layout(left: Convolution, right: Convolution) -> bool:
    same = type(left) is type(right) and len(left._args) == len(right._args)
    return (
        same
        and left.grids == right.grids
        and all(
            a.shape[-left.levels :] == b.shape[-left.levels :]
            for a, b in zip(left._args, right._args, strict=True)
        )
    )
