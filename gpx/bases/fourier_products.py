"""Products with Fourier features that are taken while the features are in the cache.

A step of a sampled bound needs Phi w, Phi^T u and sums of squares, never Phi. Frequencies are
worked off in tiles: one small product for the angles, their cosines and sines, and at once all
products in which these take part. Features are then read from main memory only where a later
product needs a result of an earlier one (``FourierProducts``, whose gradient arrives afterwards).

Arrays hold all cosines, then all sines: weights (2, R, k) and kept features (2, R, n) for R
frequencies. Gradients are written by hand: with G = u w^T the gradient of a product with respect to
Phi, that of an angle is G_sin cos - G_cos sin, a product with the inputs away from that of its
frequency. Once differentiable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TILE = 2**17
"""Angles worked on at once on a CPU; their cosines and sines fill one megabyte in float32."""


def tiles(num_frequencies: int, x: Tensor) -> Iterator[slice]:
    """Frequencies that are worked off together for inputs x (n, d): equal parts, all on a GPU."""
    most = max(1, TILE // max(1, x.shape[0])) if x.device.type == "cpu" else num_frequencies
    parts = -(-num_frequencies // max(1, most))
    size = -(-num_frequencies // max(1, parts))
    for start in range(0, num_frequencies, max(1, size)):
        yield slice(start, min(start + size, num_frequencies))


def waves(frequencies: Tensor, inputs: Tensor, cosines: Tensor, sines: Tensor) -> None:
    """cos and sin of frequencies (T, d) times inputs (d, n), into two arrays (T, n)."""
    torch.mm(frequencies, inputs, out=sines)
    torch.cos(sines, out=cosines)
    sines.sin_()


class _Tiles:
    """Tiles of features, evaluated one after the other into kept or into reused memory."""

    def __init__(self, x: Tensor, frequencies: Tensor, keep: Tensor | None) -> None:
        self.inputs = x.T.contiguous()
        self.frequencies = frequencies
        self.keep = keep
        self.slices = list(tiles(frequencies.shape[0], x))
        largest = self.slices[0].stop if self.slices else 0
        self.scratch = x.new_empty(2, largest, x.shape[0]) if keep is None else None

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        for some in self.slices:
            if self.keep is not None:
                cosines, sines = self.keep[0, some], self.keep[1, some]
            else:
                assert self.scratch is not None
                count = some.stop - some.start
                cosines, sines = self.scratch[0, :count], self.scratch[1, :count]
            waves(self.frequencies[some], self.inputs, cosines, sines)
            yield some, cosines, sines


def _angle_gradient(weights: Tensor, direction: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Gradient (T, n) of sum(direction * (Phi w)) with respect to the angles of a tile.

    Args:
        weights (2, T, k), direction (k, n), cosines, sines (T, n).
    """
    angle = (weights[1] @ direction).mul_(cosines)
    return angle.addcmul_(weights[0] @ direction, sines, value=-1.0)


class FourierProducts(torch.autograd.Function):
    """scale * Phi w for x (n, d), frequencies (R, d), scale () and weights (2, R, k): (n, k).

    Keeps the features (2, R, n) where a gradient is asked for: it needs the gradient of the
    product, which is known later. ``keep`` (2, R, n) is filled with them in any case.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        frequencies: Tensor,
        scale: Tensor,
        weights: Tensor,
        keep: Tensor | None,
    ) -> Tensor:
        """The product; see the class."""
        if keep is None and any(ctx.needs_input_grad):
            keep = x.new_empty(2, frequencies.shape[0], x.shape[0])
        total = x.new_zeros(weights.shape[2], x.shape[0])
        rows = weights.mT
        for some, cosines, sines in _Tiles(x, frequencies, keep):
            total.addmm_(rows[0, :, some], cosines).addmm_(rows[1, :, some], sines)
        total *= scale
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, frequencies, scale, weights, keep, total)
        return total.T

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Gradients of x, frequencies, scale and weights."""
        x, frequencies, scale, weights, keep, total = ctx.saved_tensors
        need_x, need_frequencies, need_scale, need_weights, _ = ctx.needs_input_grad
        direction = (grads[0].T * scale).contiguous()  # (k, n)
        grad_x = grad_frequencies = grad_scale = grad_weights = None
        if need_weights:
            flat = keep.flatten(0, 1)
            grad_weights = (flat @ direction.T).view_as(weights)
        if need_scale:
            grad_scale = (grads[0].T * total).sum() / scale
        if need_x or need_frequencies:
            grad_x = torch.zeros_like(x) if need_x else None
            grad_frequencies = torch.empty_like(frequencies) if need_frequencies else None
            for some in tiles(frequencies.shape[0], x):
                angle = _angle_gradient(weights[:, some], direction, *keep[:, some])
                if grad_frequencies is not None:
                    torch.mm(angle, x, out=grad_frequencies[some])
                if grad_x is not None:
                    grad_x.addmm_(angle.T, frequencies[some])
        return grad_x, grad_frequencies, grad_scale, grad_weights, None


class FourierForm(torch.autograd.Function):
    """sum(u * scale * Phi w), 0-d, and scale * Phi w (n, k), the second without gradient.

    For x (n, d), frequencies (R, d), scale (), weights w (2, R, k) and directions u (n, k). The
    directions being known, all gradients are taken in the pass that evaluates the features, which
    are kept nowhere (but in ``keep`` (2, R, n) where the caller gives one).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        frequencies: Tensor,
        scale: Tensor,
        weights: Tensor,
        direction: Tensor,
        keep: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The form and the product; see the class."""
        need_x, need_frequencies, _, need_weights, _, _ = ctx.needs_input_grad
        grad_x = torch.zeros_like(x) if need_x else None
        grad_frequencies = torch.empty_like(frequencies) if need_frequencies else None
        grad_weights = torch.empty_like(weights) if need_weights else None
        columns = (direction * scale).contiguous()
        total = x.new_zeros(weights.shape[2], x.shape[0])
        rows = weights.mT
        for some, cosines, sines in _Tiles(x, frequencies, keep):
            total.addmm_(rows[0, :, some], cosines).addmm_(rows[1, :, some], sines)
            if grad_weights is not None:
                torch.mm(cosines, columns, out=grad_weights[0, some])
                torch.mm(sines, columns, out=grad_weights[1, some])
            if grad_frequencies is None and grad_x is None:
                continue
            angle = _angle_gradient(weights[:, some], columns.T, cosines, sines)
            if grad_frequencies is not None:
                torch.mm(angle, x, out=grad_frequencies[some])
            if grad_x is not None:
                grad_x.addmm_(angle.T, frequencies[some])
        product = total.mul_(scale).T
        value = (direction * product).sum()
        ctx.save_for_backward(grad_x, grad_frequencies, value / scale, grad_weights, product)
        ctx.mark_non_differentiable(product)
        return value, product

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Gradients of x, frequencies, scale, weights and directions."""
        found = (
            grads[0] * known if need and known is not None else None
            for need, known in zip(ctx.needs_input_grad, ctx.saved_tensors, strict=False)
        )
        return (*found, None)


class FourierSquares(torch.autograd.Function):
    """Sums over the rows of x of squared features (2, R), from frequencies (R, d) and scale ().

    cos^2 = (1 + cos 2a) / 2 and sin^2 = 1 - cos^2: one cosine per pair, held at or above zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, frequencies: Tensor, scale: Tensor) -> Tensor:
        """The sums; see the class."""
        inputs = 2.0 * x.T
        half = x.new_empty(frequencies.shape[0])
        for some in tiles(frequencies.shape[0], x):
            angles = frequencies[some] @ inputs
            torch.sum(angles.cos_(), 1, out=half[some])
        half *= 0.5
        sums = torch.stack((0.5 * x.shape[0] + half, 0.5 * x.shape[0] - half)).clamp_min_(0.0)
        ctx.save_for_backward(x, frequencies, scale, sums)
        return sums * scale.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Gradients of x, frequencies and scale."""
        x, frequencies, scale, sums = ctx.saved_tensors
        need_x, need_frequencies, need_scale = ctx.needs_input_grad
        grad_x = torch.zeros_like(x) if need_x else None
        grad_frequencies = torch.empty_like(frequencies) if need_frequencies else None
        grad_scale = 2.0 * scale * (grads[0] * sums).sum() if need_scale else None
        if need_x or need_frequencies:
            inputs = 2.0 * x.T
            factor = (grads[0][1] - grads[0][0])[:, None] * scale.square()
            for some in tiles(frequencies.shape[0], x):
                angle = (frequencies[some] @ inputs).sin_().mul_(factor[some])
                if grad_frequencies is not None:
                    torch.mm(angle, x, out=grad_frequencies[some])
                if grad_x is not None:
                    grad_x.addmm_(angle.T, frequencies[some])
        return grad_x, grad_frequencies, grad_scale
