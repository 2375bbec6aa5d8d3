"""Triton kernels of the two passes over random Fourier features.

A program of ``fourier_product_kernel`` has a strip of rows and loops over frequencies, one of
``fourier_moments_kernel`` has some frequencies and loops over rows. Angles, cosines and sines stay
in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpx.backends.triton.frequencies import frequencies_tile
from gpx.backends.triton.waves import cosine_sine


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
    """total + wave @ v; in halves, the two float16 parts of a wave are accurate to 2^-25.

    In halves the sum of a tile starts from zero and is added to the total by a rounded addition, as
    in ``product``.
    """
    if HALVES:
        high = wave.to(tl.float16)
        low = (wave - high.to(tl.float32)).to(tl.float16)
        part = tl.dot(low, v, input_precision="ieee")
        part = tl.dot(high, v_low, part, input_precision="ieee")
        total += tl.dot(high, v, part, input_precision="ieee")
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
    SEEDED: tl.constexpr,
    FREEDOM: tl.constexpr,
    HALVES: tl.constexpr,
    SINGLE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    FREQUENCIES: tl.constexpr,
    VECTORS: tl.constexpr,
):
    """out[split, rows] = sum over the frequencies of this split of weights times waves.

    inputs_high, inputs_low (total_rows, WIDTH); high, low (total_tiles * FREQUENCIES, WIDTH) unless
    SEEDED; weights (2, total_tiles * FREQUENCIES, stride), zero beyond the frequencies. SINGLE: one
    column. Grid: strips, splits, blocks of VECTORS.
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
        w, w_low = frequencies_tile(
            *(high, low, addresses, inverse, key, number_of, inputs, some),
            *(SEEDED, FREEDOM, HALVES, WIDTH),
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
    SEEDED: tl.constexpr,
    FREEDOM: tl.constexpr,
    HALVES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    FREQUENCIES: tl.constexpr,
    VECTORS: tl.constexpr,
):
    """out[split, part, frequencies] = sum over the rows of this split of waves times directions.

    Part 0 is for cosines, part 1 for sines. inputs_high, inputs_low (total_tiles * ROWS, WIDTH);
    directions (total_tiles * ROWS, stride), zero beyond the rows; frequencies as in
    ``fourier_product_kernel``. Grid: blocks of frequencies, splits, blocks of VECTORS.
    """
    number: tl.constexpr = inputs_high.dtype.element_ty
    some = tl.program_id(0) * FREQUENCIES + tl.arange(0, FREQUENCIES)
    vector = tl.program_id(2) * VECTORS + tl.arange(0, VECTORS)
    start = tl.program_id(1) * tiles_each
    end = tl.minimum(start + tiles_each, total_tiles)
    w, w_low = frequencies_tile(
        *(high, low, addresses, inverse, key, number_of, inputs, some),
        *(SEEDED, FREEDOM, HALVES, WIDTH),
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
