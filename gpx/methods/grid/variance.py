"""Posterior variances on and off a grid with gaps: exact, bracketed, sampled, rank-reduced."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import RelativeResidual, UnconvergedWarning, conjugate_gradients
from gpx.methods.grid.gaps import (
    GapOptions,
    choose_gaps,
    fill_preconditioner,
    ignore_preconditioner,
    solve_gaps,
)
from gpx.methods.grid.points import GridPoints
from gpx.methods.grid.system import GridSystem

VarianceName = Literal["auto", "fill", "ignore", "sampled", "rank_reduced"]

EXACT_POINTS = 64
"""Test points up to which "auto" solves a system for each."""

MOST_ERROR = 1e-3
"""What solves may leave of error, in units of the predictive variance."""

TIGHTER = 1e-2
"""Factor of the tolerance from one round of a variance's solve to the next."""

SAMPLE_TOLERANCE = 1e-3
"""Relative residual of sampled solves, at most: far below the scatter of the samples."""

BLOCK_NUMBERS = 2**24
"""Numbers in one block of columns over the grid."""


@dataclass(frozen=True)
class VarianceOptions:
    """How predictive variances are computed; a grid without gaps has them in closed form.

    Attributes:
        variance: "fill" and "ignore": one solve per test point, exact to the tolerance, from below
            and from above; "sampled": unbiased from ``samples`` solves for any number of points;
            "rank_reduced": the Nystrom posterior's, no solves, may be too small far from data;
            "auto": a solve per point up to 64 points, else sampled.
        samples: S; the part of the variance that the gaps cause has relative error sqrt(2 / S).
        rank: eigenpairs of "rank_reduced".
    """

    variance: VarianceName = "auto"
    samples: int = 32
    rank: int = 500

    def __post_init__(self) -> None:
        """Check ranges; raises ConfigError."""
        if self.variance not in get_args(VarianceName):
            raise ConfigError(
                f"approx.variance={self.variance}: choose one of "
                f"{', '.join(get_args(VarianceName))}"
            )
        if self.samples < 2 or self.rank < 1:
            raise ConfigError(
                f"approx.variance_samples={self.samples} must be at least 2 and "
                f"approx.variance_rank={self.rank} at least 1"
            )


class VarianceBracket(NamedTuple):
    """Certified ends of the latent variance at each point, (t,)."""

    lower: Tensor
    upper: Tensor


def choose_variance(options: VarianceOptions, gaps: str, num_points: int) -> str:
    """What "auto" means for so many points, never "auto"; "full" where there are no gaps."""
    if gaps == "full":
        return "full"
    if options.variance != "auto":
        return options.variance
    if num_points > EXACT_POINTS:
        return "sampled"
    return "ignore" if gaps == "ignore" else "fill"


def full_variance(system: GridSystem, points: GridPoints) -> Tensor:
    """k_** - g^T (K + sigma^2 I)^{-1} g as if the whole grid were observed, (t,).

    The elementwise square of a Kronecker product is that of the squares: one product for all
    points. Cost: as the mean at the points. Source: Evans thesis, section 3.4, extended.
    """
    squared = points.squared(system.vectors)
    return points.prior - squared.contract(system.shifted.reciprocal())


def solved_variance(
    system: GridSystem, points: GridPoints, options: GapOptions, gaps: Literal["fill", "ignore"]
) -> Tensor:
    """k_** less the explained part of one solve per point, (t,).

    "fill" explains too much and "ignore" too little where conjugate gradients stop early (second
    order in the residual), so the two bracket the variance. Cost: one solve per point.
    Source: Evans thesis, section 3.4.
    """
    chosen = replace(options, gaps=gaps, precondition_rank=None)
    found = torch.empty_like(points.prior)
    step = max(1, BLOCK_NUMBERS // system.size)
    for start in range(0, found.shape[0], step):
        rows = slice(start, min(start + step, found.shape[0]))
        cross = points.columns(rows)[:, system.rows.cells].mT
        explained = _explained(system, cross, points.prior[rows].double(), chosen)
        found[rows] = points.prior[rows] - explained.to(found.dtype)
    return found


def _explained(system: GridSystem, cross: Tensor, prior: Tensor, options: GapOptions) -> Tensor:
    """g^T (K_XX + sigma^2 I)^{-1} g (c,) for columns g, tightened until its error does not matter.

    A residual of 1e-6 relative to a right-hand side as large as 1 / sigma^2 may leave an error
    many times the variance itself. So each round asks for a hundredth of the residual, hence about
    1e-4 of the error, until the certificate of ``GridSolve`` or the last change is small enough.
    """
    solve = solve_gaps(system, cross, options)
    last = torch.full_like(solve.fit, torch.inf)
    while solve.report is not None:
        allowed = MOST_ERROR * ((prior - solve.fit).clamp_(min=0.0) + system.noise)
        change = (solve.fit - last).abs()
        if bool(((solve.error <= allowed) | (change <= 10.0 * allowed)).all()):
            break
        if not solve.report.converged:
            if bool(torch.isfinite(last).all()):  # else the solve itself has warned
                warnings.warn(
                    f"predictive variances by solving ({options.gaps}) changed by up to "
                    f"{float(change.max()):.1e} when the tolerance was last lowered, and cannot be "
                    f"had more exactly at noise variance {float(system.noise):.1e}; take the other "
                    "of approx.variance=fill and ignore, or trainer.dtype=float64",
                    UnconvergedWarning,
                    stacklevel=2,
                )
            break
        last = solve.fit
        options = replace(options, tolerance=TIGHTER * options.tolerance)
        solve = solve_gaps(system, cross, options, start=solve.state, on_failure="return")
    return solve.fit


def variance_bracket(
    system: GridSystem, points: GridPoints, options: GapOptions
) -> VarianceBracket:
    """Both ends by ``solved_variance``; equal in closed form where there are no gaps."""
    if not system.num_gaps:
        both = full_variance(system, points)
        return VarianceBracket(both, both)
    return VarianceBracket(
        solved_variance(system, points, options, "fill"),
        solved_variance(system, points, options, "ignore"),
    )


def rank_reduced_variance(
    system: GridSystem, points: GridPoints, options: GapOptions, rank: int
) -> Tensor:
    """k_** - g_X^T (B B^T + sigma^2 I)^{-1} g_X with the ``rank`` leading eigenpairs, (t,)."""
    q = ignore_preconditioner(system, replace(options, precondition_rank=rank))
    assert q is not None
    found = torch.empty_like(points.prior)
    step = max(1, BLOCK_NUMBERS // system.size)
    for start in range(0, found.shape[0], step):
        rows = slice(start, min(start + step, found.shape[0]))
        cross = points.columns(rows)[:, system.rows.cells].mT
        found[rows] = points.prior[rows] - (cross * q.solve(cross)).sum(0)
    return found


class SampledVariance:
    """Vectors over the grid whose squared means at any points average to the variance's unknown.

    Filling ("fill"): v = v_full + E[(g^T C V^T F^{-1/2} z)^2], the second term what the gaps add to
    the variance of the full grid, which has a closed form. Draws F^{-1/2} z are F^{-1} w_Z with
    w ~ N(0, C). Else: v = E[(f(x) - its prediction from noisy f_X)^2] over draws f of the prior.

    Args:
        samples: S.
        generator: of the normals.

    Exactness: unbiased; relative standard error sqrt(2 / S) of the sampled term.
    Cost: one solve for S right-hand sides, in blocks; memory S vectors over the grid.
    """

    def __init__(
        self,
        system: GridSystem,
        options: GapOptions,
        samples: int,
        generator: torch.Generator,
    ) -> None:
        gaps, _ = choose_gaps(options, system.num_gaps, system.size, system.inner_size)
        self.filling = gaps in ("fill", "penalize")
        self.vectors = system.shifted.new_empty(system.size, samples)
        step = max(1, BLOCK_NUMBERS // system.size)
        for start in range(0, samples, step):
            block = slice(start, min(start + step, samples))
            normals = torch.randn(
                system.size,
                block.stop - block.start,
                generator=generator,
                dtype=system.shifted.dtype,
                device=system.shifted.device,
            )
            draw = self._filled if self.filling else self._ignored
            self.vectors[:, block] = draw(system, options, normals, generator)

    @staticmethod
    def _filled(
        system: GridSystem, options: GapOptions, normals: Tensor, generator: torch.Generator
    ) -> Tensor:
        solved = conjugate_gradients(
            system.missing,
            system.inverse_root(system.rows.gaps, normals),
            preconditioner=fill_preconditioner(system, options),
            stop=RelativeResidual(max(options.tolerance, sample_tolerance(system))),
            max_iterations=options.max_iterations,
            verify=False,
            on_failure="warn",
        )
        return system.inverse(system.rows.gaps, None, solved.solution)

    @staticmethod
    def _ignored(
        system: GridSystem, options: GapOptions, normals: Tensor, generator: torch.Generator
    ) -> Tensor:
        prior = system.root(normals)
        noise = torch.randn(
            system.num_observed,
            normals.shape[1],
            generator=generator,
            dtype=normals.dtype,
            device=normals.device,
        )
        targets = prior[system.rows.cells] + system.noise.sqrt() * noise
        tolerance = max(options.tolerance, sample_tolerance(system))
        solved = solve_gaps(system, targets, replace(options, tolerance=tolerance))
        return prior_weights(system, normals) - solved.alpha

    def variance(self, system: GridSystem, points: GridPoints) -> Tensor:
        """(t,) at points; cost S products as for means."""
        total = torch.zeros_like(points.prior)
        width = max(1, 2 * BLOCK_NUMBERS // self.vectors.shape[0])
        for block in self.vectors.split(width, 1):
            total += points.contract(block).square_().sum(1)
        mean = total / self.vectors.shape[1]
        if self.filling:
            return full_variance(system, points) + mean
        return mean + points.prior - grid_explained(system, points)


def sample_tolerance(system: GridSystem) -> float:
    """Relative residual of sampled solves: 1e-3, less where the noise is far below the prior.

    A residual of r times the targets may leave r^2 k / sigma^2 of the prior variance k, per cell.
    """
    prior = math.prod(float(f.diagonal().max()) for f in system.factors)
    return min(SAMPLE_TOLERANCE, 0.1 * math.sqrt(float(system.noise) / prior))


def grid_explained(system: GridSystem, points: GridPoints) -> Tensor:
    """g^T K^+ g (t,): the prior variance that values on the whole grid without noise explain."""
    return points.squared(system.vectors).contract(_pseudo_inverse(system))


def prior_weights(system: GridSystem, normals: Tensor) -> Tensor:
    """Q T^{+1/2} z (M, c): prior functions g(x)^T times it that equal Q T^{1/2} z on the grid."""
    weights = _pseudo_inverse(system).sqrt()
    scaled = normals * (weights if normals.ndim == 1 else weights.unsqueeze(1))
    out = system.workspace.product(
        system.vectors, scaled.unsqueeze(0) if scaled.ndim == 1 else scaled.mT.contiguous()
    ).clone()
    return out.squeeze(0) if normals.ndim == 1 else out.mT


def _pseudo_inverse(system: GridSystem) -> Tensor:
    """1 / lambda where lambda is above rounding, else 0, (M,)."""
    spectrum = system.shifted - system.noise
    floor = 1e3 * torch.finfo(spectrum.dtype).eps * (spectrum.max() + system.noise)
    return torch.where(spectrum > floor, 1.0 / spectrum.clamp(min=floor), 0.0)
