"""Cholesky factorisation with escalating, reported jitter and explanatory errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.linalg.report import CholeskyReport

LADDER: dict[torch.dtype, tuple[float, ...]] = {
    torch.float64: (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4),
    torch.float32: (0.0, 1e-6, 1e-5, 1e-4),
}
"""Relative jitters (times the mean diagonal) per dtype (Burt thesis, section 2.6)."""

ALIASED_BYTES, ALIASED_SIZES, PADDING = 512, (128, 1024), 8
"""Rows of a multiple of so many bytes fall on few sets of a CPU's cache, so that LAPACK takes up to
twice the time for matrices of sizes in this range; ``PADDING`` more rows and columns avoid it."""

_deferred: ContextVar[list[Tensor] | None] = ContextVar("deferred", default=None)


@contextmanager
def checks_deferred() -> Iterator[list[Tensor]]:
    """Inside, factorisations try the first jitter only and do not synchronise to check it.

    For a GPU only, to record or to queue what follows them.

    Yields:
        a list that receives for each factorisation whether it failed, () bool on its device; the
        factor of a failed one must not be used. Reported jitters are nan unless they are zero.
    """
    noted: list[Tensor] = []
    token = _deferred.set(noted)
    try:
        yield noted
    finally:
        _deferred.reset(token)


def noted_checks() -> list[Tensor] | None:
    """The list of the enclosing ``checks_deferred``; None outside of one."""
    return _deferred.get()


def cholesky(
    matrix: Tensor,
    *,
    name: str = "matrix",
    ladder: tuple[float, ...] | None = None,
    hint: str | Callable[[], str] = "",
) -> tuple[Tensor, CholeskyReport]:
    """Lower Cholesky factor of a symmetric positive definite matrix, with reported jitter.

    The jitters of ``ladder`` are tried in order, each relative to the mean diagonal (of each matrix
    of a batch); the first that succeeds is used and reported, the largest of a batch. Pass
    ``ladder=(0.0,)`` to forbid jitter.

    Args:
        matrix (..., n, n): symmetric; only the lower triangle is read.
        name: what the matrix is, for the error message ("K_zz of 512 inducing points").
        ladder: relative jitters to try; default by dtype.
        hint: one more thing to try, put at the end of the error message; a function is called only
            for an error.

    Returns:
        factor (..., n, n), lower triangular, and the report with the absolute jitter used.

    Raises:
        NotPositiveDefinite: with size, dtype, smallest eigenvalue, duplicate rows, jitters tried.
        ShapeError: the matrix is not square. DTypeError: it is neither float32 nor float64.

    Cost: n^3/3 multiply-adds per attempt; one host synchronisation per attempt (the success flag).
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ShapeError(f"{name} must be square, got {tuple(matrix.shape)}")
    if matrix.dtype not in LADDER:
        raise DTypeError(
            f"{name} is {matrix.dtype}; factorisations exist in float32 and float64, convert it"
        )
    steps = LADDER[matrix.dtype] if ladder is None else ladder
    diagonal = matrix.detach().diagonal(dim1=-2, dim2=-1)
    tried: list[float] = []
    deferred = _deferred.get()
    for relative in steps:
        candidate, shift = matrix, None
        if relative and matrix.numel():
            # every matrix of a batch has a scale of its own
            shift = diagonal.mean(-1)
            candidate = matrix.clone()
            candidate.diagonal(dim1=-2, dim2=-1).add_(shift.unsqueeze(-1), alpha=relative)
        if torch.compiler.is_exporting():  # an exported program raises by itself
            return torch.linalg.cholesky(candidate), CholeskyReport(math.nan, (), relative)
        factor, info = torch.linalg.cholesky_ex(candidate)
        if deferred is not None:  # no synchronisation
            deferred.append((info != 0).any())
            return factor, CholeskyReport(math.nan if relative else 0.0, (), relative)
        if matrix.ndim > 2:
            info = info.any()
        if shift is None:
            failed, jitter = bool(info), 0.0
        else:  # one transfer from the device for both numbers
            most = shift.abs().max() if matrix.ndim > 2 else shift
            failed, scale = torch.cat([info.reshape(1), most.reshape(1)]).tolist()
            jitter = relative * abs(scale)
        tried.append(jitter)
        if not failed:
            return factor, CholeskyReport(jitter, tuple(tried), relative)
    raise NotPositiveDefinite(_explain(matrix.detach(), name, tried, hint))


def cholesky_in_place(
    fill: Callable[[Tensor], object],
    buffer: Tensor,
    *,
    name: str = "matrix",
    ladder: tuple[float, ...] | None = None,
    hint: str | Callable[[], str] = "",
) -> tuple[Tensor, CholeskyReport]:
    """Cholesky factor written over the matrix itself: nothing else of size n x n is held.

    Args:
        fill: writes the lower triangle (diagonal included) of the matrix into the buffer it is
            given; called again for every further jitter, because a failed attempt destroys it.
        buffer (..., n, n): contiguous storage of one matrix or a batch; holds the factors
            afterwards.
        name, ladder, hint: as for ``cholesky``.

    Returns:
        upper factor U (..., n, n) with U^T U = matrix, a transposed view of ``buffer`` (LAPACK's
        own layout, so that solves and the inverse need no copy), and the report, of a batch with
        the largest jitter.

    Raises:
        NotPositiveDefinite: as for ``cholesky``.

    Cost: n^3/3 multiply-adds and one ``fill`` per attempt; on a CPU, for sizes whose rows would
    fall on few sets of its cache, one more matrix of at most 8 MiB.
    """
    steps = LADDER.get(buffer.dtype, (0.0,)) if ladder is None else ladder
    deferred = _deferred.get()
    diagonal = buffer.diagonal(dim1=-2, dim2=-1)
    info = torch.empty(buffer.shape[:-2], dtype=torch.int32, device=buffer.device)
    upper = buffer.mT
    tried: list[float] = []
    for relative in steps:
        fill(buffer)
        jitter = 0.0
        if relative:
            shift = relative * diagonal.mean(-1, keepdim=True)
            diagonal += shift
            jitter = float(shift.max()) if deferred is None else math.nan
        tried.append(jitter)
        _factor_(upper, info)
        if deferred is not None:  # no synchronisation
            deferred.append((info != 0).any())
            return upper, CholeskyReport(jitter, (), relative)
        if not bool(info.any()):
            return upper, CholeskyReport(jitter, tuple(tried), relative)
    fill(buffer)
    full = buffer.tril() + buffer.tril(-1).mT
    raise NotPositiveDefinite(_explain(full, name, tried, hint))


def _factor_(upper: Tensor, info: Tensor) -> None:
    """Upper factors of matrices (..., n, n), transposed views of contiguous ones, in their place.

    Args:
        info (...): receives LAPACK's number of the leading minor that is not positive, or zero.
    """
    n = upper.shape[-1]
    least, most = ALIASED_SIZES
    aliased = least <= n <= most and n * upper.element_size() % ALIASED_BYTES == 0
    if upper.device.type != "cpu" or not aliased:
        torch.linalg.cholesky_ex(upper, upper=True, out=(upper, info))
        return
    # block diagonal with an identity, one after the other: a single one stays in the cache
    own = slice(None, n)
    padded = torch.eye(n + PADDING, dtype=upper.dtype).mT
    place = padded[own, own].mT
    each = info.view(-1)
    for index, matrix in enumerate(upper.mT.view(-1, n, n)):
        place.copy_(matrix)
        torch.linalg.cholesky_ex(padded, upper=True, out=(padded, each[index]))
        matrix.copy_(place)


def upper_solve(upper: Tensor, right: Tensor) -> Tensor:
    """Solve U^T U s = right for right (n, k) by two triangular solves.

    Unlike ``torch.cholesky_solve`` it makes no copy of U (n, n) when U has LAPACK's layout, as
    ``cholesky_in_place`` returns it.
    """
    half = torch.linalg.solve_triangular(upper.mT, right, upper=False)
    return torch.linalg.solve_triangular(upper, half, upper=True)


def _explain(matrix: Tensor, name: str, tried: list[float], hint: str | Callable[[], str]) -> str:
    n = matrix.shape[-1]
    text = (
        f"{name} ({n} x {n}, {str(matrix.dtype).removeprefix('torch.')}) is not positive definite"
    )
    if not bool(torch.isfinite(matrix).all()):
        bad = int((~torch.isfinite(matrix)).sum())
        return (
            f"{text}: {bad} of its entries are NaN or infinite. "
            "A hyperparameter has diverged; lower the learning rate or check the inputs."
        )
    if not bool(matrix.any()):
        return (
            f"{text}: all of its entries are zero, and jitter is relative to them; check the "
            "inputs (a linear kernel is zero between points at the origin) and the hyperparameters"
        )
    if matrix.ndim == 2 and n <= 4096:
        smallest = torch.linalg.eigvalsh(matrix.double())[0].item()
        text += f": smallest eigenvalue {smallest:.2e}"
        duplicates = n - torch.unique(matrix, dim=0).shape[0]
        if duplicates:
            text += f", {duplicates} duplicate rows"
    attempts = ", ".join(f"{j:.1e}" for j in tried)
    text += f"; jitters tried: {attempts}. "
    remedies = ["raise the noise variance", "remove duplicate points"]
    if matrix.dtype != torch.float64:
        remedies.insert(0, "use dtype=float64")
    if last := hint() if callable(hint) else hint:
        remedies.append(last)
    return text + "Try: " + "; ".join(remedies) + "."
