"""The kernel matrix as a lazy operator: products and their gradients without the matrix."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.backends import (
    DEFAULT_BUDGET,
    BackendName,
    Choice,
    Chunked,
    CovarianceFunction,
    Dense,
    Engine,
    Entries,
    KeOps,
    Sharded,
    Triton,
    choose_backend,
    is_shared,
    own_rows,
)
from gpx.errors import DTypeError, ShapeError
from gpx.linalg import halved_until_it_fits
from gpx.linalg.matmul import kernel_precision
from gpx.linalg.processes import ALONE, Processes, sharing
from gpx.operators.algebra import Index, rule
from gpx.operators.indexing import as_positions
from gpx.operators.structured import Structured, as_columns

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

NO_BATCH = torch.Size()


class KernelMatrix(Structured):
    """K with K_ij = k(x1_i, x2_j), (n1, n2), lazy.

    Build it with ``kernel(x1, x2)``. The kernel's parameters are tensor arguments, so that
    gradients reach them through every operation of ``linear_operator``.

    Cost: matmul with c columns O(n1 n2 (d + c)) time, its gradient about four times that; memory
    within ``memory_budget``, forward and backward (tiles are recomputed for the gradient), unless
    ``backend="dense"`` was given. Diagonal O(n d); entries O(d) each. Rows, columns and blocks are
    kernel matrices again, evaluated lazily. Solve and logdet: see ``Structured``. First derivatives
    only.

    Args:
        x1 (n1, d), x2 (n2, d): inputs of rows and columns.
        parameters: values of the kernel's parameters.
        kernel: its structure and buffers are used, not its parameters.
        names: dotted names of the parameters, in order.
        square: x2 is x1: only x1 is used; symmetric, with an exact diagonal.
        memory_budget: bytes that products may hold beside vectors.
        backend: "dense", "chunked", "keops" or "triton"; None chooses.
        batch: leading dimensions along which the one matrix is repeated.

    Attributes:
        choice: the backend taken, and why.
    """

    def __init__(
        self,
        x1: Tensor,
        x2: Tensor,
        *parameters: Tensor,
        kernel: CovarianceFunction,
        names: tuple[str, ...],
        square: bool,
        memory_budget: int = DEFAULT_BUDGET,
        backend: BackendName | None = None,
        batch: torch.Size = NO_BATCH,
    ) -> None:
        super().__init__(
            x1,
            x2,
            *parameters,
            kernel=kernel,
            names=names,
            square=square,
            memory_budget=memory_budget,
            backend=backend,
            batch=batch,
        )
        self.batch = batch
        self.entries = Entries(kernel, names, parameters, x1, x2, square)
        self.memory_budget, self.requested = memory_budget, backend
        self._choice: Choice | None = None
        self._engine: Engine | None = None
        self._processes = ALONE

    @classmethod
    def of(
        cls,
        kernel: CovarianceFunction,
        x1: Tensor,
        x2: Tensor | None = None,
        *,
        memory_budget: int = DEFAULT_BUDGET,
        backend: BackendName | None = None,
    ) -> KernelMatrix:
        """The matrix of ``kernel`` at x1 (n1, d) and x2 (n2, d), or square at x1 alone.

        Raises:
            ShapeError, DTypeError: inputs and parameters do not fit each other.
            ConfigError, BackendUnavailable: see ``gpx.backends.choose_backend``.
        """
        named = dict(kernel.named_parameters())
        square = x2 is None or x2 is x1
        second = x1 if x2 is None else x2
        _check(kernel, x1, second, tuple(named.values()))
        made = cls(
            x1,
            second,
            *named.values(),
            kernel=kernel,
            names=tuple(named),
            square=square,
            memory_budget=memory_budget,
            backend=backend,
        )
        if backend is not None:
            made.choice  # noqa: B018 - a backend that cannot be had is an error here, not later
        return made

    @property
    def choice(self) -> Choice:
        """The backend taken, and why; where processes share the rows, for this process's rows."""
        if self._choice is None or self._processes != self._sharing():
            self._processes, self._engine = self._sharing(), None
            mine = self.entries
            if self._processes.count > 1:
                mine = own_rows(self.entries, self._processes)
            self._choice = choose_backend(mine, self.memory_budget, self.requested)
        return self._choice

    def _sharing(self) -> Processes:
        """The processes that share the products at this moment."""
        found = sharing()
        return found if is_shared(self.entries, found) else ALONE

    @property
    def backend(self) -> BackendName:
        """How products are computed: "dense", "chunked", "keops" or "triton"."""
        return self.choice.name

    @property
    def engine(self) -> Engine:
        """The backend itself; a dense one keeps the matrix as long as this operator lives."""
        name = self.backend  # forgets an engine of other processes
        if self._engine is None:
            self._engine = self._make_engine(name, self.memory_budget)
        return self._engine

    def _make_engine(self, name: BackendName, budget: int) -> Engine:
        """An engine of that name; where processes share the rows, a ``Sharded`` one."""

        def one() -> Engine:
            if name == "dense":
                return Dense(budget)
            if name == "keops":
                return KeOps()
            return Triton(kernel_precision()) if name == "triton" else Chunked(budget)

        shared = self._processes.count > 1
        return Sharded(self.entries, self._processes, one) if shared else one()

    def with_engine(self, use: Callable[[Engine], Result]) -> Result:
        """``use(engine)``, repeated with smaller chunks while a GPU runs out of memory.

        A backend given by the user, other than "chunked", is not replaced.
        """

        def attempt(budget: int) -> Result:
            if budget < self.memory_budget:
                logger.warning(
                    "out of memory: kernel products continue in chunks of %d MiB", budget >> 20
                )
                self._engine = self._make_engine("chunked", budget)
            return use(self.engine)

        if self.requested not in (None, "chunked"):
            return use(self.engine)
        return halved_until_it_fits(attempt, self.memory_budget)

    # --- the contract of Structured --------------------------------------------------------------

    def _size(self) -> torch.Size:
        return torch.Size((*self.batch, *self.entries.shape))

    def _transpose_nonbatch(self) -> KernelMatrix:
        entries = self.entries
        return self if entries.square else self._replaced((entries.x2, entries.x1))

    def _multiply(self, right: Tensor) -> Tensor:
        return self._by_engine(right, transposed=False)

    def _t_multiply(self, right: Tensor) -> Tensor:
        return self._by_engine(right, transposed=True)

    def _by_engine(self, right: Tensor, *, transposed: bool) -> Tensor:
        """The product with all columns of a batch of vectors at once."""
        found = self.with_engine(
            lambda engine: engine.product(self.entries, _fold_batch(right), transposed=transposed)
        )
        product = found.reshape(found.shape[0], *right.shape[:-2], right.shape[-1]).movedim(0, -2)
        batch = torch.broadcast_shapes(self.batch, right.shape[:-2])
        return product.expand(*batch, *product.shape[-2:])

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        left, right = as_columns(left_vecs, right_vecs)
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (_fold_batch(v.expand(*batch, *v.shape[-2:])) for v in (left, right))
        return self.with_engine(lambda engine: engine.derivative(self.entries, left, right))

    def _diagonal(self) -> Tensor:
        entries = self.entries
        if entries.square:
            found = entries.call(lambda kernel: kernel.diagonal(entries.x1))
        else:
            n = min(entries.shape)
            found = self._pairs(entries.x1[:n], entries.x2[:n])
        return found.expand(*self.batch, found.shape[0])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, columns, *_ = torch.broadcast_tensors(row_index, col_index, *batch_indices)
        x1, x2 = self.entries.x1, self.entries.x2
        return self._pairs(x1[rows.reshape(-1)], x2[columns.reshape(-1)]).reshape(rows.shape)

    def _pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.entries.call(lambda kernel: kernel.pairs(x1, x2))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        """Rows and columns of a kernel matrix are a lazy kernel matrix again."""
        same = row_index is col_index or (
            isinstance(row_index, slice) and isinstance(col_index, slice) and row_index == col_index
        )
        square = same and self.entries.square
        row_index, col_index = (
            as_positions(i, size, self.device) if isinstance(i, slice) and (i.step or 1) < 0 else i
            for i, size in zip((row_index, col_index), self.shape[-2:], strict=True)
        )  # tensors cannot be sliced with negative steps
        x1 = self.entries.x1[row_index]
        x2 = x1 if square else self.entries.x2[col_index]
        batch = x1.new_empty(()).expand(self.batch)[batch_indices].shape
        return self._replaced((x1, x2), square=square, batch=batch)

    def _replaced(self, inputs: tuple[Tensor, Tensor], **changes: Any) -> KernelMatrix:
        return KernelMatrix(*inputs, *self.entries.parameters, **{**self._kwargs, **changes})

    def _repeated(self, batch: torch.Size) -> KernelMatrix:
        return self._replaced((self.entries.x1, self.entries.x2), batch=batch)

    def _expand_batch(self, batch_shape: Any) -> LinearOperator:
        return self._repeated(torch.Size(batch_shape))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self._repeated(torch.Size((*self.batch[:dim], 1, *self.batch[dim:])))

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self._repeated(torch.Size(self.batch[dim] for dim in dims))

    def to(self, *args: Any, **kwargs: Any) -> LinearOperator:
        """Like ``Tensor.to``; the kernel is copied, for its buffers."""
        device, dtype = self._destination(*args, **kwargs)
        kernel = copy.deepcopy(self.entries.kernel).to(device, dtype)
        tensors = [t.to(device, dtype) for t in self.entries.tensors]
        return KernelMatrix(*tensors, **{**self._kwargs, "kernel": kernel})

    def to_dense(self) -> Tensor:
        """The matrix itself, (..., n1, n2), differentiable and not as_positions."""
        return self.entries.evaluate().expand(*self.batch, *self.entries.shape)


def _fold_batch(vectors: Tensor) -> Tensor:
    """(..., n, c) -> (n, all other dimensions): batches of vectors become columns."""
    columns = math.prod(vectors.shape[:-2]) * vectors.shape[-1]
    return vectors.movedim(-2, 0).reshape(vectors.shape[-2], columns)


def _check(
    kernel: CovarianceFunction, x1: Tensor, x2: Tensor, parameters: tuple[Tensor, ...]
) -> None:
    for x in (x1, x2):
        if x.ndim != 2:
            raise ShapeError(
                f"{kernel.name} kernel inputs must be a matrix (n, d), got shape "
                f"{tuple(x.shape)}; use x[:, None] for one input dimension"
            )
    if x1.shape[1] != x2.shape[1]:
        raise ShapeError(
            f"kernel inputs have {x1.shape[1]} and {x2.shape[1]} columns; both must have the same "
            "number"
        )
    for other, what in (
        (x2, "the inputs of the columns"),
        *((p, "a parameter") for p in parameters),
    ):
        if other.dtype != x1.dtype or other.device != x1.device:
            raise DTypeError(
                f"{kernel.name} kernel inputs are {x1.dtype} on {x1.device}, but {what} is "
                f"{other.dtype} on {other.device}; convert one, for example kernel.to(x.dtype)"
            )


@rule("select", KernelMatrix, Index)
def _select(base: KernelMatrix, index: Index) -> LinearOperator:
    whole = slice(None)
    rows = whole if index.rows is None else index.rows
    columns = whole if index.columns is None else index.columns
    return base._getitem(rows, columns)
