"""Triton: products with random Fourier features, which are evaluated and used in registers.

Two passes serve everything that a model asks of features cos and sin of the angles ``x . w_r``:

- ``fourier_product``: sum_r weights[0, r] cos + weights[1, r] sin at every row of x. One program
  takes a strip of rows and walks over frequencies. With weights times frequencies it is also the
  derivative with respect to x.
- ``fourier_moments``: sums over the rows of directions times cosines, and times sines, for every
  frequency; the transposed product. One program takes some frequencies and walks over rows. With
  directions u and u x they hold the derivatives with respect to weights and to frequencies.

Frequencies are given, or made by the program that needs them from a seed (``MadeFrequencies``):
then nothing of their size is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpx.backends.triton.blocks import Blocks, shares
from gpx.backends.triton.factors import Precision, halves, padded, scaled_halves, width
from gpx.backends.triton.normals import normals_tile, signed, standard_normals
from gpx.backends.triton.waves import cosine_sine

WIDEST = 32
"""Columns of weights or directions that one program multiplies at most."""
HALF_A_BIT = tl.constexpr(1 << 12)
KEPT = tl.constexpr(-(1 << 13))


@dataclass(frozen=True)
class MadeFrequencies:
    """Frequencies (r, d) as functions of a seed: normals over lengthscales, stretched for Matern.

    Attributes:
        seed: of the normals (``gpx.bases.counter_random``).
        addresses (r,): rows of the stream, int64.
        inverse_lengthscales (d,): their device is used.
        freedom: normals beyond d whose squares make the denominator, 2 nu; 0 for RBF.
    """

    seed: int
    addresses: Tensor
    inverse_lengthscales: Tensor
    freedom: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(r, d)."""
        return self.addresses.shape[0], self.inverse_lengthscales.shape[0]

    def stored(self) -> Tensor:
        """The frequencies (r, d) as an array; what the passes make inside."""
        inverse, inputs = self.inverse_lengthscales, self.shape[1]
        normals = standard_normals(self.seed, self.addresses, inputs + self.freedom, inverse.dtype)
        if self.freedom:
            rest = normals[:, inputs:].square().sum(1, keepdim=True)
            normals = normals[:, :inputs] * (self.freedom / rest).sqrt()
        return normals * inverse


def plain_product(x: Tensor, frequencies: Tensor, weights: Tensor) -> Tensor:
    """The twin of ``fourier_product`` in torch."""
    angles = x @ frequencies.T
    return angles.cos() @ weights[0] + angles.sin() @ weights[1]


def plain_moments(x: Tensor, frequencies: Tensor, directions: Tensor) -> Tensor:
    """The twin of ``fourier_moments`` in torch."""
    angles = frequencies @ x.T
    return torch.stack((angles.cos() @ directions, angles.sin() @ directions))


@triton.jit
def _tf32(values):
    """Rounded to the eleven bits that tensor cores read of a float32."""
    bits = (values.to(tl.int32, bitcast=True) + HALF_A_BIT) & KEPT
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _frequencies(
    high,
    low,
    addresses,
    inverse,
    key,
    number_of,
    inputs,
    some,
    MADE: tl.constexpr,
    FREEDOM: tl.constexpr,
    HALVES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Frequencies ``some`` (F,) as (F, WIDTH) high and low parts, zeros beyond the inputs."""
    column = tl.arange(0, WIDTH)[None, :]
    if MADE:
        address = tl.load(addresses + some, mask=some < number_of, other=0)
        normals = normals_tile(address, key, WIDTH // 4)
        scale = tl.load(inverse + column, mask=column < inputs, other=0.0)
        if FREEDOM > 0:
            rest = (column >= inputs) & (column < inputs + FREEDOM)
            squares = tl.sum(tl.where(rest, normals * normals, 0.0), 1)
            normals *= tl.sqrt(FREEDOM / squares)[:, None]
        first = normals.to(scale.dtype) * scale
        second = first
        if HALVES:
            first = _tf32(second)
            second -= first
    else:
        place = some.to(tl.int64)[:, None] * WIDTH + column
        first = tl.load(high + place)
        second = first
        if HALVES:
            second = tl.load(low + place)
    return first, second


@triton.jit
def _angles(a, a_low, b, b_low, HALVES: tl.constexpr):
    """a @ b, in halves or in the dtype itself."""
    if HALVES:
        angle = tl.dot(a_low, b, input_precision="tf32")
        angle = tl.dot(a, b_low, angle, input_precision="tf32")
        angle = tl.dot(a, b, angle, input_precision="tf32")
    else:
        angle = tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)
    return angle


@triton.jit
def _times(wave, v, v_low, total, HALVES: tl.constexpr):
    """total + wave @ v; the rest of a wave in float16 is right to 2^-25 beside its size of one."""
    if HALVES:
        high = wave.to(tl.float16)
        low = (wave - high.to(tl.float32)).to(tl.float16)
        total = tl.dot(low, v, total, input_precision="ieee")
        total = tl.dot(high, v_low, total, input_precision="ieee")
        total = tl.dot(high, v, total, input_precision="ieee")
    else:
        total = tl.dot(wave, v, total, input_precision="ieee", out_dtype=total.dtype)
    return total


@triton.jit(do_not_specialize=["key"])
def fourier_product_kernel(
    inputs_high,
    inputs_low,
    high,
    low,
    addresses,
    inverse,
    key,
    weights,
    weights_low,
    out,
    number_of,
    inputs,
    total_rows,
    total_tiles,
    stride,
    tiles_each,
    MADE: tl.constexpr,
    FREEDOM: tl.constexpr,
    HALVES: tl.constexpr,
    SINGLE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    FREQUENCIES: tl.constexpr,
    VECTORS: tl.constexpr,
):
    """out[share, rows] = sum over the frequencies of this share of weights times waves.

    inputs_high, inputs_low (total_rows, WIDTH); high, low (total_tiles * FREQUENCIES, WIDTH) where
    frequencies are not MADE; weights (2, total_tiles * FREQUENCIES, stride), zero beyond the
    frequencies. With SINGLE there is one column. Grid: strips, shares, blocks of VECTORS.
    """
    number: tl.constexpr = inputs_high.dtype.element_ty
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    vector = tl.program_id(2) * VECTORS + tl.arange(0, VECTORS)
    start = tl.program_id(1) * tiles_each
    end = tl.minimum(start + tiles_each, total_tiles)
    at_inputs = rows.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(inputs_high + at_inputs)
    x_low = tl.load(inputs_low + at_inputs)
    total = tl.zeros((ROWS, VECTORS), number)
    single = tl.zeros((ROWS,), number)
    half = tl.cast(total_tiles, tl.int64) * FREQUENCIES * stride
    for tile in range(start, end):
        some = tile * FREQUENCIES + tl.arange(0, FREQUENCIES)
        w, w_low = _frequencies(
            *(high, low, addresses, inverse, key, number_of, inputs, some),
            *(MADE, FREEDOM, HALVES, WIDTH),
        )
        angle = _angles(x, x_low, tl.trans(w), tl.trans(w_low), HALVES)
        cosine, sine = cosine_sine(angle)
        if SINGLE:
            a = tl.load(weights + some)
            b = tl.load(weights + half + some)
            single += tl.sum(cosine * a[None, :] + sine * b[None, :], 1)
        else:
            place = some.to(tl.int64)[:, None] * stride + vector[None, :]
            a, a_low = tl.load(weights + place), tl.load(weights_low + place)
            b, b_low = tl.load(weights + half + place), tl.load(weights_low + half + place)
            total = _times(cosine, a, a_low, total, HALVES)
            total = _times(sine, b, b_low, total, HALVES)
    place = tl.program_id(1).to(tl.int64) * total_rows + rows
    if SINGLE:
        tl.store(out + place, single)
    else:
        tl.store(out + place[:, None] * stride + vector[None, :], total)


@triton.jit(do_not_specialize=["key"])
def fourier_moments_kernel(
    inputs_high,
    inputs_low,
    high,
    low,
    addresses,
    inverse,
    key,
    directions,
    directions_low,
    out,
    number_of,
    inputs,
    total_frequencies,
    total_tiles,
    stride,
    tiles_each,
    MADE: tl.constexpr,
    FREEDOM: tl.constexpr,
    HALVES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    FREQUENCIES: tl.constexpr,
    VECTORS: tl.constexpr,
):
    """out[share, part, frequencies] = sum over the rows of this share of waves times directions.

    Part 0 has cosines, part 1 sines. inputs_high, inputs_low (total_tiles * ROWS, WIDTH);
    directions (total_tiles * ROWS, stride), zero beyond the rows; frequencies as in
    ``fourier_product_kernel``. Grid: blocks of frequencies, shares, blocks of VECTORS.
    """
    number: tl.constexpr = inputs_high.dtype.element_ty
    some = tl.program_id(0) * FREQUENCIES + tl.arange(0, FREQUENCIES)
    vector = tl.program_id(2) * VECTORS + tl.arange(0, VECTORS)
    start = tl.program_id(1) * tiles_each
    end = tl.minimum(start + tiles_each, total_tiles)
    w, w_low = _frequencies(
        *(high, low, addresses, inverse, key, number_of, inputs, some),
        *(MADE, FREEDOM, HALVES, WIDTH),
    )
    column = tl.arange(0, WIDTH)
    cosines = tl.zeros((FREQUENCIES, VECTORS), number)
    sines = tl.zeros((FREQUENCIES, VECTORS), number)
    for tile in range(start, end):
        rows = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        at_inputs = rows[None, :] * WIDTH + column[:, None]
        x = tl.load(inputs_high + at_inputs)
        x_low = tl.load(inputs_low + at_inputs)
        cosine, sine = cosine_sine(_angles(w, w_low, x, x_low, HALVES))
        place = rows[:, None] * stride + vector[None, :]
        u, u_low = tl.load(directions + place), tl.load(directions_low + place)
        cosines = _times(cosine, u, u_low, cosines, HALVES)
        sines = _times(sine, u, u_low, sines, HALVES)
    place = 2 * tl.program_id(1).to(tl.int64) * total_frequencies + some
    tl.store(out + place[:, None] * stride + vector[None, :], cosines)
    place += total_frequencies
    tl.store(out + place[:, None] * stride + vector[None, :], sines)


def fourier_blocks(
    dtype: torch.dtype, precision: Precision, wide: int, *, made: bool = False
) -> Blocks:
    """Rows and frequencies of a tile that were counted to fit sm_90 (``scripts/triton_counts.py``).

    The first side is that of the program, the second that of its loop. A product that makes its
    frequencies does so for every strip of rows: the strips are high.
    """
    if dtype == torch.float64:
        return Blocks(128 if made else 64, 16, 4, 2)
    if precision == "ieee":
        return Blocks(64, 32, 4, 2)
    if made:
        return Blocks(256, 32, 4, 2)
    return Blocks(128, 32 if wide <= 32 else 16, 4, 2)


def fourier_product(
    x: Tensor,
    frequencies: Tensor | MadeFrequencies,
    weights: Tensor,
    precision: Precision = "tf32x3",
    blocks: Blocks | None = None,
) -> Tensor:
    """sum_r weights[0, r] cos(x . w_r) + weights[1, r] sin(x . w_r): (n, k); not differentiable.

    Args:
        x (n, d), frequencies (R, d), weights (2, R, k): of one dtype and device.
        precision: of the matrix products in float32; float64 is always computed in float64.
            Frequencies to be made are made inside for one column of weights; for several they are
            made once and stored, which then takes fewer instructions.
        blocks: rows and frequencies of a tile; None for what suits the device.

    Cost: n R pairs of cosine and sine, O(n R (d + k)) multiply-adds; memory O((n + R)(d + k)).
    """
    (n, d), (count, _), k = x.shape, frequencies.shape, weights.shape[2]
    if n == 0 or count == 0 or k == 0:
        return x.new_zeros(n, k)
    precision = "ieee" if x.dtype == torch.float64 else precision
    split, single = precision == "tf32x3", k == 1
    if isinstance(frequencies, MadeFrequencies) and not single:
        frequencies = frequencies.stored()
    made = isinstance(frequencies, MadeFrequencies)
    blocks = blocks or fourier_blocks(x.dtype, precision, width(d), made=made)
    wide, source = _source(x, frequencies, blocks.columns, split)
    vectors = 16 if single else min(WIDEST, width(k))
    high, low, scale = weights, weights, None
    if split and not single:
        high, low, scale = scaled_halves(weights.reshape(2 * count, k), 1.0)
        high, low = high.view(2, count, k), low.view(2, count, k)
    fill = (0, 0 if single else -k % vectors, 0, -count % blocks.columns)
    high, low = (torch.nn.functional.pad(v, fill).contiguous() for v in (high, low))
    parts = [padded(part, blocks.rows, wide) for part in _parts(x, split)]
    rows, tiles, stride = parts[0].shape[0], high.shape[1] // blocks.columns, high.shape[2]
    strips, across = rows // blocks.rows, 1 if single else stride // vectors
    shared = shares(blocks, strips * across, tiles, x)
    out = x.new_empty(shared, rows, stride)
    with torch.cuda.device_of(x):
        fourier_product_kernel[(strips, shared, across)](
            *(*parts, *source.arrays, source.key, high, low, out),
            *(*source.sizes, rows, tiles, stride, -(-tiles // shared)),
            MADE=source.made,
            FREEDOM=source.freedom,
            HALVES=split,
            SINGLE=single,
            WIDTH=wide,
            ROWS=blocks.rows,
            FREQUENCIES=blocks.columns,
            VECTORS=vectors,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
    found = out.sum(0)[:n, :k]
    return found if scale is None else found * scale


def fourier_moments(
    x: Tensor,
    frequencies: Tensor | MadeFrequencies,
    directions: Tensor,
    precision: Precision = "tf32x3",
    blocks: Blocks | None = None,
) -> Tensor:
    """Sums over rows of directions times cosines, and times sines: (2, R, k); not differentiable.

    Args:
        x (n, d), frequencies (R, d), directions (n, k): of one dtype and device.
        precision, blocks: as in ``fourier_product``; blocks are frequencies and rows of a tile.

    Cost: as ``fourier_product``.
    """
    (n, d), (count, _), k = x.shape, frequencies.shape, directions.shape[1]
    if n == 0 or count == 0 or k == 0:
        return x.new_zeros(2, count, k)
    precision = "ieee" if x.dtype == torch.float64 else precision
    blocks = blocks or fourier_blocks(x.dtype, precision, width(d))
    split = precision == "tf32x3"
    wide, source = _source(x, frequencies, blocks.rows, split)
    vectors = min(WIDEST, width(k))
    high, low, scale = scaled_halves(directions, 1.0) if split else (directions, directions, None)
    high, low = (padded(v, blocks.columns, vectors) for v in (high, low))
    parts = [padded(part, blocks.columns, wide) for part in _parts(x, split)]
    tiles, stride = high.shape[0] // blocks.columns, high.shape[1]
    strips, across = -(-count // blocks.rows), stride // vectors
    shared = shares(blocks, strips * across, tiles, x)
    out = x.new_empty(shared, 2, strips * blocks.rows, stride)
    with torch.cuda.device_of(x):
        fourier_moments_kernel[(strips, shared, across)](
            *(*parts, *source.arrays, source.key, high, low, out),
            *(*source.sizes, strips * blocks.rows, tiles, stride, -(-tiles // shared)),
            MADE=source.made,
            FREEDOM=source.freedom,
            HALVES=split,
            WIDTH=wide,
            ROWS=blocks.columns,
            FREQUENCIES=blocks.rows,
            VECTORS=vectors,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
    found = out.sum(0)[:, :count, :k]
    return found if scale is None else found * scale


@dataclass(frozen=True)
class _Source:
    """Where a kernel gets its frequencies: arrays high, low, addresses, inverse lengthscales."""

    made: bool
    arrays: tuple[Tensor, Tensor, Tensor, Tensor]
    key: int
    sizes: tuple[int, int]  # frequencies, inputs
    freedom: int


def _source(
    x: Tensor, frequencies: Tensor | MadeFrequencies, block: int, split: bool
) -> tuple[int, _Source]:
    """Padded width of the inputs, and the frequencies in whole blocks."""
    count, inputs = frequencies.shape
    if isinstance(frequencies, MadeFrequencies):
        wide = width(inputs + frequencies.freedom)
        inverse = frequencies.inverse_lengthscales.contiguous()
        arrays = x, x, frequencies.addresses.to(torch.int64).contiguous(), inverse
        key, freedom = signed(frequencies.seed), frequencies.freedom
        return wide, _Source(True, arrays, key, (count, inputs), freedom)
    wide = width(inputs)
    high, low = (padded(part, block, wide) for part in _parts(frequencies, split))
    return wide, _Source(False, (high, low, x, x), 0, (count, inputs), 0)


def _parts(values: Tensor, split: bool) -> tuple[Any, Any]:
    return halves(values) if split else (values, values)
