"""Exact solves and determinants of symmetric positive definite Toeplitz matrices.

The Durbin recursion gives, in O(n^2) time and O(n) memory, the log-determinant and the first
column x of T^-1. From x alone the Gohberg-Semencul formula

    x_0 T^-1 = L(x) L(x)^T - L(y) L(y)^T,    y = (0, x_{n-1}, ..., x_1),

with L(.) the lower triangular Toeplitz matrix of a first column, gives products with T^-1 and the
sums of its diagonals (the gradient of the log-determinant) by FFT.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.errors import DidNotConverge, NotPositiveDefinite, ShapeError
from gpx.linalg.cg_iteration import column_scales
from gpx.linalg.fft_products import (
    convolve,
    embed_symmetric,
    fast_length,
    pad_and_transform,
    spectrum,
    transform_and_crop,
)
from gpx.linalg.known_gradient import first_derivative_only
from gpx.linalg.prepared import Prepared

MAX_REFINEMENTS = 12
"""Largest number of refinement steps of a solve; two or three do unless T is near singular."""

TARGET_BACKWARD_ERROR = 4.0
"""Refinement stops at this backward error, in units of the rounding error."""

MAX_BACKWARD_ERROR = {torch.float64: 1e-11, torch.float32: 1e-5}
"""A solve that no longer improves raises when its backward error is above this."""


def durbin(column: Tensor) -> tuple[Tensor, Tensor]:
    """Durbin recursion of toep(column), column (..., m).

    Returns:
        log-determinant (...) and first column of the inverse (..., m). No gradients.

    Raises:
        NotPositiveDefinite: a prediction error variance is not positive.

    Cost: m^2 multiply-adds in m steps of a few vector operations; O(m) memory; one host
    synchronisation at the end.
    Source: Hultin 2017, section 3.1.2.
    """
    column = column.detach()
    m = column.shape[-1]
    backwards = column.flip(-1)
    weights = torch.zeros_like(column)  # a_1 .. a_{m-1} of the best linear predictor
    error = column[..., 0].clone()
    errors = torch.empty_like(column)
    errors[..., 0] = error
    for t in range(1, m):
        known = weights[..., : t - 1]
        ahead = column[..., t] - (known * backwards[..., m - t : m - 1]).sum(-1)
        reflection = (ahead / error).unsqueeze(-1)
        known -= reflection * known.flip(-1)
        weights[..., t - 1] = reflection.squeeze(-1)
        error = error * (1.0 - reflection.squeeze(-1) ** 2)
        errors[..., t] = error
    if not bool((errors > 0).all()):
        raise NotPositiveDefinite(_explain(column, errors))
    first = torch.cat([torch.ones_like(column[..., :1]), -weights[..., : m - 1]], -1)
    return errors.log().sum(-1), first / error.unsqueeze(-1)


def _explain(column: Tensor, errors: Tensor) -> str:
    bad = ~(errors > 0)
    step = int(bad.reshape(-1, bad.shape[-1]).any(0).nonzero()[0, 0])
    text = (
        f"the symmetric Toeplitz matrix of size {column.shape[-1]} ({column.dtype}) is not "
        f"positive definite: the determinant of its first {step + 1} rows and columns "
        "is not positive"
    )
    if not bool(torch.isfinite(column).all()):
        return f"{text}; the column holds NaN or infinite entries, a hyperparameter has diverged"
    return f"{text}. Add noise variance to column[0], or use float64 if this is float32."


def toeplitz_logdet(column: Tensor, plan: Prepared | None = None) -> Tensor:
    """log |toep(column)| (...), with its gradient in closed form.

    Cost: O(m^2) once per column (kept in ``plan``), gradient O(m log m). First derivatives only.
    """
    value, first = (Prepared() if plan is None else plan).get(
        "durbin", (column,), lambda: durbin(column)
    )
    out = _Logdet.apply(column, value, first)
    assert isinstance(out, Tensor)
    return out


class _Logdet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, column: Tensor, value: Tensor, first: Tensor) -> Tensor:
        ctx.save_for_backward(first, column)
        return value.clone()

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        first, _ = ctx.saved_tensors
        sums = inverse_diagonal_sums(first)
        sums[..., 1:] *= 2.0
        return grad.unsqueeze(-1) * sums, None, None


def inverse_diagonal_sums(first: Tensor) -> Tensor:
    """Sum of T^-1 along its j-th diagonal, j = 0 .. m - 1, from its first column (..., m).

    The j-th diagonal of L(x) L(x)^T sums to sum_p (m - j - p) x_p x_{p+j}.
    """
    m = first.shape[-1]
    lengths = (fast_length(2 * m - 1),)
    other = _mirror(first)
    place = torch.arange(m, dtype=first.dtype, device=first.device)

    def sums(x: Tensor) -> Tensor:
        plain = pad_and_transform(x, lengths)
        weighted = pad_and_transform(place * x, lengths)
        both = transform_and_crop(plain * plain.conj(), lengths, (m,))
        moment = transform_and_crop(plain * weighted.conj(), lengths, (m,))
        return (m - place) * both - moment

    return (sums(first) - sums(other)) / first[..., :1]


def _mirror(first: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(first[..., :1]), first[..., 1:].flip(-1)], -1)


def toeplitz_solve(column: Tensor, right: Tensor, plan: Prepared | None = None) -> Tensor:
    """T^-1 right (..., m, c) for T = toep(column) symmetric positive definite, refined to rounding.

    Rounding means the backward error |T s - r| / (|T| |s| + |r|), as dense factorisations promise:
    the residual itself grows with the condition number.

    Column and right-hand sides are scaled by powers of two, so that no norm under- or overflows.

    Raises:
        NotPositiveDefinite: from the Durbin recursion.
        DidNotConverge: the matrix is too near singular for its dtype; right-hand sides that are not
            finite.

    Cost: O(m^2) once per column (kept in ``plan``); then six FFTs of length 2 m and two for the
    residual per column and refinement; one host synchronisation per refinement. No gradients.
    """
    plan = Prepared() if plan is None else plan
    column, right = column.detach(), right.detach()
    m = column.shape[-1]
    if right.ndim < 2 or right.shape[-2] != m:
        raise ShapeError(f"right-hand sides {tuple(right.shape)} for a Toeplitz matrix of {m} rows")
    _, first = plan.get("durbin", (column,), lambda: durbin(column))
    lengths, grid = (fast_length(2 * m - 1),), (m,)
    size = plan.get("scale", (column,), lambda: column_scales(column.unsqueeze(-1)))
    column = plan.get("scaled", (column,), lambda: column / size)
    eigenvalues = plan.get(
        "refinement", (column,), lambda: spectrum(embed_symmetric(column, lengths[0]))
    )
    factors = plan.get("semencul", (first,), lambda: _semencul(first * size, lengths))
    unit = column_scales(right)
    right = right / unit.unsqueeze(-2)
    accuracy = TARGET_BACKWARD_ERROR * torch.finfo(right.dtype).eps
    tiny = torch.finfo(right.dtype).tiny
    norm, length = 2.0 * column.abs().sum(-1, keepdim=True), right.norm(dim=-2).clamp(min=tiny)
    solution = _apply_semencul(factors, right, lengths, m)
    best, best_error = solution, float("inf")
    for _ in range(MAX_REFINEMENTS):
        residual = right - convolve(eigenvalues, solution, lengths, grid, grid)
        error = float((residual.norm(dim=-2) / (norm * solution.norm(dim=-2) + length)).max())
        if error < best_error:
            best = solution
        stalled = not error < 0.5 * best_error
        best_error = min(error, best_error)
        if error <= accuracy or stalled:
            break
        solution = solution + _apply_semencul(factors, residual, lengths, m)
    if not best_error <= MAX_BACKWARD_ERROR.get(right.dtype, 1e-3):
        if not bool(torch.isfinite(right).all()):
            raise DidNotConverge(
                f"the right-hand sides of a Toeplitz solve of size {m} hold NaN or infinite values"
            )
        raise DidNotConverge(
            f"the Toeplitz solve of size {m} ({right.dtype}) stopped at a backward error of "
            f"{best_error:.1e}: the matrix is nearly singular. Add noise variance to column[0] or "
            "use float64."
        )
    return best * (unit / size).unsqueeze(-2)


def _semencul(first: Tensor, lengths: tuple[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Spectra of L(x) and L(y), and 1 / x_0."""
    return (
        pad_and_transform(first, lengths).unsqueeze(-2),
        pad_and_transform(_mirror(first), lengths).unsqueeze(-2),
        first[..., :1].reciprocal().unsqueeze(-1),
    )


def _apply_semencul(
    factors: tuple[Tensor, Tensor, Tensor], right: Tensor, lengths: tuple[int], m: int
) -> Tensor:
    x, y, scale = factors
    transformed = pad_and_transform(right.mT, lengths)

    def lower_lower_transpose(factor: Tensor) -> Tensor:
        half = transform_and_crop(transformed * factor.conj(), lengths, (m,))
        return pad_and_transform(half, lengths) * factor

    total = lower_lower_transpose(x) - lower_lower_transpose(y)
    return (scale * transform_and_crop(total, lengths, (m,))).mT
