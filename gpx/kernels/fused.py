"""Distances and stationary kernel matrices in one pass over memory, forward and backward.

Both functions work on tiles of rows that stay in the processor's cache: a thin matrix product
writes the squared distances of a tile, every elementwise step then runs in place in cache, and
only the result (and, for the gradient, its slope) goes to memory. The backward pass reads each of
them once, with thin matrix products per tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.kernels.distances import distances_, extended_coordinates
from gpx.kernels.exponential import NEGLIGIBLE_SLOPE
from gpx.kernels.profile_slopes import Slopes, covariance_again, squared_distance_again
from gpx.linalg.known_gradient import twice_differentiable

CPU_TILE_BYTES = 4 << 20
"""Bytes of one tile on a CPU: small enough to stay in cache, large enough for the BLAS."""
GPU_TILE_BYTES = 256 << 20
"""Bytes of one tile elsewhere, where launches cost more than passes over memory."""


class Profile(Protocol):
    """A stationary kernel's profile phi(r2), unit outputscale, in place on a tile of r2 >= 0.

    The factor is applied by the matrix product that computes the distances, at no cost, and one
    clamp to ``bounds`` removes both negative rounding and arguments that are too large.

    Attributes:
        factor: ``evaluate_`` receives ``factor * r2``.
        bounds: range to which ``factor * r2`` is clamped; one end is zero.
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


def stationary_covariance(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    profile: type[Profile],
    lengthscale: Tensor | None = None,
    *,
    guarded: bool = True,
    slopes: Slopes | None = None,
) -> Tensor:
    """``scale * phi(|(x1_i - x2_j) / lengthscale|^2)`` as (n1, n2), differentiable.

    Args:
        x1 (n1, d), x2 (n2, d): inputs; ``x1 is x2`` makes the diagonal exact. Or (b, n1, d) and
            (b, n2, d) for b matrices (b, n1, n2), small ones: a batch is one tile.
        scale (): outputscale, or (b, 1, 1).
        profile: phi and its derivative.
        lengthscale () or (d,): None: the inputs are already scaled.
        guarded: see ``gpx.kernels.distances.centre``.
        slopes: of the profile, for second derivatives, which raise without it.

    At coincident points the derivative with respect to inputs is zero, which is exact where phi is
    differentiable and the subgradient 0 where it is not (Matern 1/2). The
    result is kept for the backward pass, so changing it in place before makes autograd raise.

    Cost: O(n1 n2 d) time; memory beside the result one tile, and for gradients with respect to
    inputs or lengthscales one more matrix of its size (none when ``slope_per_value`` is given).
    """
    return _StationaryCovariance.apply(
        x1, x2, lengthscale, scale, profile, x1 is x2, guarded, slopes
    )


def squared_distance(z1: Tensor, z2: Tensor) -> Tensor:
    """``|z1_i - z2_j|^2`` as (n1, n2), never negative, differentiable in both arguments.

    ``z1 is z2`` makes the diagonal exactly zero. Incoming gradients are ignored at zero distance
    (even infinite ones, as the square root sends; second derivatives then raise), where the
    derivative is zero anyway. Cost:
    O(n1 n2 d) time, O(n1 n2) memory.
    """
    return _SquaredDistance.apply(z1, z2, z1 is z2)


def _covariance_again(ctx: Any, _: Tensor) -> tuple[Tensor, Sequence[Tensor | None]] | None:
    x1, x2, lengthscale, scale, *_ = ctx.saved_tensors
    if ctx.profile_slopes is None:
        return None
    first, length, factor = (None if t is None else t.view_as(t) for t in (x1, lengthscale, scale))
    second = None if ctx.square else x2.view_as(x2)
    assert first is not None
    assert factor is not None
    result = covariance_again(first, second, length, factor, ctx.profile_slopes)
    return None if result is None else (result, (first, second, length, factor, *[None] * 4))


class _StationaryCovariance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x1: Tensor,
        x2: Tensor,
        lengthscale: Tensor | None,
        scale: Tensor,
        profile: type[Profile],
        square: bool,
        guarded: bool,
        profile_slopes: Slopes | None,
    ) -> Tensor:
        n1, n2 = x1.shape[-2], x2.shape[-2]
        both = extended_coordinates(x1, x2, square, lengthscale, centred=False, guarded=guarded)
        left, right = both[..., :n1, :], both[..., n1:, :]
        with_slope = any(ctx.needs_input_grad[:3]) and profile.slope_per_value is None
        result = left.new_empty(*x1.shape[:-1], n2)
        slopes = torch.empty_like(result) if with_slope else None
        work = left.new_empty(0)
        if torch.compiler.is_exporting():  # one tile of symbolic size, which cannot be resized
            work = torch.empty_like(result)
        for rows in _tiles(n1, right):
            offset = rows.start if square else None
            part = (..., rows, slice(None))
            tile = distances_(
                left[part], right, profile.factor, offset, profile.bounds, result[part]
            )
            if slopes is not None:
                slope = slopes[part]
            else:
                slope = work if work.shape == tile.shape else work.resize_(tile.shape)
            profile.evaluate_(tile, slope, with_slope)
            tile.mul_(scale)
            if slopes is not None and _clears_subnormals(slopes):
                slope.copy_(torch.hardshrink(slope, NEGLIGIBLE_SLOPE))
        ctx.save_for_backward(x1, x2, lengthscale, scale, both, slopes, result)
        ctx.slope_per_value, ctx.square = profile.slope_per_value, square
        ctx.profile_slopes = profile_slopes
        return result

    @staticmethod
    @twice_differentiable(_covariance_again)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x1, _, lengthscale, scale, both, slopes, result = ctx.saved_tensors
        need1, need2, need_length, need_scale = ctx.needs_input_grad[:4]
        need1 = need1 or (need2 and ctx.square)
        moves = need1 or need2 or need_length
        n1 = x1.shape[-2]
        pull = _Pullback(both, n1, ctx.square, need1 or need_length, need2 or need_length)
        whole = moves and slopes is None  # then the weights sum to the sum of result times grad
        total = torch.zeros_like(scale) if need_scale and not whole else None
        for rows in _tiles(n1, pull.right):
            part = (..., rows, slice(None))
            incoming = grad[part]
            if moves:
                slope = result[part] if slopes is None else slopes[part]
                if slopes is None and _clears_subnormals(slope):
                    slope = torch.hardshrink(slope, NEGLIGIBLE_SLOPE)
                pull.add(rows, slope * incoming)
            if total is not None:
                weights = result[part] * incoming
                total += weights.sum((-2, -1), keepdim=True) if scale.ndim else weights.sum()
        if need_scale and whole:
            total = pull.total(keepdim=scale.ndim > 0)
        by_scale = None if total is None else total / scale
        if not moves:
            return None, None, None, by_scale, None, None, None, None
        # divisor of ``_Pullback.result``
        half = -0.5 / (scale if slopes is not None else ctx.slope_per_value)
        if lengthscale is None:
            return *pull.result(half), None, by_scale, None, None, None, None
        # d r2 / d x = 2 (z_i - z_j) / lengthscale; d r2 / d lengthscale_d =
        # -2 (z_id - z_jd)^2 / lengthscale_d: the same sums times the coordinates
        unit = isinstance(half, float) and half == 1.0
        by_x1, by_x2 = pull.result(lengthscale if unit else lengthscale * half)
        by_length = None
        if need_length:
            by_length = pull.moment()
            if lengthscale.ndim == 0:
                by_length = by_length.sum()
        by_x1, by_x2 = by_x1 if need1 else None, by_x2 if need2 else None
        return by_x1, by_x2, by_length, by_scale, None, None, None, None


def _distance_again(ctx: Any, grad: Tensor) -> tuple[Tensor, Sequence[Tensor | None]] | None:
    z1, z2, _, r2 = ctx.saved_tensors
    # a root of r2, whose derivatives are infinite at zero, cannot be differentiated twice there
    if not bool((grad.isfinite() | (r2 != 0)).all()):
        return None
    first, second = z1.view_as(z1), None if ctx.square else z2.view_as(z2)
    return squared_distance_again(first, second), (first, second, None)


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z1: Tensor, z2: Tensor, square: bool) -> Tensor:
        both = extended_coordinates(z1, z2, square)
        left, right = both[: len(z1)], both[len(z1) :]
        result = z1.new_empty(z1.shape[0], z2.shape[0])
        for rows in _tiles(z1.shape[0], right):
            offset = rows.start if square else None
            distances_(left[rows], right, 1.0, offset, (0.0, math.inf), result[rows])
        ctx.save_for_backward(z1, z2, both, result)
        ctx.square = square
        return result

    @staticmethod
    @twice_differentiable(_distance_again)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z1, _, both, r2 = ctx.saved_tensors
        pull = _Pullback(both, len(z1), ctx.square, *ctx.needs_input_grad[:2])
        for rows in _tiles(len(z1), pull.right):
            pull.add(rows, grad[rows].masked_fill(r2[rows] == 0, 0.0))
        return *pull.result(-0.5), None


class _Pullback:
    """Gradient of sum_ij W_ij |z1_i - z2_j|^2, accumulated over row tiles of W.

    d/dz1_i = 2 (z1_i sum_j W_ij - sum_j W_ij z2_j), and likewise for z2. The factors of the
    distances hold the coordinates and a column of ones, so that both sums are one thin matrix
    product, computed as ``W @ z2`` for z1 and ``z1.mT @ W`` for z2: for W stored by rows other
    orientations are up to 4 times slower on a CPU.

    Args:
        both: of ``extended_coordinates``.
        n1: number of its rows that belong to z1.
        square: whether z1 and z2 are the same inputs, whose gradients are then summed.
        need1, need2: which gradients are needed.
    """

    def __init__(self, both: Tensor, n1: int, square: bool, need1: bool, need2: bool) -> None:
        self.both, self.square = both, square
        self.left, self.right = both[..., :n1, :], both[..., n1:, :]
        self.need1, self.need2 = need1 or (square and need2), need2
        # moments and, last, counts: (.., n1, d + 1) of z1, (.., d + 1 or d + 2, n2) of z2
        self.sum1: Tensor | None = None
        self.sum2: Tensor | None = None
        self.found: Tensor | None = None

    def add(self, rows: slice, weights: Tensor) -> None:
        """Add a tile of rows of W; tiles come in order."""
        n1, columns = self.left.shape[-2], self.right[..., :-1]
        if self.need1:
            found = weights @ columns
            if found.shape[-2] == n1:
                self.sum1 = found
            else:
                if self.sum1 is None:
                    self.sum1 = found.new_empty(n1, found.shape[-1])
                self.sum1[rows] = found
        if self.need2:
            part = (columns if self.square else self.left)[..., rows, :].mT
            if self.sum2 is None:
                self.sum2 = part @ weights
            else:
                self.sum2.addmm_(part, weights)

    def total(self, keepdim: bool) -> Tensor:
        """Sum of all weights: (), or (.., 1, 1)."""
        if self.sum1 is not None:
            counts = self.sum1[..., -1:]
        else:
            assert self.sum2 is not None
            counts = self.sum2[..., -1:, :]
        return counts.sum((-2, -1), keepdim=True) if keepdim else counts.sum()

    def result(self, divisor: float | Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients (.., n, d) in z1 and z2 divided by -2 ``divisor``; their sum if ``square``."""
        sum1, sum2 = self.sum1, None if self.sum2 is None else self.sum2.mT
        if self.square:
            both = [s for s in (sum1, sum2) if s is not None]
            sum1, sum2 = both[0] if len(both) == 1 else both[0].add_(both[1]), None
        if sum1 is not None and sum2 is not None:  # in one array, divided once
            n1, (*batch, rows, width) = self.left.shape[-2], self.both.shape
            found = self.both.new_empty(*batch, rows, width - 2)
            _finish(self.left, sum1, found[..., :n1, :])
            _finish(self.right, sum2, found[..., n1:, :])
            self.found = found.div_(divisor)
            return found[..., :n1, :], found[..., n1:, :]
        first = None if sum1 is None else _finish(self.left, sum1).div_(divisor)
        second = None if sum2 is None else _finish(self.right, sum2).div_(divisor)
        self.found = first if second is None else second
        return first, second

    def moment(self) -> Tensor:
        """Minus the sum over all inputs of ``result``'s gradient times coordinate: (d,).

        Needs both gradients, or the one of ``square``.
        """
        assert self.found is not None
        coordinates = self.both[..., : self.found.shape[-2], :-2]
        return -(self.found * coordinates).sum(-2)


def _finish(extended: Tensor, sums: Tensor, out: Tensor | None = None) -> Tensor:
    """Moments minus coordinates times counts."""
    coordinates, moments = extended[..., :-2], sums[..., : extended.shape[-1] - 2]
    return torch.addcmul(moments, coordinates, sums[..., -1:], value=-1.0, out=out)


def _clears_subnormals(values: Tensor) -> bool:
    """Whether subnormal values are set to zero: float32 on a CPU, where they are slow."""
    return values.dtype == torch.float32 and values.is_cpu


def _tiles(num_rows: int, right: Tensor) -> Iterator[slice]:
    if right.ndim > 2 or not num_rows:  # without rows one empty tile, whose sums are zero
        yield slice(0, num_rows)
        return
    budget = CPU_TILE_BYTES if right.is_cpu else GPU_TILE_BYTES
    yield from row_chunks(num_rows, right.shape[0] * right.element_size(), budget)
