"""Distances and stationary kernel matrices in one sweep over memory, forward and backward.

Both functions work on tiles of rows that stay in the processor's cache: a thin matrix product
writes the squared distances of a tile, every elementwise step then runs in place in cache, and
only the result goes to memory. The backward pass recomputes its tile from the inputs instead of
reading stored matrices, so nothing of size n1 x n2 is kept for it.

Accuracy: the squared distance comes from |a|^2 + |b|^2 - 2 a.b with inputs centred by the caller,
so its absolute error is a few machine epsilons times |a|^2 + |b|^2. Norms are shrunk by a relative
``4 eps`` (of the order of that error), so that coincident rows give exactly zero after the clamp
instead of rounding noise whose square root would not be small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpx.backends import row_chunks
from gpx.kernels.exponential import EXPONENT_FLOOR, slope_floor

CPU_TILE = 4 << 20
"""Bytes of one tile on a CPU: small enough to stay in cache, large enough for the BLAS."""
GPU_TILE = 256 << 20
"""Bytes of one tile elsewhere, where launches cost more than passes over memory."""


class Profile(Protocol):
    """A stationary kernel's profile phi(r2), unit outputscale, in place on a tile of r2 >= 0."""

    @staticmethod
    def value_(r2: Tensor, floor: float) -> Tensor:
        """phi(r2) in the memory of r2; exponents are floored at ``floor``."""

    @staticmethod
    def value_and_slope_(r2: Tensor, floor: float) -> tuple[Tensor, Tensor]:
        """phi and d phi / d r2 (zero where it is infinite), either in the memory of r2."""


def stationary_covariance(z1: Tensor, z2: Tensor, scale: Tensor, profile: type[Profile]) -> Tensor:
    """``scale * phi(|z1_i - z2_j|^2)`` as (n1, n2), differentiable once in z1, z2 and scale.

    Args:
        z1 (n1, d), z2 (n2, d): centred, scaled inputs; ``z1 is z2`` makes the diagonal exact.
        scale (): outputscale.
        profile: phi and its derivative.

    At coincident points the derivative with respect to z is zero, which is exact where phi is
    differentiable and the subgradient 0 where it is not (Matern 1/2). Second derivatives are not
    available and raise. Cost: O(n1 n2 d) time, one tile beside the result, forward and backward.
    """
    return _StationaryCovariance.apply(z1, z2, scale, profile, z1 is z2)  # type: ignore[no-any-return]


def squared_distance(z1: Tensor, z2: Tensor) -> Tensor:
    """``|z1_i - z2_j|^2`` as (n1, n2), never negative, differentiable once in both arguments.

    ``z1 is z2`` makes the diagonal exactly zero. Incoming gradients are ignored at zero distance
    (even infinite ones, as the square root sends), where the derivative is zero anyway. Cost:
    O(n1 n2 d) time, O(n1 n2) memory.
    """
    return _SquaredDistance.apply(z1, z2, z1 is z2)  # type: ignore[no-any-return]


class _StationaryCovariance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z1: Tensor, z2: Tensor, scale: Tensor, profile: type[Profile], square: bool
    ) -> Tensor:
        ctx.save_for_backward(z1, z2, scale)
        ctx.profile, ctx.square = profile, square
        left, right = _factors(z1, z2)
        result = z1.new_empty(z1.shape[0], z2.shape[0])
        for rows in _tiles(z1.shape[0], z2):
            tile = _distances_(left[rows], right, rows.start if square else None, result[rows])
            value = profile.value_(tile, EXPONENT_FLOOR)
            torch.mul(value, scale, out=result[rows])
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z1, z2, scale = ctx.saved_tensors
        need1, need2, need_scale = ctx.needs_input_grad[:3]
        left, right = _factors(z1, z2)
        floor = slope_floor(z1.dtype)
        pull = _Pullback(z1, z2, need1, need2)
        grad_scale = torch.zeros_like(scale) if need_scale else None
        work = z1.new_empty(0)
        for rows in _tiles(z1.shape[0], z2):
            work.resize_(rows.stop - rows.start, z2.shape[0])
            tile = _distances_(left[rows], right, rows.start if ctx.square else None, work)
            incoming = grad[rows]
            if need1 or need2:
                value, slope = ctx.profile.value_and_slope_(tile, floor)
                pull.add(rows, slope.mul_(incoming))
            else:
                value = ctx.profile.value_(tile, floor)
            if grad_scale is not None:
                grad_scale += torch.dot(value.reshape(-1), incoming.reshape(-1))
        grad1, grad2 = pull.result(scale)
        return grad1, grad2, grad_scale, None, None


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z1: Tensor, z2: Tensor, square: bool) -> Tensor:
        left, right = _factors(z1, z2)
        result = z1.new_empty(z1.shape[0], z2.shape[0])
        for rows in _tiles(z1.shape[0], z2):
            _distances_(left[rows], right, rows.start if square else None, result[rows])
        ctx.save_for_backward(z1, z2, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z1, z2, r2 = ctx.saved_tensors
        pull = _Pullback(z1, z2, *ctx.needs_input_grad[:2])
        for rows in _tiles(z1.shape[0], z2):
            pull.add(rows, grad[rows].masked_fill(r2[rows] == 0, 0.0))
        return *pull.result(None), None


class _Pullback:
    """Gradient of sum_ij W_ij |z1_i - z2_j|^2, accumulated over row tiles of W.

    d/dz1_i = 2 (z1_i sum_j W_ij - sum_j W_ij z2_j), and alike for z2: a column of ones beside the
    inputs makes each of them one thin matrix product.
    """

    def __init__(self, z1: Tensor, z2: Tensor, need1: bool, need2: bool) -> None:
        self.z1, self.z2 = z1, z2
        self.sum1 = z1.new_empty(z1.shape[0], z1.shape[1] + 1) if need1 else None
        self.sum2 = z2.new_zeros(z2.shape[0], z2.shape[1] + 1) if need2 else None
        self.with_one1 = _with_one(z1) if need2 else z1
        self.with_one2 = _with_one(z2) if need1 else z2

    def add(self, rows: slice, weights: Tensor) -> None:
        if self.sum1 is not None:
            torch.mm(weights, self.with_one2, out=self.sum1[rows])
        if self.sum2 is not None:
            self.sum2.addmm_(weights.mT, self.with_one1[rows])

    def result(self, scale: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        factor = 2.0 if scale is None else 2.0 * scale
        return _finish(self.z1, self.sum1, factor), _finish(self.z2, self.sum2, factor)


def _finish(z: Tensor, sums: Tensor | None, factor: float | Tensor) -> Tensor | None:
    if sums is None:
        return None
    return (z * sums[:, -1:]).sub_(sums[:, :-1]).mul_(factor)


def _with_one(z: Tensor) -> Tensor:
    return torch.cat([z, z.new_ones(z.shape[0], 1)], dim=1)


def _factors(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    """left (n1, d + 2) and right (d + 2, n2) whose product is the squared distance."""
    shrink = 1.0 - 4.0 * torch.finfo(z1.dtype).eps
    norm1 = z1.square().sum(1, keepdim=True).mul_(shrink)
    norm2 = z2.square().sum(1, keepdim=True).mul_(shrink)
    left = torch.cat([-2.0 * z1, norm1, torch.ones_like(norm1)], dim=1)
    right = torch.cat([z2, torch.ones_like(norm2), norm2], dim=1)
    return left, right.mT


def _distances_(left: Tensor, right: Tensor, offset: int | None, out: Tensor) -> Tensor:
    """Squared distances of one tile; ``offset`` is the column of its first diagonal element."""
    torch.mm(left, right, out=out)
    out.clamp_(min=0.0)
    if offset is not None:
        out.diagonal(offset).zero_()
    return out


def _tiles(num_rows: int, z2: Tensor) -> Iterator[slice]:
    budget = CPU_TILE if z2.is_cpu else GPU_TILE
    return row_chunks(num_rows, z2.shape[0] * z2.element_size(), budget)
