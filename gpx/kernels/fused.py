"""Distances and stationary kernel matrices in one sweep over memory, forward and backward.

Both functions work on tiles of rows that stay in the processor's cache: a thin matrix product
writes the squared distances of a tile, every elementwise step then runs in place in cache, and
only the result (and, for the gradient, its slope) goes to memory. The backward pass reads each of
them once and turns every tile into thin matrix products at once.

Accuracy: the squared distance comes from |a|^2 + |b|^2 - 2 a.b with inputs centred by the caller,
so its absolute error is a few machine epsilons times |a|^2 + |b|^2. Norms are shrunk by a relative
``4 eps`` (of the order of that error), so that coincident rows give exactly zero after the clamp
instead of rounding noise whose square root would not be small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.kernels.exponential import NEGLIGIBLE_SLOPE
from gpx.linalg.known_gradient import first_derivative_only

NO_SECOND_DERIVATIVE = (
    "a second derivative of a stationary kernel was asked for, but only first derivatives are "
    "available; write the kernel in plain torch operations for Hessians"
)

CPU_TILE = 4 << 20
"""Bytes of one tile on a CPU: small enough to stay in cache, large enough for the BLAS."""
GPU_TILE = 256 << 20
"""Bytes of one tile elsewhere, where launches cost more than passes over memory."""


class Profile(Protocol):
    """A stationary kernel's profile phi(r2), unit outputscale, in place on a tile of r2 >= 0.

    The factor costs nothing, because it goes into the matrix product that makes the distances, and
    one clamp to ``bounds`` removes negative rounding and arguments that are too large at once.

    Attributes:
        factor: what the squared distance arrives multiplied by.
        bounds: smallest and largest value of ``factor * r2`` that arrive; one of them is zero.
        slope_per_value: c when d phi / d r2 = c phi (then no slope is stored), else None.
    """

    factor: ClassVar[float]
    bounds: ClassVar[tuple[float, float]]
    slope_per_value: ClassVar[float | None]

    @staticmethod
    def evaluate_(scaled: Tensor, work: Tensor, with_slope: bool) -> None:
        """Replace ``factor * r2`` by phi(r2) and, ``with_slope``, work by d phi / d r2.

        The slope is zero where phi has none; without it, work is scratch. Both tensors have the
        tile's shape.
        """


def stationary_covariance(z1: Tensor, z2: Tensor, scale: Tensor, profile: type[Profile]) -> Tensor:
    """``scale * phi(|z1_i - z2_j|^2)`` as (n1, n2), differentiable once in z1, z2 and scale.

    Args:
        z1 (n1, d), z2 (n2, d): centred, scaled inputs; ``z1 is z2`` makes the diagonal exact. Or
            (b, n1, d) and (b, n2, d) for b matrices (b, n1, n2), small ones: a batch is one tile.
        scale (): outputscale, or (b, 1, 1).
        profile: phi and its derivative.

    At coincident points the derivative with respect to z is zero, which is exact where phi is
    differentiable and the subgradient 0 where it is not (Matern 1/2). Second derivatives are not
    available: asking for them raises. The result is kept for the backward pass, so changing it in
    place before makes autograd raise.

    Cost: O(n1 n2 d) time; memory beside the result one tile, and for gradients with respect to
    z1 or z2 one more matrix of its size (none when ``slope_per_value`` is given).
    """
    return _StationaryCovariance.apply(z1, z2, scale, profile, z1 is z2)


def squared_distance(z1: Tensor, z2: Tensor) -> Tensor:
    """``|z1_i - z2_j|^2`` as (n1, n2), never negative, differentiable once in both arguments.

    ``z1 is z2`` makes the diagonal exactly zero. Incoming gradients are ignored at zero distance
    (even infinite ones, as the square root sends), where the derivative is zero anyway. Cost:
    O(n1 n2 d) time, O(n1 n2) memory.
    """
    return _SquaredDistance.apply(z1, z2, z1 is z2)


class _StationaryCovariance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z1: Tensor, z2: Tensor, scale: Tensor, profile: type[Profile], square: bool
    ) -> Tensor:
        n1, n2 = z1.shape[-2], z2.shape[-2]
        with_slope = any(ctx.needs_input_grad[:2]) and profile.slope_per_value is None
        left, right = distance_factors(z1, z2, profile.factor)
        result = z1.new_empty(*z1.shape[:-1], n2)
        slopes = torch.empty_like(result) if with_slope else None
        work = z1.new_empty(0)
        if torch.compiler.is_exporting():  # one tile, of a size that is not known: no resizing
            work = torch.empty_like(result)
        for rows in _tiles(n1, z2):
            offset = rows.start if square else None
            part = (..., rows, slice(None))
            tile = distances_(left[part], right, offset, profile.bounds, result[part])
            if slopes is not None:
                slope = slopes[part]
            else:
                slope = work if work.shape == tile.shape else work.resize_(tile.shape)
            profile.evaluate_(tile, slope, with_slope)
            tile.mul_(scale)
            if slopes is not None and slopes.dtype == torch.float32:
                slope.copy_(torch.hardshrink(slope, NEGLIGIBLE_SLOPE))
        ctx.save_for_backward(z1, z2, scale, slopes, result)
        ctx.slope_per_value = profile.slope_per_value
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            return _refuse_second_derivative(ctx, grad, _StationaryCovariance)
        z1, z2, scale, slopes, result = ctx.saved_tensors
        need1, need2, need_scale = ctx.needs_input_grad[:3]
        pull = _Pullback(z1, z2, need1, need2)
        total = torch.zeros_like(scale) if need_scale else None
        for rows in _tiles(z1.shape[-2], z2):
            part = (..., rows, slice(None))
            incoming = grad[part]
            if not (need1 or need2):
                weights = result[part] * incoming
            elif slopes is None:
                value = result[part]
                if value.dtype == torch.float32:
                    value = torch.hardshrink(value, NEGLIGIBLE_SLOPE)
                weights = value * incoming
                pull.add(rows, weights)
            else:
                pull.add(rows, slopes[part] * incoming)
                weights = result[part] * incoming if total is not None else None
            if total is not None:
                total += weights.sum((-2, -1), keepdim=True) if scale.ndim else weights.sum()
        factor = scale if slopes is not None else ctx.slope_per_value
        grad1, grad2 = pull.result(factor)
        return grad1, grad2, None if total is None else total / scale, None, None


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z1: Tensor, z2: Tensor, square: bool) -> Tensor:
        left, right = distance_factors(z1, z2)
        result = z1.new_empty(z1.shape[0], z2.shape[0])
        for rows in _tiles(z1.shape[0], z2):
            offset = rows.start if square else None
            distances_(left[rows], right, offset, (0.0, math.inf), result[rows])
        ctx.save_for_backward(z1, z2, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            return _refuse_second_derivative(ctx, grad, _SquaredDistance)
        z1, z2, r2 = ctx.saved_tensors
        pull = _Pullback(z1, z2, *ctx.needs_input_grad[:2])
        for rows in _tiles(z1.shape[0], z2):
            pull.add(rows, grad[rows].masked_fill(r2[rows] == 0, 0.0))
        return *pull.result(1.0), None


def _refuse_second_derivative(
    ctx: Any, grad: Tensor, function: type[torch.autograd.Function]
) -> tuple[Tensor | None, ...]:
    with torch.no_grad():
        found = function.backward(ctx, grad)
    sources = [t for t in (*ctx.saved_tensors[:2], grad) if t is not None]
    return first_derivative_only(found, sources, NO_SECOND_DERIVATIVE)


class _Pullback:
    """Gradient of sum_ij W_ij |z1_i - z2_j|^2, accumulated over row tiles of W.

    d/dz1_i = 2 (z1_i sum_j W_ij - sum_j W_ij z2_j), and alike for z2: a row of ones under the
    transposed inputs makes each of them one thin matrix product. Inputs on the left and transposed
    is the fast orientation: measured 2 to 4 times faster than ``W @ z``.
    """

    def __init__(self, z1: Tensor, z2: Tensor, need1: bool, need2: bool) -> None:
        self.z1, self.z2 = z1, z2
        self.sum1 = _row_sums(z1) if need1 else None
        self.sum2 = _row_sums(z2) if need2 else None
        self.extended1 = _with_ones(z1) if need2 else z1
        self.extended2 = _with_ones(z2) if need1 else z2

    def add(self, rows: slice, weights: Tensor) -> None:
        if self.sum1 is not None:
            self.sum1[..., rows] = self.extended2 @ weights.mT
        if self.sum2 is not None and self.sum2.ndim == 2:
            self.sum2.addmm_(self.extended1[:, rows], weights)
        elif self.sum2 is not None:
            self.sum2.baddbmm_(self.extended1[..., rows], weights)

    def result(self, factor: float | Tensor) -> tuple[Tensor | None, Tensor | None]:
        return _finish(self.z1, self.sum1, factor), _finish(self.z2, self.sum2, factor)


def _finish(z: Tensor, sums: Tensor | None, factor: float | Tensor) -> Tensor | None:
    if sums is None:
        return None
    counts, moments = sums[..., -1, :], sums[..., :-1, :]
    return (z * counts.unsqueeze(-1)).sub_(moments.mT).mul_(2.0 * factor)


def _row_sums(z: Tensor) -> Tensor:
    return z.new_zeros(*z.shape[:-2], z.shape[-1] + 1, z.shape[-2])


def _with_ones(z: Tensor) -> Tensor:
    return torch.cat([z.mT, z.new_ones(*z.shape[:-2], 1, z.shape[-2])], -2)


def distance_factors(z1: Tensor, z2: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """left (n1, d + 2) and right (d + 2, n2) whose product is ``factor`` times r2; or b of each."""
    shrink = 1.0 - 4.0 * torch.finfo(z1.dtype).eps
    norm1 = z1.square().sum(-1, keepdim=True).mul_(shrink)
    norm2 = z2.square().sum(-1).mul_(shrink).unsqueeze(-2)
    left = torch.cat([-2.0 * z1, norm1, torch.ones_like(norm1)], dim=-1).mul_(factor)
    right = torch.cat([z2.mT, torch.ones_like(norm2), norm2], dim=-2)
    return left, right


def distances_(
    left: Tensor, right: Tensor, offset: int | None, bounds: tuple[float, float], out: Tensor
) -> Tensor:
    """One tile of the product of ``distance_factors``, clamped to ``bounds``, written into ``out``.

    ``offset`` is the column of the tile's first diagonal element, which is made exactly zero; None
    where the tile meets no diagonal.
    """
    torch.matmul(left, right, out=out)
    out.clamp_(*bounds)
    if offset is not None:
        out.diagonal(offset, -2, -1).zero_()
    return out


def _tiles(num_rows: int, z2: Tensor) -> Iterator[slice]:
    if z2.ndim > 2:
        yield slice(0, num_rows)
        return
    budget = CPU_TILE if z2.is_cpu else GPU_TILE
    yield from row_chunks(num_rows, z2.shape[0] * z2.element_size(), budget)
