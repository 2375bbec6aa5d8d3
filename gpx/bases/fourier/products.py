"""Differentiable products with Fourier features that are never stored (``fourier.sweep``).

Arrays hold all cosines, then all sines, as there. Once differentiable.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.backends.triton import triton_fourier
from gpx.bases.fourier.native import MAX_INPUTS, fourier_pass
from gpx.bases.fourier.sweep import Gradients, sweep, tiles
from gpx.linalg.known_gradient import first_derivative_only


def _keeps_features(x: Tensor) -> bool:
    """Whether features of x are kept for the backward pass: where no compiled pass re-evaluates
    them."""
    return fourier_pass(x) is None and not triton_fourier(x)


class FourierProducts(torch.autograd.Function):
    """scale * Phi w for x (n, d), frequencies (R, d), scale () and weights (2, R, k): (n, k).

    For the backward pass the features are re-evaluated where that is compiled, else kept
    (2, R, n). ``keep`` (2, R, n) receives them in any case.
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
        if keep is None and any(ctx.needs_input_grad) and _keeps_features(x):
            keep = x.new_empty(2, frequencies.shape[0], x.shape[0])
        total = sweep(x, frequencies, weights, keep=keep) * scale
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, frequencies, scale, weights, keep, total)
        return total.T

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Gradients of x, frequencies, scale and weights."""
        x, frequencies, scale, weights, keep, total = ctx.saved_tensors
        need_x, need_frequencies, need_scale, need_weights, _ = ctx.needs_input_grad
        grad_scale = (grads[0].T * total).sum() / scale if need_scale else None
        direction = (grads[0] * scale).contiguous()
        found = Gradients.wanted((need_x, need_frequencies, need_weights), x, frequencies, weights)
        if not (need_x or need_frequencies or need_weights):
            return None, None, grad_scale, None, None
        if keep is None:
            sweep(x, frequencies, weights, direction=direction, gradients=found)
        else:
            count = frequencies.shape[0]
            angles = need_x or need_frequencies
            for some in tiles(count, x) if angles else (slice(0, count),):
                features = keep[0, some], keep[1, some]
                found.take(some, x, frequencies, weights, direction, features)
        return found.x, found.frequencies, grad_scale, found.weights, None


class FourierForm(torch.autograd.Function):
    """sum(u * scale * Phi w), 0-d, and scale * Phi w (n, k), the second without gradient.

    For x (n, d), frequencies (R, d), scale (), weights w (2, R, k) and directions u (n, k). Since
    the directions are known, all gradients are computed in the pass that evaluates the features,
    which are stored only in ``keep`` (2, R, n), if given.
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
        needed = need_x, need_frequencies, need_weights
        found = Gradients.wanted(needed, x, frequencies, weights) if any(needed) else None
        scaled = (direction * scale).contiguous()
        total = sweep(x, frequencies, weights, direction=scaled, gradients=found, keep=keep)
        product = total.mul_(scale).T
        value = (direction * product).sum()
        gradients = found or Gradients(None, None, None)
        ctx.save_for_backward(
            *(gradients.x, gradients.frequencies, value / scale, gradients.weights, product),
            *(x, frequencies, scale, weights, direction),
        )
        ctx.mark_non_differentiable(product)
        return value, product

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Gradients of x, frequencies, scale, weights and directions."""
        found = (
            grads[0] * known if need and known is not None else None
            for need, known in zip(ctx.needs_input_grad, ctx.saved_tensors[:5], strict=False)
        )
        return (*found, None)


class FourierSquares(torch.autograd.Function):
    """Sums over the rows of x of squared features (2, R), from frequencies (R, d) and scale ().

    cos^2 = (1 + cos 2a) / 2 and sin^2 = 1 - cos^2: one cosine per pair; sums are clamped at zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, frequencies: Tensor, scale: Tensor) -> Tensor:
        """The sums; see the class."""
        inputs = 2.0 * x.T.contiguous()
        count, moments = frequencies.shape[0], None
        need_x, need_frequencies, _ = ctx.needs_input_grad
        compiled = triton_fourier(x)
        native = fourier_pass(x) if x.shape[1] <= MAX_INPUTS else None
        if compiled or native is not None:
            directions = torch.ones_like(inputs[:1])
            if need_frequencies and not need_x:
                directions = torch.cat((directions, x.T))
            if native is None:
                from gpx.backends.triton.fourier import fourier_moments

                moments = fourier_moments(inputs.T, frequencies, directions.T).permute(2, 0, 1)
            else:
                moments = x.new_empty(directions.shape[0], 2, count)
                native(frequencies.contiguous(), inputs, directions=directions, gradient=moments)
            half = moments[0, 0]
        else:
            half = x.new_empty(count)
            for some in tiles(count, x):
                torch.sum((frequencies[some] @ inputs).cos_(), 1, out=half[some])
        half = 0.5 * half
        sums = torch.stack((0.5 * x.shape[0] + half, 0.5 * x.shape[0] - half)).clamp_min_(0.0)
        # sums of sin(2 angle) x over the rows (d, R), if already computed
        waves = moments[1:, 1] if moments is not None and moments.shape[0] > 1 else None
        ctx.save_for_backward(x, frequencies, scale, sums, waves)
        return sums * scale.square()

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Gradients of x, frequencies and scale."""
        x, frequencies, scale, sums, waves = ctx.saved_tensors
        need_x, need_frequencies, need_scale = ctx.needs_input_grad
        grad_x = torch.zeros_like(x) if need_x else None
        grad_frequencies = torch.empty_like(frequencies) if need_frequencies else None
        grad_scale = 2.0 * scale * (grads[0] * sums).sum() if need_scale else None
        if need_x or need_frequencies:
            inputs = 2.0 * x.T
            factor = (grads[0][1] - grads[0][0])[:, None] * scale.square()
            if waves is not None and not need_x:
                return None, factor * waves.T, grad_scale
            for some in tiles(frequencies.shape[0], x):
                angle = (frequencies[some] @ inputs).sin_().mul_(factor[some])
                if grad_frequencies is not None:
                    torch.mm(angle, x, out=grad_frequencies[some])
                if grad_x is not None:
                    grad_x.addmm_(angle.T, frequencies[some])
        return grad_x, grad_frequencies, grad_scale
