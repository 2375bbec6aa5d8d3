"""Products with Fourier features that are taken while the features are in the cache.

A step of a sampled bound needs Phi w, Phi^T u and sums of squares, never Phi. Frequencies are
worked off in tiles: their angles, cosines and sines, and at once all products in which these take
part. On a CPU with a compiler one pass does it in registers (``fourier_native``) and nothing is
kept; torch operations on tiles keep features only where a later product needs a result of an
earlier one (``FourierProducts``, whose gradient arrives afterwards). On a CUDA device with Triton
two passes on tensor cores do what the compiled one does on a CPU, for any number of columns.

Arrays hold all cosines, then all sines: weights (2, R, k) and kept features (2, R, n) for R
frequencies. Gradients are written by hand: with G = u w^T the gradient of a product with respect to
Phi, that of an angle is G_sin cos - G_cos sin, a product with the inputs away from that of its
frequency. Once differentiable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.backends.triton import triton_fourier
from gpx.bases.fourier.native import MOST_INPUTS, FourierPass, fourier_pass
from gpx.linalg.known_gradient import first_derivative_only

TILE = 2**17
"""Number of angles worked on at once on a CPU: their cosines and sines fill one megabyte in
float32."""


def tiles(num_frequencies: int, x: Tensor) -> Iterator[slice]:
    """Frequencies that are worked off together for inputs x (n, d): equal parts, all on a GPU."""
    most = max(1, TILE // max(1, x.shape[0])) if x.device.type == "cpu" else num_frequencies
    parts = -(-num_frequencies // max(1, most))
    size = max(1, -(-num_frequencies // max(1, parts)))
    for start in range(0, num_frequencies, size):
        yield slice(start, min(start + size, num_frequencies))


def waves(
    frequencies: Tensor,
    inputs: Tensor,
    cosines: Tensor,
    sines: Tensor,
    native: FourierPass | None,
    scale: float = 1.0,
) -> None:
    """scale * cos and sin of frequencies (T, d) times inputs (d, n), into two arrays (T, n).

    Args:
        frequencies, inputs, cosines, sines: all contiguous.
        native: the compiled pass for them, or None.
        scale: factor; the compiled pass takes it at no cost.
    """
    if native is not None and inputs.shape[0] <= MOST_INPUTS:
        native(frequencies, inputs, cosines=cosines, sines=sines, scale=scale)
        return
    torch.mm(frequencies, inputs, out=sines)
    if native is not None:
        native(frequencies, inputs, angles=sines, cosines=cosines, sines=sines, scale=scale)
        return
    torch.cos(sines, out=cosines)
    sines.sin_()
    if scale != 1.0:
        cosines *= scale
        sines *= scale


def _keeps_features(x: Tensor) -> bool:
    """Whether features of x are kept for a backward pass: no compiled pass evaluates them again."""
    return fourier_pass(x) is None and not triton_fourier(x)


class Gradients(NamedTuple):
    """Arrays that a sweep fills or adds to; None where a gradient is not wanted."""

    x: Tensor | None
    frequencies: Tensor | None
    weights: Tensor | None

    @classmethod
    def wanted(cls, needed: tuple[bool, bool, bool], *like: Tensor) -> Gradients:
        """For x (zero), frequencies and weights (both uninitialised)."""
        x, frequencies, weights = like
        return cls(
            torch.zeros_like(x) if needed[0] else None,
            torch.empty_like(frequencies) if needed[1] else None,
            # rows in one piece, whatever view the weights are
            torch.empty_like(weights, memory_format=torch.contiguous_format) if needed[2] else None,
        )

    def take(
        self,
        some: slice,
        x: Tensor,
        frequencies: Tensor,
        weights: Tensor,
        direction: Tensor,
        features: tuple[Tensor, Tensor],
    ) -> None:
        """Gradients of sum(u * (Phi w)) from a tile: its features (T, n), u as (n, k)."""
        cosines, sines = features
        if self.weights is not None:
            torch.mm(cosines, direction, out=self.weights[0, some])
            torch.mm(sines, direction, out=self.weights[1, some])
        if self.x is None and self.frequencies is None:
            return
        angle = (weights[1, some] @ direction.T).mul_(cosines)
        angle.addcmul_(weights[0, some] @ direction.T, sines, value=-1.0)
        if self.frequencies is not None:
            torch.mm(angle, x, out=self.frequencies[some])
        if self.x is not None:
            self.x.addmm_(angle.T, frequencies[some])


def sweep(
    x: Tensor,
    frequencies: Tensor,
    weights: Tensor,
    *,
    direction: Tensor | None = None,
    gradients: Gradients | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    """Phi w as (k, n), with gradients of sum(u * (Phi w)) on the way.

    Args:
        x (n, d), frequencies (R, d), weights (2, R, k): w.
        direction (n, k), gradients: u, and what to fill; both or none.
        keep (2, R, n): takes the features.
    """
    if keep is None and triton_fourier(x):
        return _triton_sweep(x, frequencies, weights, direction, gradients)
    # only loops over memory need rows in one piece
    inputs, frequencies = x.T if x.is_cuda else x.T.contiguous(), frequencies.contiguous()
    native = fourier_pass(x)
    if native is not None and weights.shape[2] == 1:
        by_angle = gradients is not None and gradients.frequencies is not None
        few = not by_angle or x.shape[1] <= MOST_INPUTS
        if few and (gradients is None or gradients.x is None):
            weights = weights.contiguous()
            return _native_sweep(native, inputs, frequencies, weights, direction, gradients, keep)
    slices = list(tiles(frequencies.shape[0], x))
    if not slices:
        return x.new_zeros(weights.shape[2], x.shape[0])
    total: Tensor | None = None
    scratch = x.new_empty(2, slices[0].stop, x.shape[0]) if keep is None else keep
    rows = weights.mT
    for some in slices:
        place = some if keep is not None else slice(0, some.stop - some.start)
        features = scratch[0, place], scratch[1, place]
        waves(frequencies[some], inputs, *features, native)
        by_cosine, by_sine = rows[0, :, some], rows[1, :, some]
        if total is None:
            total = by_cosine @ features[0]
        else:
            total.addmm_(by_cosine, features[0])
        total.addmm_(by_sine, features[1])
        if gradients is not None and direction is not None:
            gradients.take(some, x, frequencies, weights, direction, features)
    assert total is not None
    return total


def _native_sweep(
    native: FourierPass,
    inputs: Tensor,
    frequencies: Tensor,
    weights: Tensor,
    direction: Tensor | None,
    gradients: Gradients | None,
    keep: Tensor | None,
) -> Tensor:
    """``sweep`` for one column of weights, compiled; no gradient of x.

    With one column the gradient of frequency r is the sum over rows of u x (w_sin cos - w_cos sin):
    products of the features with directions u and u x, all taken in one pass.
    """
    (d, n), count = inputs.shape, frequencies.shape[0]
    few = d <= MOST_INPUTS or count == 0
    slices = [slice(0, count)] if few else list(tiles(count, inputs.T))
    total = inputs.new_zeros(1, n)
    scratch = None if few or keep is not None else inputs.new_empty(slices[0].stop, n)
    directions = moments = None
    by_angle = None if gradients is None else gradients.frequencies
    by_weight = None if gradients is None else gradients.weights
    if direction is not None and by_angle is not None:
        directions = torch.cat((direction.T, direction.T * inputs))
        moments = inputs.new_empty(1 + d, 2, count)
    elif direction is not None and by_weight is not None:
        directions, moments = direction.T.contiguous(), by_weight[None, ..., 0]
    for some in slices:
        cosines, sines = (None, None) if keep is None else (keep[0, some], keep[1, some])
        angles = None
        if not few:
            angles = sines if scratch is None else scratch[: some.stop - some.start]
            torch.mm(frequencies[some], inputs, out=angles)
        product = native(
            frequencies[some],
            inputs,
            angles=angles,
            weights=weights[:, some],
            directions=directions,
            gradient=None if moments is None else moments[..., some],
            cosines=cosines,
            sines=sines,
        )
        assert product is not None
        total[0] += product
    if by_angle is not None and moments is not None:
        by_angle.copy_((weights[1].T * moments[1:, 0] - weights[0].T * moments[1:, 1]).T)
        if by_weight is not None:
            by_weight[..., 0] = moments[0]
    return total


def _triton_sweep(
    x: Tensor,
    frequencies: Tensor,
    weights: Tensor,
    direction: Tensor | None,
    gradients: Gradients | None,
) -> Tensor:
    """``sweep`` by the two passes of ``gpx.backends.triton.fourier``, on tensor cores.

    Gradients of frequencies are sums over the rows of directions u_k x times sines and cosines;
    those of x are products with weights times frequencies.
    """
    from gpx.backends.triton.fourier import fourier_moments, fourier_product

    (n, d), (count, k) = x.shape, weights.shape[1:]
    if gradients is not None and direction is not None:
        by_angle = gradients.frequencies is not None
        if by_angle or gradients.weights is not None:
            along = (direction[:, :, None] * x[:, None]).view(n, k * d) if by_angle else x[:, :0]
            sums = fourier_moments(x, frequencies, torch.cat((direction, along), 1))
            if gradients.weights is not None:
                gradients.weights.copy_(sums[..., :k])
            if gradients.frequencies is not None:
                cosines, sines = sums[..., k:].view(2, count, k, d)
                by_cosine, by_sine = weights[1, :, :, None], weights[0, :, :, None]
                gradients.frequencies.copy_((by_cosine * cosines - by_sine * sines).sum(1))
        if gradients.x is not None:
            turned = torch.stack((weights[1], -weights[0]))
            carried = (turned[..., None] * frequencies[:, None]).view(2, count, k * d)
            slopes = fourier_product(x, frequencies, carried).view(n, k, d)
            gradients.x.add_((direction[:, :, None] * slopes).sum(1))
    return fourier_product(x, frequencies, weights).T


class FourierProducts(torch.autograd.Function):
    """scale * Phi w for x (n, d), frequencies (R, d), scale () and weights (2, R, k): (n, k).

    The gradient of the product is known only later: the features are evaluated again where that is
    compiled, else kept (2, R, n). ``keep`` (2, R, n) is filled with them in any case.
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

    cos^2 = (1 + cos 2a) / 2 and sin^2 = 1 - cos^2: one cosine per pair, held at or above zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, frequencies: Tensor, scale: Tensor) -> Tensor:
        """The sums; see the class."""
        inputs = 2.0 * x.T.contiguous()
        count, moments = frequencies.shape[0], None
        need_x, need_frequencies, _ = ctx.needs_input_grad
        compiled = triton_fourier(x)
        native = fourier_pass(x) if x.shape[1] <= MOST_INPUTS else None
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
        # sums of sin(2 angle) x over the rows (d, R), where they are known already
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
