"""Reduction of the prior variance by the data at every grid point, for variances in O(1)."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.methods.ski.covariance import AxisCovariance, LagCovariance
from gpx.methods.ski.grid import InterpolationGrid, axis_points
from gpx.methods.ski.low_rank import EigenPart, LowRankPart
from gpx.methods.ski.system import SKISystem
from gpx.operators import Kronecker

CHUNK_ENTRIES = 1 << 24
"""Entries of a working array over some of the grid points."""


@torch.no_grad()
def explained_by_low_rank(part: LowRankPart, inner: Tensor, grid: InterpolationGrid) -> Tensor:
    """diag(K_UX A^{-1} K_XU) (m,) from the low-rank part: |c|^2 - |L^{-1} c|^2 for its columns c.

    Args:
        inner (r, r): L, of I + C W^T W C^T / noise = L L^T.

    Cost: m r^2. Exact where C carries the whole matrix.
    Source: Hultin 2017, section 3.3 (interpolated variances).
    """
    # the end points have weight on themselves only, whatever is done with the end cells
    grid = replace(grid, boundary="keys")
    if isinstance(part, EigenPart):
        part = copy.copy(part)
        part.grid = grid
    axes = [axis_points(axis, inner) for axis in grid.axes]
    points = torch.cartesian_prod(*axes).reshape(grid.size, len(axes))
    found = inner.new_empty(grid.size)
    for rows in row_slices(grid.size, max(1, CHUNK_ENTRIES // part.entries_at(grid))):
        at = part.at(grid.weights(points[rows], "clamp"), points[rows], "clamp")
        left = torch.linalg.solve_triangular(inner, at, upper=False)
        found[rows] = (at.square() - left.square()).sum(0)
    return found.clamp_min(0.0)


@torch.no_grad()
def explained_by_samples(
    system: SKISystem,
    samples: int,
    generator: torch.Generator,
    tolerance: float,
    max_iterations: int,
) -> Tensor:
    """Unbiased estimate of diag(K_UX A^{-1} K_XU) (m,): mean of (K_UU W^T r)^2, r ~ N(0, A^{-1}).

    Its relative standard error is sqrt(2 / samples).

    Raises:
        DidNotConverge: a solve needs more than ``max_iterations`` steps.
    Cost: one solve with ``samples`` columns.
    Source: Hultin 2017, section 3.3; Papandreou and Yuille 2011.
    """
    w, rows = system.detached_weights, len(system.weights.values)
    noise = system.noise.new_empty(rows, samples).normal_(generator=generator)
    drawn = w.matmul(prior_draws(system, samples, generator)) + system.noise.sqrt() * noise
    solved = system.solve(drawn, tolerance, max_iterations).solution
    return system.covariance.multiply(w.mT.matmul(solved)).square().mean(1)


@torch.no_grad()
def prior_draws(system: SKISystem, samples: int, generator: torch.Generator) -> Tensor:
    """Draws of N(0, K_UU) as columns (m, samples), by axis eigenvectors or ``embedded_draws``."""
    covariance = system.covariance
    if isinstance(covariance, AxisCovariance):
        roots = []
        for axis in covariance.tensors:
            values, vectors = torch.linalg.eigh(axis)
            roots.append(vectors * values.clamp_min(0.0).sqrt())
        normals = system.noise.new_empty(system.base.shape[0], samples)
        normals.normal_(generator=generator)
        found: Tensor = Kronecker(*roots).matmul(normals)
        return found
    assert isinstance(covariance, LagCovariance)
    return covariance.embedded_draws(samples, generator)
