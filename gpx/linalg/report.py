"""Reports of numerical routines, returned beside their results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CholeskyReport:
    """Outcome of one factorisation.

    Attributes:
        jitter: added to the diagonal, in the matrix's own unit (0 when nothing was added).
        tried: every jitter tried, in order.
        relative: ``jitter`` over the mean diagonal, for gradients that follow the jitter.
    """

    jitter: float
    tried: tuple[float, ...]
    relative: float = 0.0


@dataclass(frozen=True)
class SolveReport:
    """Outcome of one iterative solve.

    Attributes:
        iterations: steps taken.
        residual: relative residual norm at the end (worst right-hand side).
        converged: whether the stopping rule was met.
        reason: why it stopped, in words.
    """

    iterations: int
    residual: float
    converged: bool
    reason: str
