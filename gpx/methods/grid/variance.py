"""Posterior variances on and off a grid with gaps, by a dense factor or by solves."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.linalg import UnconvergedWarning, require_memory
from gpx.methods.grid.axes import GriddedRows
from gpx.methods.grid.gap_preconditioners import ignore_preconditioner
from gpx.methods.grid.gaps import Bracket, GapOptions, solve_gaps
from gpx.methods.grid.points import GridPoints
from gpx.methods.grid.system import (
    GridSystem,
    blocks,
    dense_is_cheap,
    factorises_observed,
    gap_columns,
    observed_covariance,
    observed_factor,
)
from gpx.tensor_checks import check_at_least, check_one_of, check_positive
from gpx.warned_line import users_line

VarianceName = Literal["auto", "dense", "fill", "ignore", "sampled", "rank_reduced"]

MAX_SOLVED_POINTS = 64
"""Most test points for which "auto" solves a system each, if no factor is cheap."""

MAX_VARIANCE_ERROR = 1e-3
"""Largest error of a variance computed by solving, relative to the predictive variance."""

TOLERANCE_STEP = 1e-2
"""Factor by which the tolerance is reduced from one round of solves to the next."""


@dataclass(frozen=True)
class VarianceOptions:
    """How predictive variances are computed; without gaps they have a closed form.

    Attributes:
        variance: "dense": exact, by a Cholesky factor over the observed cells or over the gaps,
            whichever are fewer; "fill" and "ignore": one solve per test point, exact to the
            tolerance, from below and from above; "sampled": unbiased, all points share the solves;
            "rank_reduced": that of the Nystrom posterior, without solves, possibly too small far
            from data; "auto": "dense" if cheap, else a solve per point up to 64 points, else
            "sampled".
        error: sampling ends when the largest relative standard error of predictive variances
            (noise included) is below this.
        samples: most samples; S samples give an error of at most sqrt(2 / S).
        rank: number of eigenpairs for "rank_reduced".
    """

    variance: VarianceName = "auto"
    samples: int = 200
    rank: int = 500
    error: float = 0.1

    def __post_init__(self) -> None:
        """Check ranges; raises ConfigError."""
        check_one_of(get_args(VarianceName), variance=self.variance)
        check_at_least(2, variance_samples=self.samples)
        check_at_least(1, variance_rank=self.rank)
        check_positive(variance_error=self.error)


def choose_variance(
    options: VarianceOptions, gaps: str, num_points: int, num_observed: int, num_gaps: int
) -> str:
    """Resolve "auto" for a number of test points; "full" without gaps."""
    if gaps == "full":
        return "full"
    if options.variance != "auto":
        return options.variance
    if dense_is_cheap(num_observed, num_gaps):
        return "dense"
    if num_points > MAX_SOLVED_POINTS:
        return "sampled"
    return "ignore" if gaps == "ignore" else "fill"


def require_dense_variance(
    rows: GriddedRows, like: Tensor, memory_budget: int | str | None = None
) -> None:
    """Raise ConfigError if ``DenseVariance`` would not fit into memory."""
    observed, gaps, size = len(rows.cells), len(rows.gaps), rows.grid.size
    over_observed = any(rows.grid.inner) or factorises_observed(observed, gaps)
    copies = len(rows.grid.axes) + 2  # covariances of the axes, their product, and its factor
    entries = copies * observed**2 if over_observed else 4 * gaps**2 + 2 * gaps * size
    cells = observed if over_observed else gaps
    require_memory(
        8 * entries,
        like.device,
        f"variance=dense factorises a matrix over {cells:,} cells and",
        "take variance=auto",
        memory_budget,
    )


def full_variance(system: GridSystem, points: GridPoints) -> Tensor:
    """k_** - g^T (K + sigma^2 I)^{-1} g (t,), the variance if the whole grid were observed.

    The elementwise square of a Kronecker product is the Kronecker product of the squares, so one
    product serves all points. Cost: as the mean at the points.
    Source: Evans thesis, section 3.4, extended.
    """
    squared = points.squared(system.spectrum.vectors)
    return points.prior - squared.contract(system.spectrum.shifted.reciprocal())


def variance_by_solves(
    system: GridSystem, points: GridPoints, options: GapOptions, gaps: Literal["fill", "ignore"]
) -> Tensor:
    """k_** - g^T (K_XX + sigma^2 I)^{-1} g (t,), by one solve per point.

    With inexact conjugate gradients "fill" gives too small and "ignore" too large a variance (by
    an error of second order in the residual), so the two bracket it. Cost: one solve per point.
    Source: Evans thesis, section 3.4.
    """
    chosen = replace(options, gaps=gaps, precondition_rank=None)
    found = torch.empty_like(points.prior)
    for rows in blocks(len(found), system.size):
        cross = points.observed(rows, system.rows.cells).mT
        explained = _explained_variance(system, cross, points.prior[rows].double(), chosen)
        found[rows] = points.prior[rows] - explained.to(found.dtype)
    return found


def _explained_variance(
    system: GridSystem, cross: Tensor, prior: Tensor, options: GapOptions
) -> Tensor:
    """g^T (K_XX + sigma^2 I)^{-1} g (c,) for columns g, to ``MAX_VARIANCE_ERROR``.

    With small noise, the error left by the solver's tolerance may exceed the variance. So the
    tolerance is reduced by ``TOLERANCE_STEP`` (which reduces the error by its square) until the
    error bound of ``GridSolve``, or the last change, is small enough.
    """
    solve = solve_gaps(system, cross, options)
    last = torch.full_like(solve.fit, torch.inf)
    while solve.report is not None:
        allowed = MAX_VARIANCE_ERROR * ((prior - solve.fit).clamp_(min=0.0) + system.noise)
        change = (solve.fit - last).abs()
        if bool(((solve.error <= allowed) | (change <= 10.0 * allowed)).all()):
            break
        if not solve.report.converged:
            if bool(torch.isfinite(last).all()):  # otherwise the solve has warned already
                warnings.warn(
                    f"predictive variances by solving ({options.gaps}) changed by up to "
                    f"{float(change.max()):.1e} when the tolerance was last lowered, and cannot be "
                    f"computed more exactly at noise variance {float(system.noise):.1e}; take the "
                    "other of variance=fill and ignore, or dtype=float64",
                    UnconvergedWarning,
                    stacklevel=users_line(),
                )
            break
        last = solve.fit
        options = replace(options, tolerance=TOLERANCE_STEP * options.tolerance)
        solve = solve_gaps(system, cross, options, start=solve.state, on_failure="return")
    return solve.fit


def variance_bracket(system: GridSystem, points: GridPoints, options: GapOptions) -> Bracket:
    """Certified bounds of the latent variance at each point (t,), by ``variance_by_solves``.

    Without gaps both are equal to the closed form.
    """
    if not system.num_gaps:
        both = full_variance(system, points)
        return Bracket(both, both)
    return Bracket(
        variance_by_solves(system, points, options, "fill"),
        variance_by_solves(system, points, options, "ignore"),
    )


def rank_reduced_variance(
    system: GridSystem, points: GridPoints, rank: int, memory_budget: int | str | None = None
) -> Tensor:
    """k_** - g_X^T (B B^T + sigma^2 I)^{-1} g_X with the ``rank`` leading eigenpairs, (t,)."""
    q = ignore_preconditioner(system, rank, memory_budget)
    assert q is not None
    found = torch.empty_like(points.prior)
    for rows in blocks(len(found), system.size):
        cross = points.observed(rows, system.rows.cells).mT
        found[rows] = points.prior[rows] - (cross * q.solve(cross)).sum(0)
    return found


class DenseVariance:
    """Exact variances by a Cholesky factor over the observed cells or, if fewer, over the gaps.

    Over the observed cells v = k_** - |L^{-1} g_X|^2. Over the gaps v = v_full + |R^T (C g)_Z|^2
    with F^{-1} = R R^T and v_full the closed form of the full grid. In float32
    rounding of covariances is larger than small variances, so both are to be in float64.

    Raises:
        NotPositiveDefinite: the matrix is numerically not positive definite.

    Cost: N^3 / 3 and N^2 per point; or L^3 / 3, 3 L Kronecker products and L products as for means.
    Memory N^2, or L M.
    Source: Evans thesis, section 3.4; over the gaps by block inversion.
    """

    def __init__(self, system: GridSystem) -> None:
        self.observed = system.circular or factorises_observed(system.num_observed, system.num_gaps)
        if self.observed:
            matrix = observed_covariance(system.factors, system.rows)
            matrix.diagonal().add_(system.noise)
            self.factor = observed_factor(matrix)
        else:
            self.factor = torch.cat(list(gap_columns(system)[1]), 1)

    def variance(self, system: GridSystem, points: GridPoints) -> Tensor:
        """Variance (t,) at points."""
        if not self.observed:
            return full_variance(system, points) + points.contract(self.factor).square().sum(1)
        found = torch.empty_like(points.prior)
        for rows in blocks(len(found), len(self.factor)):
            cross = points.observed(rows, system.rows.cells).mT
            white = torch.linalg.solve_triangular(self.factor, cross, upper=False)
            found[rows] = points.prior[rows] - white.square().sum(0)
        return found
