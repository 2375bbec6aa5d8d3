"""Cosines and sines of projections in one buffer, with a hand-written backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.bases.fourier.native import fourier_pass
from gpx.bases.fourier.sweep import waves
from gpx.linalg.known_gradient import first_derivative_only

SLAB_ANGLES = 2**18
"""Number of angles processed at once on a CPU."""
MIN_COMPILED_ANGLES = 2**12
"""Fewest angles per block for which the compiled pass is used."""


class Trigonometric(torch.autograd.Function):
    """scale * (cos, sin) of angles Omega x, block by block.

    Forward: x (n, d), frequencies (L, F, d), scale () -> (L, 2, F, n) contiguous; slab [l, 0] holds
    the cosines and [l, 1] the sines of block l. One product for the angles, then cos and sin write
    straight into the buffer: no concatenation, no intermediate of the feature matrix's size beyond
    the angles (half of it). Compiled where there is a compiler (``fourier.native``).

    Backward: cos' = -sin and sin' = cos are already in the output, so nothing is recomputed:
    grad angle = grad_sin * cos - grad_cos * sin, then two products. Once differentiable.
    """

    @staticmethod
    def forward(x: Tensor, frequencies: Tensor, scale: Tensor) -> Tensor:
        """Features (L, 2, F, n); see the class."""
        num_blocks, per_block, _ = frequencies.shape
        n = x.shape[0]
        out = x.new_empty(num_blocks, 2, per_block, n)
        native = fourier_pass(x)
        if native is not None and per_block * n >= MIN_COMPILED_ANGLES:
            inputs, factor = x.T.contiguous(), float(scale)
            for rows, pair in zip(frequencies.contiguous(), out, strict=True):
                waves(rows, inputs, pair[0], pair[1], native, factor)
            return out
        # on a CPU in slabs that stay in its cache; elsewhere all at once
        slab = num_blocks
        if x.device.type == "cpu":
            slab = max(1, SLAB_ANGLES // max(1, per_block * n))
        for start in range(0, num_blocks, slab):
            some, rows = out[start : start + slab], frequencies[start : start + slab]
            angles = (rows.flatten(0, 1) @ x.T).view(len(rows), per_block, n)
            torch.cos(angles, out=some[:, 0])
            torch.sin(angles, out=some[:, 1])
            some.mul_(scale)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep what ``backward`` needs."""
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, frequencies: Tensor, scale: Tensor
    ) -> tuple[Tensor, int]:
        """Features of a batch, for ``torch.func.vmap``: (B, L, 2, F, n), batched in front."""
        where = zip((x, frequencies, scale), in_dims, strict=True)
        x, frequencies, scale = (t if dim is None else t.movedim(dim, 0) for t, dim in where)
        return out_of_place(x, frequencies, scale), 0

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of x, frequencies and scale."""
        (grad,) = grads
        x, frequencies, scale, out = ctx.saved_tensors
        need_x, need_frequencies, need_scale = ctx.needs_input_grad
        grad_x = grad_frequencies = grad_scale = None
        if need_x or need_frequencies:
            angle = grad[:, 1] * out[:, 0]
            angle.addcmul_(grad[:, 0], out[:, 1], value=-1.0)
            flat = angle.flatten(0, 1)
            if need_frequencies:
                grad_frequencies = (flat @ x).view_as(frequencies)
            if need_x:
                grad_x = flat.T @ frequencies.reshape(-1, x.shape[1])
        if need_scale:
            grad_scale = torch.dot(grad.reshape(-1), out.reshape(-1)) / scale
        return grad_x, grad_frequencies, grad_scale


def out_of_place(x: Tensor, frequencies: Tensor, scale: Tensor) -> Tensor:
    """The result of ``Trigonometric`` for any batch (...), for traced programs and ``vmap``.

    Args:
        x (..., n, d), frequencies (..., L, F, d), scale (...): as for ``trigonometric_features``.

    Returns:
        (..., L, 2, F, n); nothing is written in place.
    """
    angles = (frequencies.flatten(-3, -2) @ x.mT).unflatten(-2, frequencies.shape[-3:-1])
    pairs = torch.stack([angles.cos(), angles.sin()], -3)
    return scale[..., None, None, None, None] * pairs


def trigonometric_features(x: Tensor, frequencies: Tensor, scale: Tensor) -> Tensor:
    """Features of L blocks of F frequencies, each F cosines then F sines.

    Args:
        x (n, d): inputs.
        frequencies (L, F, d): angular frequencies, radians per unit of x.
        scale (): common factor, sqrt(2 outputscale / m).

    Returns:
        (n, 2 L F), a transposed view of a contiguous array.

    Cost: n L F (d + 2 trigonometric functions) time, 2 n L F numbers kept for the backward pass.
    """
    if torch.compiler.is_exporting():  # in-place writes cannot be exported
        out = out_of_place(x, frequencies, scale)
    else:
        out = Trigonometric.apply(x, frequencies, scale)
    return out.flatten(0, 2).T
