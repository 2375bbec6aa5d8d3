"""Kronecker products of any number of rectangular factors, tensors or operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import (
    KroneckerProductTriangularLinearOperator,
    TriangularLinearOperator,
)
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.linalg.kronecker import (
    Factor,
    kronecker_derivatives,
    kronecker_logdet,
    kronecker_matmul,
    kronecker_product,
    kronecker_solve,
    kronecker_vector,
    split_index,
)
from gpx.linalg.kronecker_workspace import KroneckerWorkspace
from gpx.operators.algebra import Index, rule
from gpx.operators.arithmetic import dense
from gpx.operators.convolution import Convolution
from gpx.operators.dense_factorisations import inverse_transpose
from gpx.operators.indexing import common_batch
from gpx.operators.khatri_rao import KhatriRao
from gpx.operators.selection import Selection
from gpx.operators.structured import Structured
from gpx.operators.symmetry import require_symmetric_factors
from gpx.tensor_checks import check_alike


class Kronecker(Structured):
    """A_1 x ... x A_d, (..., M, N) with M = prod_l k_l and N = prod_l n_l, never formed.

    Rows and columns are numbered row-major, first factor slowest, as ``torch.kron`` does. Factors
    are tensors or operators (a Toeplitz factor keeps its fast product); batches broadcast.

    Cost, for square factors of m_l rows and c columns: product 2 c M sum_l m_l time, two buffers of
    c M memory (c M more per factor while gradients are recorded); transpose free; diagonal O(M);
    an entry O(d); solve O(sum m_l^3) and one product; logdet O(sum m_l^3), from Cholesky
    factors, exact; eigendecomposition and roots O(sum m_l^3). Solve, logdet, eigh, roots and rows
    make operator factors dense (m_l^2 each). ``solve`` takes any non-singular square factors;
    logdet and roots need positive definite ones; ``eigh`` symmetric ones.

    Args:
        factors: tensors (..., k_l, n_l) or operators.
        workspace: buffers over a grid. Given one, products of square factors without batch run in
            it, without gradients and without allocating memory: for inner loops.

    Indexing: few rows are a ``KhatriRao`` (row i is the Kronecker product of factor rows), many are
    a ``Selection``; both are exact.

    Raises:
        ShapeError, DTypeError: no factor, not matrices, factors of different dtype or device.
    Source: Evans thesis, appendix A.
    """

    def __init__(
        self, *factors: Tensor | LinearOperator, workspace: KroneckerWorkspace | None = None
    ) -> None:
        super().__init__(*factors, workspace=workspace)
        if not factors:
            raise ShapeError("a Kronecker product needs at least one factor; got none")
        for position, f in enumerate(factors):
            if len(f.shape) < 2:
                raise ShapeError(
                    f"factor {position + 1} of {len(factors)} of a Kronecker product is "
                    f"{tuple(f.shape)}; expected a matrix (..., k, n)"
                )
        check_alike("the factors of a Kronecker product", *factors)
        self.factors, self.workspace = factors, workspace

    def _size(self) -> torch.Size:
        batch = common_batch(*[f.shape[:-2] for f in self.factors], what="the Kronecker factors")
        rows = math.prod(f.shape[-2] for f in self.factors)
        return torch.Size((*batch, rows, math.prod(f.shape[-1] for f in self.factors)))

    def _transpose_nonbatch(self) -> Kronecker:
        return Kronecker(*[f.mT for f in self.factors], workspace=self.workspace)

    def _product(self, right: Tensor) -> Tensor:
        if self.workspace is not None and right.ndim == 2:
            # a copy: the buffers will be written again
            return self.workspace.product(self.factors, right.mT).clone().mT
        return kronecker_matmul(self.factors, right)

    def _rows_plan(self) -> Callable[[Tensor], Tensor]:
        assert self.workspace is not None
        return partial(self.workspace.product, self.factors)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        """Gradient of sum_c left_c^T A right_c by every factor: no product is taken twice."""
        if self.batch_shape or left_vecs.ndim > 2:
            return super()._bilinear_derivative(left_vecs, right_vecs)
        total: list[Tensor | None] = []
        for left, right in zip(_columns(left_vecs), _columns(right_vecs), strict=True):
            parts = sum(kronecker_derivatives(self.factors, left, right, _derivative), ())
            total = list(map(_added, total, parts)) if total else list(parts)
        return tuple(total)

    def to_dense(self) -> Tensor:
        """The product itself, (..., M, N): O(M N), differentiable."""
        return kronecker_product(self.dense_factors())

    def dense_factors(self) -> list[Tensor]:
        """The factors as tensors (..., k_l, n_l); operators among them are evaluated."""
        return [dense(f) for f in self.factors]

    def _solution(self, right: Tensor) -> Tensor:
        return kronecker_solve(self.dense_factors(), right)

    def _logdet(self) -> Tensor:
        factors = self.dense_factors()
        require_symmetric_factors(factors, f"logdet of {self._name()}")
        return kronecker_logdet(factors).expand(self.batch_shape)

    def _diagonal(self) -> Tensor:
        if any(f.shape[-1] != f.shape[-2] for f in self.factors):
            where = torch.arange(min(self.shape[-2:]), device=self.device)
            parts = zip(self.factors, *self._split(where, where), strict=True)
            return reduce(torch.mul, [dense(f)[..., i, j] for f, i, j in parts])
        return kronecker_vector(
            [
                f.diagonal(dim1=-2, dim2=-1) if isinstance(f, Tensor) else f.diagonal()
                for f in self.factors
            ]
        )

    def _split(self, rows: Tensor, columns: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        return (
            split_index(rows, [f.shape[-2] for f in self.factors]),
            split_index(columns, [f.shape[-1] for f in self.factors]),
        )

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        parts = zip(self._broadcast_args(), *self._split(row_index, col_index), strict=True)
        where = [(f, (*batch_indices, i, j)) for f, i, j in parts]
        return reduce(torch.mul, [f[at] for f, at in where])

    # --- factorisations --------------------------------------------------------------------------

    def _symeig(
        self, eigenvectors: bool = False, return_evals_as_lazy: bool | None = False
    ) -> tuple[Tensor, Any]:
        """Eigenvalues (..., M), in the order of the grid and not sorted; eigenvectors Kronecker."""
        self._square("eigh")
        factors = self.dense_factors()
        require_symmetric_factors(factors, f"eigh of {self._name()}")
        if not eigenvectors:
            return kronecker_vector([torch.linalg.eigvalsh(f) for f in factors]), None
        values, vectors = zip(*[torch.linalg.eigh(f) for f in factors], strict=True)
        return kronecker_vector(values), Kronecker(*vectors)

    def _cholesky(self, upper: bool | None = False) -> LinearOperator:
        lower = [TriangularLinearOperator(f) for f in self._cholesky_factors()]
        found = KroneckerProductTriangularLinearOperator(*lower)
        return found._transpose_nonbatch() if upper else found

    def _cholesky_factors(self) -> list[Tensor]:
        self._square("Cholesky factorisation")
        factors = self.dense_factors()
        require_symmetric_factors(factors, f"a Cholesky factorisation of {self._name()}")
        return [
            cholesky(f, name=f"factor {i + 1} of {len(self.factors)}", ladder=(0.0,))[0]
            for i, f in enumerate(factors)
        ]

    def _root(self) -> Kronecker:
        """L_1 x ... x L_d with L_l the Cholesky factor of A_l, at any size."""
        return Kronecker(*self._cholesky_factors())

    def _inverse_root(self) -> Kronecker:
        """L_1^{-T} x ... x L_d^{-T}, at any size."""
        return Kronecker(*[inverse_transpose(lower) for lower in self._cholesky_factors()])


def _derivative(factor: Factor, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
    """Of the trace of left^T A right by the tensors of A."""
    if isinstance(factor, Tensor):
        return (left @ right.mT,)
    if isinstance(factor, Convolution):
        return factor.gradient(left, right)
    assert isinstance(factor, LinearOperator)
    return factor._bilinear_derivative(left, right)


def _added(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    """Sum of two derivatives; None by a tensor that has none, such as indices."""
    if total is None or more is None:
        return more if total is None else total
    return total + more


def _columns(vectors: Tensor) -> tuple[Tensor, ...]:
    return (vectors,) if vectors.ndim == 1 else vectors.unbind(-1)


@rule("scale", Kronecker, Tensor)
def _scale(left: Kronecker, scale: Tensor) -> Kronecker:
    """c (A x B) = (c A) x B, on the smallest factor."""
    smallest = min(range(len(left.factors)), key=lambda i: math.prod(left.factors[i].shape[-2:]))
    factors = list(left.factors)
    factors[smallest] = factors[smallest] * scale[..., None, None]
    return Kronecker(*factors)


@rule("select", Kronecker, Index)
def _select(base: Kronecker, index: Index) -> LinearOperator:
    """Few rows or columns: Khatri-Rao; many: a selection, whose product costs the whole grid's."""
    if index.rows is not None and _few_enough(index.rows, base):
        parts = split_index(index.rows, [f.shape[-2] for f in base.factors])
        rows = [dense(f)[..., i, :] for f, i in zip(base.factors, parts, strict=True)]
        whole = KhatriRao(*rows)
        return whole if index.columns is None else whole._getitem(slice(None), index.columns)
    if index.columns is not None and _few_enough(index.columns, base):
        flipped = _select(base._transpose_nonbatch(), Index(index.columns, index.rows))
        return flipped._transpose_nonbatch()
    return Selection(base, rows=index.rows, columns=index.columns)


def _few_enough(chosen: Tensor, base: Kronecker) -> bool:
    """Whether single rows (N operations each) cost less than one product (N sum n_l)."""
    return chosen.shape[0] <= sum(f.shape[-1] for f in base.factors)
