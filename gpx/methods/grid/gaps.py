"""Solves with the covariance of the observed cells of a grid: fill, ignore or penalise gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.linalg import CGResult, RelativeResidual, SolveReport, budget_in_bytes, conjugate_gradients
from gpx.methods.grid.axes import GriddedRows
from gpx.methods.grid.gap_preconditioners import fill_preconditioner, ignore_preconditioner
from gpx.methods.grid.system import GridSystem
from gpx.operators import KroneckerPlusDiagonal
from gpx.tensor_checks import check_at_least, check_one_of, check_positive

Gaps = Literal["auto", "full", "fill", "ignore", "penalize"]
OnFailure = Literal["raise", "warn", "return"]

MAX_FILLED_SHARE = 0.9
"""Largest share of missing cells at which "auto" fills the gaps."""

MAX_FAILED_RESIDUAL = 0.1
"""Relative residual above which a solve that did not converge raises an error."""


@dataclass(frozen=True)
class GapOptions:
    """How systems with gaps are solved.

    Attributes:
        gaps: "fill" (infer the targets of the gaps, a well-conditioned system of L unknowns; for up
            to 90 % gaps), "ignore" (N unknowns, needs a preconditioner), "penalize" (huge noise at
            the gaps, M unknowns, error O(1 / penalty); for comparison), "full" (there are no gaps)
            or "auto".
        tolerance: relative residual of conjugate gradients.
        max_iterations: most steps of one solve.
        precondition_rank: eigenpairs of the preconditioner; None: for "ignore" the number above the
            noise variance, at most 1000, for "fill" none.
        precondition_power: exponent of the diagonal preconditioner of "penalize", 1 or 0.5.
        penalty: noise variance added at the gaps by "penalize", in squared units of targets.
        memory_budget: of vectors over the grid, dense factors and samples, see
            ``gpx.linalg.budget_in_bytes``; None: all free memory.
    """

    gaps: Gaps = "auto"
    tolerance: float = 1e-6
    max_iterations: int = 10_000
    precondition_rank: int | None = None
    precondition_power: float = 1.0
    penalty: float = 1e4
    memory_budget: int | str | None = None

    def __post_init__(self) -> None:
        """Check ranges; raises ConfigError."""
        check_one_of(get_args(Gaps), gaps=self.gaps)
        check_positive(tolerance=self.tolerance, penalty=self.penalty)
        check_at_least(1, max_iterations=self.max_iterations)
        check_at_least(0, precondition_rank=self.precondition_rank)
        check_one_of((0.5, 1.0), precondition_power=self.precondition_power)
        check_positive(memory_budget=budget_in_bytes(self.memory_budget))

    def conjugate_gradients(
        self,
        matrix: Callable[[Tensor], Tensor],
        right: Tensor,
        preconditioner: Callable[[Tensor], Tensor] | None = None,
        *,
        start: Tensor | None = None,
        verify: bool = True,
        on_failure: OnFailure = "warn",
    ) -> CGResult:
        """``gpx.linalg.conjugate_gradients`` with tolerance and steps of these options."""
        return conjugate_gradients(
            matrix,
            right,
            preconditioner=preconditioner,
            x0=start,
            stop=RelativeResidual(self.tolerance),
            max_iterations=self.max_iterations,
            verify=verify,
            on_failure=on_failure,
        )


def choose_gaps(options: GapOptions, rows: GriddedRows) -> tuple[Gaps, str]:
    """Resolve ``gaps="auto"``, and why.

    Cells that close an axis to a circle are gaps, but do not count in the share of gaps.

    Raises:
        ConfigError: ``gaps="full"``, but there are gaps.
    """
    num_gaps, share, inner = len(rows.gaps), rows.gap_share, rows.grid.inner_size
    if options.gaps == "full" and num_gaps:
        raise ConfigError(
            f"gaps=full, but {num_gaps:,} of {rows.grid.size:,} cells ({share:.1%}) have no row; "
            "take gaps=fill"
        )
    if not num_gaps:
        return "full", "every cell of the grid is observed"
    if options.gaps != "auto":
        return options.gaps, "as asked"
    found = f"{share:.1%} of {inner:,} cells are gaps"
    if share <= MAX_FILLED_SHARE:
        return "fill", f"{found}, at most {MAX_FILLED_SHARE:.0%}"
    return "ignore", f"{found}, more than {MAX_FILLED_SHARE:.0%}"


@dataclass(frozen=True)
class GridSolve:
    """Solutions alpha of (K_XX + sigma^2 I) alpha_X = y_X, placed on the whole grid.

    Attributes:
        alpha (M,) or (M, c): weights of the mean, k(x, grid) alpha. With "fill" the entries at the
            gaps are of the size of the residual, and needed.
        fit (c,) or (): y_X^T (K_XX + sigma^2 I)^{-1} y_X: an upper bound with "fill", a lower bound
            with "ignore", up to O(1 / penalty) with "penalize".
        error (c,) or (): certified, pessimistic bound on the error of ``fit``: ||r||^2 over the
            smallest eigenvalue of the system, 1 / (lambda_max + sigma^2) with "fill" and sigma^2
            with "ignore"; infinite with "penalize".
        state: solution from which a solve at similar hyperparameters may start.
        report: of conjugate gradients, with the true residual; None if no iteration was needed.
    """

    alpha: Tensor
    fit: Tensor
    error: Tensor
    state: Tensor | None
    report: SolveReport | None


def solve_gaps(
    system: GridSystem,
    target: Tensor,
    options: GapOptions,
    *,
    start: Tensor | None = None,
    on_failure: OnFailure = "warn",
) -> GridSolve:
    """Solve (K_XX + sigma^2 I) alpha_X = target by the strategy of ``options``.

    Args:
        target (N,) or (N, c): at the observed cells.
        start: ``GridSolve.state`` of an earlier solve.
        on_failure: as for ``conjugate_gradients``.

    Raises:
        NotPositiveDefinite: with ``on_failure="warn"``, "ignore" or "penalize" ended far from a
            solution (noise variance too small for the precision, or too few steps).

    Cost: per step two Kronecker products (fill) or one (ignore, penalize) per column.
    Source: Evans thesis, sections 3.3.1 to 3.3.4 (penalty on the gaps, not on the data; the whole
        alpha is kept after filling).
    """
    gaps, _ = choose_gaps(options, system.rows)
    if gaps == "full":
        alpha = system.inverse(system.rows.cells, None, target)
        fit = _dot(target, alpha[system.rows.cells])
        return GridSolve(alpha, fit, torch.zeros_like(fit), None, None)
    with torch.no_grad():
        if gaps == "fill":
            return _fill(system, target, options, start, on_failure)
        if gaps == "ignore":
            return _ignore(system, target, options, start, on_failure)
        return _penalize(system, target, options, start, on_failure)


def _fill(
    system: GridSystem,
    target: Tensor,
    options: GapOptions,
    start: Tensor | None,
    on_failure: OnFailure,
) -> GridSolve:
    """Infer the targets of the gaps: F y_Z = -C[Z, X] y_X; then the grid is full."""
    cells, gaps = system.rows.cells, system.rows.gaps
    rhs = system.inverse(cells, gaps, target).neg_()
    preconditioner = fill_preconditioner(system, options.precondition_rank, options.memory_budget)

    def solved(x0: Tensor | None, verify: bool) -> tuple[CGResult, Tensor, Tensor, Tensor]:
        found = options.conjugate_gradients(
            system.missing, rhs, preconditioner, start=x0, verify=verify, on_failure=on_failure
        )
        filled = system.on_grid(target)
        filled[gaps] = found.solution
        alpha = system.inverse(None, None, filled)
        return found, filled, alpha, torch.linalg.vector_norm(alpha[gaps].double(), dim=0)

    # the weights at the gaps are minus the true residual; the residual that the solver updates
    # deviates from it if the noise variance is small for the precision
    found, filled, alpha, residual = solved(start, verify=False)
    scale = torch.linalg.vector_norm(rhs.double(), dim=0)
    steps = found.report.iterations
    if found.report.converged and bool((residual > options.tolerance * scale).any()):
        found, filled, alpha, residual = solved(found.solution, verify=True)
        steps += found.report.iterations
    relative = float((residual / scale.clamp(min=torch.finfo(rhs.dtype).tiny)).max())
    report = replace(found.report, iterations=steps, residual=relative)
    error = (system.largest + system.noise).double() * residual.square()
    return GridSolve(alpha, _dot(filled, alpha), error, found.solution, report)


def _ignore(
    system: GridSystem,
    target: Tensor,
    options: GapOptions,
    start: Tensor | None,
    on_failure: OnFailure,
) -> GridSolve:
    preconditioner = ignore_preconditioner(system, options.precondition_rank, options.memory_budget)
    found = options.conjugate_gradients(
        system.observed, target, preconditioner, start=start, on_failure=on_failure
    )
    _require_solution(found, system, options, on_failure)
    # lower bound of y^T A^{-1} y: 2 a^T y - a^T A a = a^T (y + r)
    fit = _dot(found.solution, target + found.residual)
    error = _dot(found.residual, found.residual) / system.noise.double()
    return GridSolve(system.on_grid(found.solution), fit, error, found.solution, found.report)


def _penalize(
    system: GridSystem,
    target: Tensor,
    options: GapOptions,
    start: Tensor | None,
    on_failure: OnFailure,
) -> GridSolve:
    """(K + penalty R + sigma^2 I) alpha = y with R = I at the gaps and y = 0 there."""
    diagonal = system.noise.expand(system.size).clone()
    diagonal[system.rows.gaps] += options.penalty
    weights = diagonal.pow(-options.precondition_power)

    def preconditioner(v: Tensor) -> Tensor:
        return weights * v if v.ndim == 1 else weights.unsqueeze(1) * v

    found = options.conjugate_gradients(
        KroneckerPlusDiagonal(system.kronecker, diagonal).unchecked_product(),
        system.on_grid(target),
        preconditioner,
        start=start,
        on_failure=on_failure,
    )
    _require_solution(found, system, options, on_failure)
    alpha = found.solution
    fit = _dot(target, alpha[system.rows.cells])
    return GridSolve(alpha, fit, torch.full_like(fit, torch.inf), alpha, found.report)


def _require_solution(
    found: CGResult, system: GridSystem, options: GapOptions, on_failure: OnFailure
) -> None:
    """Raise NotPositiveDefinite if a solve failed with a large residual.

    The quadratic form of a poor solution is too small, so the evidence too large, and an optimiser
    would be attracted by failing solves. The error makes its line search step back.
    """
    # NaN must fail
    if (
        on_failure != "warn"
        or found.report.converged
        or found.report.residual <= MAX_FAILED_RESIDUAL
    ):
        return
    dtype = str(found.solution.dtype).removeprefix("torch.")
    raise NotPositiveDefinite(
        f"gaps={options.gaps} found no solution in {dtype} at noise variance "
        f"{float(system.noise):.2e} (relative residual {found.report.residual:.1e}, "
        f"{found.report.reason}); take gaps=fill, dtype=float64, a larger noise "
        "variance or more steps than max_iterations="
        f"{options.max_iterations}"
    )


class Bracket(NamedTuple):
    """Certified lower and upper bound of a quantity."""

    lower: Tensor
    upper: Tensor


def bracket(system: GridSystem, target: Tensor, filled: Tensor) -> Bracket:
    """Bounds of the data fit y_X^T (K_XX + sigma^2 I)^{-1} y_X, (), from any values for the gaps.

    Upper: y^T C y over the grid completed with ``filled`` (minimal at the posterior mean). Lower:
    2 a^T y - a^T (K_XX + sigma^2 I) a at a = (C y)_X (its maximum over a is the exact fit).

    Args:
        target (N,): at the observed cells.
        filled (L,): any values; the bounds coincide at the posterior mean of the targets.

    Cost: three Kronecker products.
    Source: Evans thesis, section 3.3.3, and the variational form of both quadratics.
    """
    cells = system.rows.cells
    whole = system.on_grid(target)
    whole[system.rows.gaps] = filled
    alpha = system.inverse(None, None, whole)
    weights = alpha[cells]
    lower = 2.0 * _dot(weights, target) - _dot(weights, system.observed(weights))
    return Bracket(lower, _dot(whole, alpha))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum(0)
