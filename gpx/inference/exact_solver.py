"""Choice of the solver of an exact Gaussian process, and the options of the iterative ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, DataError
from gpx.linalg import budget_in_bytes, memory_for_all
from gpx.tensor_checks import check_at_least, check_one_of, check_positive

SolverName = Literal["auto", "cholesky", "iterative", "barely_biased"]
PreconditionerName = Literal["nystrom", "grief"]
VarianceName = Literal["lanczos", "exact", "subset", "sgpr", "nystrom"]

FACTOR_MEMORY_RATIO = 1.25
"""Free memory required before a factorisation starts, as a multiple of the n x n array.

One array holds kernel, factor and inverse in turn (``inverse_from_factor``); the rest is for blocks
of rows and the factorisation's workspace.
"""

CHOLESKY_LIMIT = {"cpu": 10_000, "cuda": 40_000}
"""Largest number of training points that ``auto`` factorises: an evaluation then takes some tens
of seconds."""


POINTS_PER_ROOT_ROW, MAX_AUTO_RANK = 14.0, 1000
"""``rank="auto"`` takes this many greedy points per square root of n (627 for 2,000 rows), up to
the maximum."""

RANK_BUFFERS = 4
"""n x rank arrays in float64 that an evaluation with its gradient holds at once."""


@dataclass(frozen=True)
class SolverChoice:
    """A path and the reason it was taken, for logs and records."""

    name: SolverName
    reason: str


def choose_solver(requested: SolverName, x: Tensor) -> SolverChoice:
    """The path asked for, or for ``auto``: Cholesky where time and memory allow, else iterative.

    Args:
        requested: as ``ExactGP`` was asked for.
        x (n, d): training inputs, for their number, dtype and device.

    Raises:
        ConfigError: no such solver.
    """
    check_one_of(get_args(SolverName), solver=requested)
    if requested != "auto":
        return SolverChoice(requested, "asked for")
    n, limit = x.shape[0], CHOLESKY_LIMIT.get(x.device.type, CHOLESKY_LIMIT["cpu"])
    if n > limit:
        return SolverChoice("iterative", f"{n:,} training points are more than {limit:,}")
    needed, free = cholesky_memory(x), memory_for_all(x.device)
    if free is not None and needed > free:
        return SolverChoice(
            "iterative",
            f"a factor needs {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free",
        )
    reason = f"{n:,} training points are at most {limit:,} and fit in memory"
    return SolverChoice("cholesky", reason)


def cholesky_memory(x: Tensor) -> int:
    """Bytes that a factorisation of the kernel matrix of x (n, d) needs."""
    return int(FACTOR_MEMORY_RATIO * x.shape[0] ** 2 * x.element_size())


def require_finite(target: Tensor) -> None:
    """Raise DataError unless all of y - m(x) (n,) is finite."""
    finite = torch.isfinite(target)
    if not bool(finite.all()):
        bad = (~finite).nonzero()[:, 0]
        raise DataError(
            f"{bad.numel()} of {target.numel()} targets are not finite once the mean function is "
            f"subtracted, the first in row {int(bad[0])}; remove those rows or fill them in"
        )


@dataclass(frozen=True)
class IterativeOptions:
    """Options of the iterative and barely biased solvers.

    Attributes:
        rank: greedy points of the Nystrom preconditioner, at most n; n rank^2 operations per
            evaluation. "auto": see ``points``.
        preconditioner: of training solves: "nystrom" (greedy points), or "grief" (as many leading
            eigenfunctions of a grid), which takes a fraction of the time to build. "grief" also
            saves steps where the data fill their bounding box, the kernel factors over the inputs
            and lengthscales are at least a twentieth of the range; elsewhere greedy points save
            more. Predictions always use greedy points.
        product_dtype: dtype of the products under float64 recurrences, "float32" or "float64";
            None: that of the training data. Barely biased products are always float64.
        memory_budget: of kernel products and the preconditioner, as in
            ``gpx.linalg.budget_in_bytes``; a stored matrix may take half of it. None: 2 GiB.
        memory_budget_gib: its name in earlier versions, in GiB.
        max_iterations: limit of conjugate gradient steps when conditioning and predicting.
        tolerance: of predictions, relative to the noise: the mean is certified to ``tolerance``
            noise standard deviations, variances of "exact" are solved to ``tolerance`` noise
            variances. Where it is not reached a warning states the bound that holds.
        variance: "lanczos" (cached projection, an upper bound with a certificate), "exact" (a
            solve per test point), "subset" (conditions on the greedy points alone), "sgpr"
            (collapsed posterior at the greedy points), "nystrom" (upper end of Q <= K <= Q + T I).
        variance_steps: Lanczos vectors in the cached projection, beside the greedy points.
        variance_rank: number of greedy points in the cached projection; None: all.
        variance_neighbours: data near each test point to condition on as well; without them the
            projection's variances are far too wide where the noise is small. Twice as many cost
            twice as much and leave a third of the error; above about 100 the cost is quadratic.
            ``variance="exact"`` is more accurate and slower (``experiments/iterative``).
    """

    rank: int | Literal["auto"] = "auto"
    preconditioner: PreconditionerName = "nystrom"
    product_dtype: str | None = None
    memory_budget: int | str | None = None
    memory_budget_gib: float | None = None
    max_iterations: int = 1000
    tolerance: float = 0.01
    variance: VarianceName = "lanczos"
    variance_steps: int = 100
    variance_rank: int | None = None
    variance_neighbours: int = 100

    def __post_init__(self) -> None:
        """Check ranges; raises ConfigError."""
        if self.rank != "auto" and not isinstance(self.rank, int):
            raise ConfigError(f"rank={self.rank}: expected a whole number or the word auto")
        check_at_least(
            1,
            rank=None if self.rank == "auto" else self.rank,
            max_iterations=self.max_iterations,
            variance_rank=self.variance_rank,
        )
        check_at_least(
            0, variance_steps=self.variance_steps, variance_neighbours=self.variance_neighbours
        )
        check_positive(tolerance=self.tolerance, memory_budget=self.budget)
        if self.product_dtype not in (None, "float32", "float64"):
            raise ConfigError(
                f"product_dtype={self.product_dtype}: expected float32, float64 or None"
            )
        check_one_of(get_args(PreconditionerName), preconditioner=self.preconditioner)
        check_one_of(get_args(VarianceName), variance=self.variance)

    def points(self, n: int) -> int:
        """Number of greedy points for n training points.

        For ``rank="auto"``: ``POINTS_PER_ROOT_ROW`` sqrt(n), at most ``MAX_AUTO_RANK``, and only as
        many as the memory budget allows. The factorisation may end earlier.
        """
        if self.rank != "auto":
            return min(self.rank, n)
        room = self.budget // (8 * RANK_BUFFERS * max(n, 1))
        return max(1, min(n, math.ceil(POINTS_PER_ROOT_ROW * math.sqrt(n)), MAX_AUTO_RANK, room))

    @property
    def budget(self) -> int:
        """``memory_budget`` in bytes."""
        if self.memory_budget is not None:
            return budget_in_bytes(self.memory_budget)
        return int((2.0 if self.memory_budget_gib is None else self.memory_budget_gib) * 2**30)
