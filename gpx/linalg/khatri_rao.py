"""Row-partitioned Khatri-Rao products on plain tensors: row r is the Kronecker product of rows r.

K (n, prod_l m_l) with K[r, :] = R_1[r, :] x ... x R_d[r, :]. Columns are picked by one index per
factor, so that any of prod_l m_l = 10^200 columns costs d products per entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.errors import IndexOutOfRange, ShapeError
from gpx.linalg.known_gradient import first_derivative_only
from gpx.tensor_checks import check_alike


def khatri_rao_columns(
    factors: Sequence[Tensor], index: Tensor, log_scale: Tensor | None = None
) -> Tensor:
    """Columns of the product, each times exp(log_scale), assembled from signs and logarithms.

    A product of 100 factors under- or overflows long before its scaled value does; the scale (for
    eigenfunctions minus half the log-eigenvalue) therefore enters inside the exponent.

    Args:
        factors (..., n, m_l): tensors R_l.
        index (p, d): the column of each factor, int64.
        log_scale (p,): added to the logarithm of every column's magnitude; default zero.

    Returns:
        (..., n, p): prod_l R_l[:, index[:, l]] exp(log_scale). Gradients reach factors and
        log_scale, are exact also at entries that are zero, and are first derivatives only. Zero
        times infinity is NaN, as in the product itself.

    Raises:
        ShapeError: ``index`` is not (p, d), or ``log_scale`` not (p,); factors that differ in rows.
        IndexOutOfRange: an index beyond its factor's columns (one host synchronisation).
        DTypeError: factors or ``log_scale`` of different dtype or device.

    Cost: O(d n p) time, O(n p) memory, forward and backward (nothing is kept per factor).
    Source: Evans thesis, theorem 4.2 and section 4.3.2.
    """
    if index.ndim != 2 or index.shape[1] != len(factors):
        raise ShapeError(
            f"index is {tuple(index.shape)}; expected (p, {len(factors)}), one column per factor"
        )
    first = factors[0]
    if log_scale is None:
        log_scale = first.new_zeros(index.shape[0])
    if log_scale.shape != index.shape[:1]:
        raise ShapeError(
            f"log_scale is {tuple(log_scale.shape)}; expected {tuple(index.shape[:1])}"
        )
    _check(factors, index, log_scale)
    out = _SignedLogProduct.apply(index, log_scale, *factors)
    assert isinstance(out, Tensor)
    return out


def _check(factors: Sequence[Tensor], index: Tensor, log_scale: Tensor) -> None:
    first = factors[0]
    if any(f.ndim < 2 or f.shape[-2] != first.shape[-2] for f in factors):
        raise ShapeError(
            "the factors of a row-partitioned Khatri-Rao product need equal numbers of rows, got "
            f"{[tuple(f.shape) for f in factors]}"
        )
    check_alike("the factors of a Khatri-Rao product and its log_scale", *factors, log_scale)
    sizes = [f.shape[-1] for f in factors]
    if index.numel() and not torch.compiler.is_exporting():
        limits = torch.tensor(sizes, device=index.device)
        if bool(((index < 0) | (index >= limits)).any()):
            raise IndexOutOfRange(
                f"column indices range from {index.amin(0).tolist()} to {index.amax(0).tolist()}; "
                f"the factors have {sizes} columns"
            )


class _SignedLogProduct(torch.autograd.Function):
    """For users of the package, who differentiate the product; models do not."""

    @staticmethod
    def forward(ctx: Any, index: Tensor, log_scale: Tensor, *factors: Tensor) -> Tensor:
        logs, sign, zeros = _accumulate(index, log_scale, factors)
        ctx.save_for_backward(index, log_scale, *factors)
        return _value(logs, sign, zeros)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, log_scale, *factors = ctx.saved_tensors
        logs, sign, zeros = _accumulate(index, log_scale, factors)
        # a zero incoming gradient stays zero, also where the derivative overflows
        unused = grad == 0.0
        scale_grad = None
        if ctx.needs_input_grad[1]:
            whole = (grad * _value(logs, sign, zeros)).masked_fill_(unused, 0.0)
            scale_grad = whole.flatten(0, -2).sum(0)
        found: list[Tensor | None] = []
        for position, f in enumerate(factors):
            if not ctx.needs_input_grad[2 + position]:
                found.append(None)
                continue
            entry = f.index_select(-1, index[:, position])
            zero = entry == 0
            # the product of the other factors, zero where one of them is
            magnitude = (logs - torch.where(zero, 0.0, entry.abs().log())).exp()
            others = torch.where(zero, sign, sign * entry.sign())
            others = torch.where(zeros - zero.to(zeros.dtype) > 0, 0.0, others * magnitude)
            others = (grad * others).masked_fill_(unused, 0.0)
            found.append(_sum_to(others, f, index[:, position]))
        return (None, scale_grad, *found)


def _value(logs: Tensor, sign: Tensor, zeros: Tensor) -> Tensor:
    """sign exp(logs); zero where a factor is, but NaN for zero times infinity or NaN."""
    zero = torch.where(logs < math.inf, 0.0, math.nan)
    return torch.where(zeros > 0, zero, sign * logs.exp())


def _sum_to(grad: Tensor, factor: Tensor, columns: Tensor) -> Tensor:
    """Scatter (..., n, p) back onto the columns of a factor (and over broadcast batches)."""
    extra = grad.ndim - factor.ndim
    if extra:
        grad = grad.flatten(0, extra - 1).sum(0)
    for axis, size in enumerate(factor.shape[:-2]):
        if size == 1 and grad.shape[axis] != 1:
            grad = grad.sum(axis, keepdim=True)
    return torch.zeros_like(factor).index_add(-1, columns, grad)


def _accumulate(
    index: Tensor, log_scale: Tensor, factors: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of log-magnitudes (zeros skipped), product of signs (likewise), and count of zeros."""
    logs = sign = zeros = torch.zeros((), dtype=factors[0].dtype, device=factors[0].device)
    for position, f in enumerate(factors):
        entry = f.index_select(-1, index[:, position])
        zero = entry == 0
        logs = logs + torch.where(zero, 0.0, entry.abs().log())
        sign = torch.where(zero, 1.0, entry.sign()) * (sign if position else 1.0)
        zeros = zeros + zero.to(logs.dtype)
    return logs + log_scale, sign, zeros
