"""Posterior variances on and off a grid with gaps from random vectors over the grid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.methods.grid.gap_preconditioners import fill_preconditioner
from gpx.methods.grid.gaps import GapOptions, choose_gaps, solve_gaps
from gpx.methods.grid.points import GridPoints
from gpx.methods.grid.system import GridSystem, blocks
from gpx.methods.grid.variance import full_variance

SEED = 2017
"""Seed of sampled variances, fixed so that predictions are reproducible."""

SAMPLE_BLOCK = 32
"""Samples drawn together; after each block their error is estimated again."""

SAMPLE_TOLERANCE = 1e-3
"""Largest relative residual of solves for samples, far below their scatter."""


class Sampled(NamedTuple):
    """Variances estimated from samples.

    Attributes:
        variance (t,).
        error: largest relative standard error of variance plus noise variance.
        samples: number of samples used.
    """

    variance: Tensor
    error: float
    samples: int


class SampledVariance:
    """Variances at any points, with the term that has no closed form estimated from random vectors.

    With "fill", v = v_full + E[(g^T C V^T F^{-1/2} z)^2], where v_full is the closed form of the
    full grid; draws F^{-1/2} z are F^{-1} w_Z with w ~ N(0, C). With "ignore",
    v = E[(f(x) - its prediction from noisy f_X)^2] over draws f of the prior.

    Draws are Gaussian, so S of them give the sampled term a relative standard error of sqrt(2 / S).
    Blocks are drawn until that is small relative to the whole variance.

    Args:
        most: most samples, each a vector over the grid that is kept.

    Exactness: unbiased up to the stopping rule.
    Cost: one solve per sample, in blocks; memory ``most`` vectors over the grid.
    """

    def __init__(self, system: GridSystem, options: GapOptions, most: int) -> None:
        gaps, _ = choose_gaps(options, system.rows)
        tolerance = max(options.tolerance, sample_tolerance(system))
        self.system, self.most = system, most
        self.solve_options = replace(options, tolerance=tolerance)
        self.filling = gaps in ("fill", "penalize")
        self._blocks: dict[int, Tensor] = {}

    def block(self, number: int) -> Tensor:
        """Vectors (M, c) of one block; drawn once, or by threads at the same time to the same."""
        found = self._blocks.get(number)
        if found is None:
            found = self._blocks.setdefault(number, self._draw_block(number))
        return found

    def _draw_block(self, number: int) -> Tensor:
        system, count = self.system, min(SAMPLE_BLOCK, self.most - number * SAMPLE_BLOCK)
        like = system.spectrum.shifted
        generator = torch.Generator(device=like.device).manual_seed(SEED + number)
        vectors = like.new_empty(system.size, count)
        draw = self._draw_with_filled_gaps if self.filling else self._draw_with_ignored_gaps
        for block in blocks(count, system.size):
            width = block.stop - block.start
            normals = like.new_empty(system.size, width).normal_(generator=generator)
            vectors[:, block] = draw(normals, generator)
        return vectors

    def _draw_with_filled_gaps(self, normals: Tensor, generator: torch.Generator) -> Tensor:
        system, options = self.system, self.solve_options
        solved = options.conjugate_gradients(
            system.missing,
            system.inverse_root(system.rows.gaps, normals),
            fill_preconditioner(system, options.precondition_rank, options.memory_budget),
            verify=False,
        )
        return system.inverse(system.rows.gaps, None, solved.solution)

    def _draw_with_ignored_gaps(self, normals: Tensor, generator: torch.Generator) -> Tensor:
        system = self.system
        weights = prior_weights(system, normals)
        # of the function that the weights give, without the eigenvalues that they leave out
        prior = system.covariance(None, system.rows.cells, weights)
        noise = prior.new_empty(prior.shape).normal_(generator=generator)
        targets = prior + system.noise.sqrt() * noise
        solved = solve_gaps(system, targets, self.solve_options)
        return weights - solved.alpha

    def variance(self, points: GridPoints, error: float) -> Sampled:
        """Variances at points (t,) to a relative standard ``error``; cost: as S means."""
        system = self.system
        if self.filling:
            known = full_variance(system, points)
        else:
            known = points.prior - grid_explained(system, points)
        total, count = torch.zeros_like(points.prior), 0
        while True:
            block = self.block(count // SAMPLE_BLOCK)
            for part in blocks(block.shape[1], system.size):
                total += points.contract(block[:, part]).square_().sum(1)
            count += block.shape[1]
            mean = total / count
            whole = (known + mean).clamp_(min=0.0) + system.noise
            share = float((mean / whole).max()) if len(mean) else 0.0
            found = share * math.sqrt(2.0 / count)
            if found <= error or count >= self.most:
                return Sampled(known + mean, found, count)


def sample_tolerance(system: GridSystem) -> float:
    """Relative residual of sampled solves: 1e-3, smaller if the noise is far below the prior.

    A relative residual r may give an error of r^2 k / sigma^2 relative to the prior variance k.
    """
    prior = math.prod(float(f.diagonal().max()) for f in system.kronecker.factors)
    return min(SAMPLE_TOLERANCE, 0.1 * math.sqrt(float(system.noise) / prior))


def grid_explained(system: GridSystem, points: GridPoints) -> Tensor:
    """g^T K^+ g (t,), the prior variance explained by noise-free values on the whole grid."""
    return points.squared(system.spectrum.vectors).contract(_pseudo_inverse(system))


def prior_weights(system: GridSystem, normals: Tensor) -> Tensor:
    """Weights Q T^{+1/2} z (M, c) of prior functions, without eigenvalues below rounding."""
    scaled = normals * _pseudo_inverse(system).sqrt().unsqueeze(1)
    return system.eigenvectors.unchecked_product()(scaled)


def _pseudo_inverse(system: GridSystem) -> Tensor:
    """1 / lambda (M,), or 0 if lambda is below rounding."""
    spectrum = system.spectrum.shifted - system.noise
    # in float32 a thousand roundings would be two per cent of the variance of a rough kernel
    times = 3.0 if spectrum.dtype == torch.float32 else 1e3
    floor = times * torch.finfo(spectrum.dtype).eps * (spectrum.max() + system.noise)
    return torch.where(spectrum > floor, 1.0 / spectrum.clamp(min=floor), 0.0)
