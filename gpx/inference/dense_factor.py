"""K = k(x, x) + noise in one dense array: written in blocks of rows, and factorised in place."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.inference.exact_solver import cholesky_memory
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport, cholesky_in_place, require_memory
from gpx.warned_line import users_line

BLOCK_BYTES = {"cpu": 2**23, "cuda": 2**28}
"""Bytes of one block of kernel rows: large enough to hide overheads, small beside n x n."""


FLOAT32_LIMIT = 0.5
"""Value of n v eps above which a warning says that float32 is inaccurate; v is the largest ratio of
signal to noise variance, eps = 1.2e-7. Errors measured at the limit with an RBF kernel and 200 or
800 rows: with two inputs gradients are off by 4 to 8 % of their norm, and predicted means by a
third of their standard deviation; with a single input gradients by 100 %, means by one standard
deviation, and variances may be zero. With a Matern-3/2 kernel the errors are a tenth of these."""
JITTER_SHARE = 0.01
"""Jitter, as a share of the noise variance, above which a warning says that there is one."""

_passing: ContextVar[bool] = ContextVar("passing", default=False)


@contextmanager
def passing_positions() -> Iterator[None]:
    """Where hyperparameters are those of positions that chains pass: no jitter is warned of.

    The hyperparameters that are kept are factorised again, outside of it.
    """
    token = _passing.set(True)
    try:
        yield
    finally:
        _passing.reset(token)


def warn_of_rounding(rounding: float) -> None:
    """Warn if n v eps is above ``FLOAT32_LIMIT``."""
    if rounding > FLOAT32_LIMIT:
        warnings.warn(
            "float32 has too few digits for noise this far below the variance of the functions: "
            "gradients of the evidence and predictions may be off by some percent, small entries "
            "of gradients and small variances by more; take dtype=float64",
            stacklevel=users_line(),
        )


def row_blocks(n: int, width: int, like: Tensor) -> Iterator[slice]:
    """Slices of 0 .. n such that a block of rows by ``width`` columns fits in BLOCK_BYTES."""
    budget = BLOCK_BYTES.get(like.device.type, BLOCK_BYTES["cpu"])
    yield from row_slices(n, max(1, budget // (max(width, 1) * like.element_size())))


@torch.no_grad()
def kernel_matrix(kernel: Kernel, x: Tensor) -> Tensor:
    """k(x, x) (n, n), computed in blocks of rows, so that only one n x n array is held."""
    matrix = x.new_empty(len(x), len(x))
    for rows in row_blocks(len(x), len(x), x):
        matrix[rows] = kernel.evaluate(x[rows], x)
    return matrix


def noisy_cholesky(kernel: Kernel, x: Tensor, noise: Tensor) -> tuple[Tensor, CholeskyReport]:
    """Upper factor U (n, n), U^T U = k(x, x) + noise (+ reported jitter), in one n x n array.

    Warns as ``factor_with_noise`` does.

    Args:
        noise: variance () of all rows, or (n,) of each.

    Raises:
        ConfigError: the array does not fit into free memory.
        NotPositiveDefinite: see ``gpx.linalg.cholesky``.
    """
    n = x.shape[0]
    require_memory(
        cholesky_memory(x),
        x.device,
        f"an exact Gaussian process on {n} training points",
        "use solver=iterative, model=SGPR(), SVGP() or QSGP(), fewer points, or dtype=float32",
    )

    def fill(buffer: Tensor) -> None:
        for rows in row_blocks(n, n, x):
            columns = slice(0, rows.stop)  # the lower triangle
            buffer[rows, columns] = kernel.evaluate(x[rows], x[columns])

    return factor_with_noise(fill, x, noise, lambda: kernel.diagonal(x).max())


def factor_with_noise(
    fill: Callable[[Tensor], object], x: Tensor, noise: Tensor, largest: Callable[[], Tensor]
) -> tuple[Tensor, CholeskyReport]:
    """Upper factor U (n, n), U^T U = K + noise (+ reported jitter), in one n x n array.

    Warns if float32 has too few digits (``FLOAT32_LIMIT``) or the jitter is no longer small beside
    the noise (``JITTER_SHARE``; not in ``passing_positions``).

    Args:
        fill: writes the lower triangle of K into the buffer (n, n) it is given.
        x (n, d): inputs of the rows, for messages.
        noise: variance () of all rows, or (n,) of each.
        largest: -> entry () of K's diagonal.

    Raises:
        NotPositiveDefinite: see ``gpx.linalg.cholesky``.
    """
    n = x.shape[0]

    def fill_with_noise(buffer: Tensor) -> None:
        fill(buffer)
        buffer.diagonal().add_(noise)

    name = f"the kernel matrix of {n} training points plus noise"
    with torch.no_grad():
        smallest = mean = math.inf  # without rows
        if n:
            told = [noise.min(), noise.mean()]
            if x.dtype == torch.float32:
                told.append(largest())
            smallest, mean, *most = torch.stack(told).tolist()  # one transfer from the device
            for prior in most:
                warn_of_rounding(n * prior / smallest * torch.finfo(x.dtype).eps)
        upper, report = cholesky_in_place(
            fill_with_noise,
            x.new_empty(n, n),
            name=name,
            hint=lambda: (
                f"other hyperparameters (the noise variance is {mean:.2e}){_repeated_rows(x)}"
            ),
        )
    if report.jitter > JITTER_SHARE * smallest and not _passing.get():
        better = "" if x.dtype == torch.float64 else "dtype=float64 or "
        # without numbers: Python shows a text once, and every trial point has other numbers
        warnings.warn(
            f"{name} has a Cholesky factor only with a jitter added to the noise variance that is "
            f"above {JITTER_SHARE:.0%} of it, and evidence and predictions are those of the sum: "
            f"take {better}a larger noise variance",
            stacklevel=users_line(),
        )
    return upper, report


def _repeated_rows(x: Tensor) -> str:
    """What to do about the rows of x (n, d) that repeat another one, for an error; or nothing."""
    n = len(x)
    repeated = n - len(torch.unique(x, dim=0))
    if not repeated:
        return ""
    return (
        f"; {repeated} of the {n} rows have the inputs of another row: give one row of the mean "
        "target in place of those that agree, and their number as its weight (weights=)"
    )
