"""Products with Fourier features, computed while the features are in the cache.

A step of a sampled bound needs Phi w, Phi^T u and sums of squares, never Phi. Frequencies are
processed in tiles: angles, cosines and sines of a tile, then all products with them. On a CPU with
a compiler one pass does this in registers (``fourier.native``) and nothing is stored; torch
operations store features only where a later product needs the result of an earlier one. On a CUDA
device with Triton two passes on tensor cores do the same for any number of columns.

Arrays hold all cosines, then all sines: weights (2, R, k) and kept features (2, R, n) for R
frequencies. Gradients are written by hand: with G = u w^T the gradient with respect to Phi, the
gradient with respect to an angle is G_sin cos - G_cos sin; times the inputs it gives that of the
frequency.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends.triton import triton_fourier
from gpx.bases.fourier.native import MAX_INPUTS, FourierPass, fourier_pass

TILE_ANGLES = 2**17
"""Number of angles per tile on a CPU: their cosines and sines fill one megabyte in float32."""


def tiles(num_frequencies: int, x: Tensor) -> Iterator[slice]:
    """Slices of frequencies, equally large, for inputs x (n, d); a single one on a GPU."""
    most = max(1, TILE_ANGLES // max(1, x.shape[0])) if x.device.type == "cpu" else num_frequencies
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
        scale: factor; free in the compiled pass.
    """
    if native is not None and inputs.shape[0] <= MAX_INPUTS:
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


class Gradients(NamedTuple):
    """Arrays that a sweep fills or adds to; None where a gradient is not needed."""

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
    """Phi w as (k, n), and gradients of sum(u * (Phi w)) in the same pass.

    Args:
        x (n, d), frequencies (R, d), weights (2, R, k): w.
        direction (n, k): u.
        gradients: arrays that receive the gradients; given together with ``direction``.
        keep (2, R, n): receives the features.
    """
    if keep is None and triton_fourier(x):
        return _triton_sweep(x, frequencies, weights, direction, gradients)
    # the CPU loops need contiguous rows
    inputs, frequencies = x.T if x.is_cuda else x.T.contiguous(), frequencies.contiguous()
    native = fourier_pass(x)
    if native is not None and weights.shape[2] == 1:
        by_angle = gradients is not None and gradients.frequencies is not None
        few = not by_angle or x.shape[1] <= MAX_INPUTS
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
    products of the features with directions u and u x, computed in one pass.
    """
    (d, n), count = inputs.shape, frequencies.shape[0]
    few = d <= MAX_INPUTS or count == 0
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
