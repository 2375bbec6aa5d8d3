"""E log sum_c exp(f_c) on a lattice that all rows share: most of the work is two matrix products.

As in ``gpx.likelihoods.log_sum_exp``, the expectation is that of a maximum of f_c + g_c, g_c
standard Gumbel, whose distribution function at -u is the product over c of

    phi_c(u) = P(f_c + u < v) = E Phi((v - u - E f_c) / s_c),    v = -g_c.

Here u and v are multiples of one step h, so that Phi is needed at their differences alone, whose
number does not grow with the number of pairs: phi is a product of these values with a matrix of
constants. The trapezoid rule in v takes s_c that are not short against h. Narrow f_c are smoothed
by a part of the Gumbel variable: its law is that of a normal variable of variance h / 4, which is
added to f_c, and of a remainder, a signed density that is known by its Fourier transform.
The error falls as exp(-pi^2 / (2 h)) whatever the standard deviations are: at h / 4 of variance,
the transforms of both parts have fallen alike at the frequency 2 pi / h of the first alias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

MAX_DEVIATION = 8.0
"""Standard deviation of a latent up to which the lattice is used: its points grow with it."""

STEP_TIMES = 14.4
"""h = STEP_TIMES / num_steps."""

SPARE = 0.25
"""Variance that is moved from the Gumbel variable to the latent functions, over h."""

LEFT, RIGHT, DEVIATIONS = 12.0, 3.6, 6.0
"""u reaches from -LEFT to RIGHT, further by DEVIATIONS latent standard deviations and, on the left,
by log(p / 4) for p classes, as the largest of p equal latents grows."""

LOWEST, HIGHEST = -17.0, 7.0
"""Range of v; what is left below is put on the two lowest points."""

CUT, CUT_WIDTH = 0.65, 0.06
"""The transform of the remainder is smoothly cut off here, in parts of the alias's frequency."""

WIDEST_STEP = 0.25
"""Lattices are made for latent standard deviations that are multiples of this."""

MAX_RATIO = 6.0
"""Arguments of exp(-x^2) are clamped to this: 2e-16, and far from the subnormal numbers, with which
a CPU is slow."""

LEAST_LAW, LEAST_PRODUCT = 1e-10, 1e-15
"""phi and products of it are kept above these: rounding and the remainder's sign may leave them
below zero."""

BLOCK_POINTS = 48
"""Rows of the remainder that are multiplied at a time: half of it, or more, is zero."""

EULER = 0.5772156649015329


class Lattice(NamedTuple):
    """Constants for latent functions up to a certain width.

    Attributes:
        distances (D,): values of v - u, ascending.
        remainder (T, D): half the weight of v = u_t + distance; rows sum to a half.
        weights (T,): of the trapezoid rule in u, the first with the exponential tail before it.
        level: sum of the weights of u below 0, half of that at 0, and all of the tail.
        spare: variance that is added to that of the latent functions.
    """

    distances: Tensor
    remainder: Tensor
    weights: Tensor
    level: float
    spare: float


def lattice_for(variance: Tensor, num_steps: int) -> Lattice:
    """The lattice for latent variances (n, p), none above ``MAX_DEVIATION`` squared."""
    widest = float(variance.detach().amax().clamp_min(0.0).sqrt())
    rounded = WIDEST_STEP * math.ceil(widest / WIDEST_STEP)
    return _lattice(rounded, variance.shape[-1], num_steps, variance.dtype)


@lru_cache(maxsize=64)
def _lattice(widest: float, num_latents: int, num_steps: int, dtype: torch.dtype) -> Lattice:
    step = STEP_TIMES / num_steps
    more = max(0.0, math.log(num_latents / 4.0))
    left = math.ceil((LEFT + more + DEVIATIONS * widest) / step)
    right = math.ceil((RIGHT + DEVIATIONS * widest) / step)
    lowest, highest = math.floor(LOWEST / step), math.ceil(HIGHEST / step)
    weights = _remainder(step, lowest, highest)
    num_points = left + right + 1
    distances = step * torch.arange(lowest - right, highest + left + 1, dtype=torch.float64)
    rest = torch.zeros(num_points - 1, dtype=torch.float64)
    # row t begins one place further left than the row before
    band = torch.cat([rest, 0.5 * weights, rest]).unfold(0, len(distances), 1)
    ratio = math.exp(-step)  # before the first point 1 - prod_c phi_c is a geometric series
    tail = step * ratio / (1.0 - ratio)
    trapezoid = torch.full((num_points,), step, dtype=torch.float64)
    trapezoid[0] += tail
    level = step * (left + 0.5) + tail
    constants = distances.to(dtype), band.to(dtype).contiguous(), trapezoid.to(dtype)
    return Lattice(*constants, level, SPARE * step)


def _remainder(step: float, lowest: int, highest: int) -> Tensor:
    """Weights of v = step * lowest ... step * highest under the remainder: (K,), summing to one."""
    alias = 2.0 * math.pi / step
    spacing = 0.05
    frequency = torch.arange(0.0, alias, spacing, dtype=torch.float64)
    fine = torch.arange(-45.0, 6.0, 0.02, dtype=torch.float64)
    density = 0.02 * torch.exp(fine - torch.exp(fine))
    smooth = 0.5 * torch.erfc((frequency - CUT * alias) / (CUT_WIDTH * alias))
    factor = torch.exp(0.5 * SPARE * step * frequency.square()) * smooth * spacing / math.pi
    factor[0] *= 0.5  # negative frequencies are those mirrored
    phase = frequency.unsqueeze(1) * fine
    cosine, sine = factor * (phase.cos() @ density), factor * (phase.sin() @ density)
    back = step * torch.arange(lowest, highest + 1, dtype=torch.float64).unsqueeze(1) * frequency
    weights = step * (back.cos() @ cosine + back.sin() @ sine)
    # what is left below -> the two lowest points, so that sum and mean are those of the whole law
    missing = 1.0 - weights.sum()
    places = step * torch.arange(lowest, highest + 1, dtype=torch.float64)
    moved = (-EULER - weights @ places - missing * places[0]) / step
    weights[0] += missing - moved
    weights[1] += moved
    return weights


@torch.no_grad()
def value_and_slopes(
    mean: Tensor, variance: Tensor, lattice: Lattice, *, slopes: bool
) -> tuple[Tensor, ...]:
    """The expectation (n,) and, if asked for, its derivatives by both arguments (n, p).

    Args:
        mean, variance (n, p): of the latent functions.
        lattice: of ``lattice_for`` these, or wider, variances.

    Cost: O(n p T D) in matrix products, O(n p D) exponentials.
    """
    mean, variance = mean.contiguous(), variance.contiguous()  # both may be turned
    offset = mean.amax(-1)
    scale = _scale(variance, lattice)
    ratio = _ratios(mean - offset.unsqueeze(-1), scale, lattice)  # (n, p, D)
    p, num_points, num_distances = mean.shape[-1], *lattice.remainder.shape
    laws = mean.new_empty(len(mean), p, num_points)
    blocks = list(_blocks(lattice))
    errors, flat = torch.erf(ratio).view(-1, num_distances), laws.view(-1, num_points)
    for rows, columns, block in blocks:
        flat[:, rows] = errors[:, columns] @ block.mT
    laws.add_(0.5).clamp_min_(LEAST_LAW)
    product = _product(laws)
    value = offset + lattice.level - product @ lattice.weights - EULER
    if not slopes:
        return (value,)
    others = ((lattice.weights * product).unsqueeze(1) / laws).view(-1, num_points)
    spread = errors.zero_()
    for rows, columns, block in blocks:
        spread[:, columns].addmm_(others[:, rows], block)
    slope = ratio.square().neg_().exp_().mul_(spread.view_as(ratio))
    by_mean = slope.sum(-1) * scale * (2.0 / math.sqrt(math.pi))
    by_variance = slope.mul_(ratio).sum(-1) * scale.square() * (2.0 / math.sqrt(math.pi))
    return value, by_mean, by_variance


def _blocks(lattice: Lattice) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows and columns of parts of the remainder, outside of which it is zero."""
    num_points, num_distances = lattice.remainder.shape
    width = num_distances - num_points + 1
    for first in range(0, num_points, BLOCK_POINTS):
        rows = slice(first, min(first + BLOCK_POINTS, num_points))
        columns = slice(num_points - rows.stop, num_points - 1 - first + width)
        yield rows, columns, lattice.remainder[rows, columns]


def differentiable_value(mean: Tensor, variance: Tensor, lattice: Lattice) -> Tensor:
    """The expectation (n,) in differentiable operations."""
    offset = mean.detach().amax(-1)
    centred = mean - offset.unsqueeze(-1)
    laws = _laws(_ratios(centred, _scale(variance, lattice), lattice), lattice)
    return offset + lattice.level - _product(laws) @ lattice.weights - EULER


def differentiable_slopes(mean: Tensor, variance: Tensor, lattice: Lattice) -> Tensor:
    """Derivatives of the expectation by the means, (n, p), in differentiable operations."""
    scale = _scale(variance, lattice)
    ratio = _ratios(mean - mean.detach().amax(-1, keepdim=True), scale, lattice)
    laws = _laws(ratio, lattice)
    others = (lattice.weights * _product(laws)).unsqueeze(1) / laws
    slope = torch.exp(-ratio.square()) * (others @ lattice.remainder)
    return slope.sum(-1) * scale * (2.0 / math.sqrt(math.pi))


def _scale(variance: Tensor, lattice: Lattice) -> Tensor:
    """1 / (sqrt(2) s), s the standard deviation with the spare variance; (n, p)."""
    return (2.0 * (variance.clamp_min(0.0) + lattice.spare)).rsqrt()


def _ratios(centred: Tensor, scale: Tensor, lattice: Lattice) -> Tensor:
    """(v - u - E f) / (sqrt(2) s) at every distance, (n, p, D)."""
    ratio = (lattice.distances - centred.unsqueeze(-1)) * scale.unsqueeze(-1)
    return ratio.clamp(-MAX_RATIO, MAX_RATIO)


def _laws(ratio: Tensor, lattice: Lattice) -> Tensor:
    """phi_c at every u, (n, p, T); its limit has no part in derivatives."""
    laws = 0.5 + torch.erf(ratio) @ lattice.remainder.mT
    return laws + (laws.clamp_min(LEAST_LAW) - laws).detach()


def _product(laws: Tensor) -> Tensor:
    """Product over the latents, (n, p, T) -> (n, T); 0 where it is next to nothing.

    By halves, so that no partial product is a subnormal number.
    """
    while (count := laws.shape[1]) > 1:
        half = count // 2
        folded = (laws[:, :half] * laws[:, half : 2 * half]).clamp_min(LEAST_PRODUCT)
        laws = torch.cat([folded, laws[:, 2 * half :]], 1) if count % 2 else folded
    return torch.where(laws[:, 0] > 10.0 * LEAST_PRODUCT, laws[:, 0], 0.0)
