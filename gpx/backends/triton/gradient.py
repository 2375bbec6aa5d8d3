"""Triton: derivatives of ``sum_c left_c^T K right_c`` with respect to everything K is made of.

The derivative with respect to entry (i, j) of K is the weight ``left_i . right_j``, computed tile
by tile as one more thin product. Weight times the slope of the profile, times the coordinates of
the columns, is the derivative with respect to the row's coordinates; a column of ones beside them
gives the factor of the row's own coordinates. Derivatives with respect to lengthscales follow from
those in torch, at a cost linear in n.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpx.backends.radial_parts import RadialPart
from gpx.backends.triton.blocks import Blocks, num_splits
from gpx.backends.triton.factors import (
    Precision,
    distance_factors,
    distance_width,
    halves,
    packed,
    padded,
    width,
)
from gpx.backends.triton.frequencies import tf32
from gpx.backends.triton.product import plain_product
from gpx.backends.triton.profiles import factor, radial_slopes

WEIGHTS_BLOCK = 32
"""Columns of the factors of the weights that are multiplied at a time."""


class PartGradients(NamedTuple):
    """Derivatives for z1, z2 (None for a square matrix, where z1 has both), scale and shape."""

    z1: Tensor | None
    z2: Tensor | None
    scale: Tensor
    shape: Tensor | None


def plain_gradients(part: RadialPart, left: Tensor, right: Tensor) -> PartGradients:
    """The same in torch: autograd through the stored matrix."""
    leaves = [t.detach().requires_grad_() for t in part.tensors]
    z1, z2, scale, *shape = leaves
    copy = RadialPart(part.profile, z1, z1 if part.square else z2, scale, *shape)
    with torch.enable_grad():
        value = (left * plain_product(copy, right)).sum()
    wanted = [z1, scale, *shape, *([] if part.square else [z2])]
    by_z1, by_scale, *others = torch.autograd.grad(value, wanted)
    by_shape = others.pop(0) if shape else None
    return PartGradients(by_z1, others[0] if others else None, by_scale, by_shape)


@triton.jit
def gradient_kernel(
    left,
    right,
    weights_left,
    weights_right,
    points,
    points_low,
    shape,
    moments,
    values,
    by_shapes,
    total_rows,
    total_tiles,
    weights_width,
    tiles_each,
    PROFILE: tl.constexpr,
    SQUARE: tl.constexpr,
    HALVES: tl.constexpr,
    MOMENTS: tl.constexpr,
    SHAPES: tl.constexpr,
    WIDTH: tl.constexpr,
    POINTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WEIGHTS: tl.constexpr,
):
    """Sums over the tiles of this split, with s = weight * slope of the profile:

    moments[split, rows] = sum_j s_ij points_j (POINTS columns, one of them of ones), values =
    sum_j weight_ij phi_ij, by_shapes = sum_j weight_ij dphi_ij / dshape.

    left (total_rows, WIDTH), right: factors of the distances; weights_left (total_rows,
    weights_width), weights_right: factors of the weights; points, points_low (..., POINTS). All are
    padded with zeros to whole tiles: a padded row or column has weight zero. Grid: strips, splits.
    """
    number: tl.constexpr = left.dtype.element_ty
    precision: tl.constexpr = "tf32" if HALVES else "ieee"
    strip = tl.program_id(0)
    rows = strip * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    start = tl.program_id(1) * tiles_each
    end = tl.minimum(start + tiles_each, total_tiles)
    inner = tl.arange(0, WIDTH)
    some = tl.arange(0, WEIGHTS)
    point = tl.arange(0, POINTS)
    z1 = tl.load(left + rows.to(tl.int64)[:, None] * WIDTH + inner[None, :])
    alpha = tl.load(shape)
    moment = tl.zeros((ROWS, POINTS), number)
    value_sum = tl.zeros((ROWS,), number)
    shape_sum = tl.zeros((ROWS,), number)
    of_rows = weights_left + rows.to(tl.int64)[:, None] * weights_width + some[None, :]
    for tile in range(start, end):
        at = (tile * COLUMNS + columns).to(tl.int64)
        z2 = tl.load(right + at[None, :] * WIDTH + inner[:, None])
        t = tl.dot(z1, z2, input_precision=precision, out_dtype=number)
        of_columns = weights_right + at[None, :] * weights_width + some[:, None]
        weight = tl.zeros((ROWS, COLUMNS), number)
        for first in range(0, weights_width, WEIGHTS):
            u = tl.load(of_rows + first)
            v = tl.load(of_columns + first)
            weight = tl.dot(u, v, weight, input_precision=precision, out_dtype=number)
        diagonal = rows[:, None] == tile * COLUMNS + columns[None, :]
        if SQUARE:
            t = tl.where(diagonal, 0.0, t)
        value, slope, by_shape = radial_slopes(t, alpha, PROFILE)
        value_sum += tl.sum(weight * value, 1)
        if SHAPES:
            shape_sum += tl.sum(weight * by_shape, 1)
        if MOMENTS:
            s = weight * slope
            if SQUARE:
                s = tl.where(diagonal, 0.0, s)
            p = tl.load(points + at[:, None] * POINTS + point[None, :])
            if HALVES:
                high = tf32(s)
                p_low = tl.load(points_low + at[:, None] * POINTS + point[None, :])
                part = tl.dot(s - high, p, input_precision="tf32")
                part = tl.dot(high, p_low, part, input_precision="tf32")
                moment += tl.dot(high, p, part, input_precision="tf32")  # see ``product``
            else:
                moment = tl.dot(s, p, moment, input_precision="ieee", out_dtype=number)
    place = tl.program_id(1).to(tl.int64) * total_rows + rows
    tl.store(values + place, value_sum)
    if SHAPES:
        tl.store(by_shapes + place, shape_sum)
    if MOMENTS:
        tl.store(moments + place[:, None] * POINTS + point[None, :], moment)


def gradient_blocks(dtype: torch.dtype, precision: Precision, wide: int) -> Blocks:
    """Tiles that fit the registers of sm_90 (``scripts/triton_counts.py``)."""
    if dtype == torch.float64:
        return Blocks(64, 16, 4, 3)
    if precision == "ieee":
        return Blocks(64, 32 if wide <= 32 else 16, 4, 2)
    return Blocks(128, 64 if wide <= 32 else 32, 8, 2)


def gradients(
    part: RadialPart,
    left: Tensor,
    right: Tensor,
    precision: Precision,
    *,
    coordinates: bool = True,
    blocks: Blocks | None = None,
) -> PartGradients:
    """Derivatives of ``sum_c left_c^T K right_c``, K of ``part``.

    Args:
        part: contiguous coordinates on the device of the vectors, of their dtype.
        left (n1, c), right (n2, c): vectors.
        precision: of the matrix products; "tf32x3" for float32 only.
        coordinates: whether to compute those of z1 and z2, otherwise None.
        blocks: tiles; None for the defaults.

    At coincident points the derivative with respect to coordinates is zero, which is exact if the
    profile is differentiable there and otherwise a subgradient (Matern 1/2).

    Cost: n1 n2 (6 q + 9 + 3 c) multiply-adds and one exponential per pair in "tf32x3"; twice that
    for a rectangular matrix, with one pass for rows and one for columns.
    """
    if blocks is None:
        wide = distance_width(part.z1.shape[1], precision)
        blocks = gradient_blocks(left.dtype, precision, wide)
    if part.square:  # coordinates i belong to row i and to column i of the matrix
        left, right = torch.cat((left, right), 1), torch.cat((right, left), 1)
    moments, value, shape = _row_sums(part, left, right, precision, coordinates, blocks)
    column_moments = None
    if coordinates and not part.square:
        column_moments = _row_sums(part.transposed(), right, left, precision, True, blocks)[0]
    half = 0.5 if part.square else 1.0  # a square matrix counts every pair twice
    return PartGradients(
        _by_coordinates(part.z1, moments, part.scale),
        _by_coordinates(part.z2, column_moments, part.scale),
        (half * value).to(left.dtype),
        None if part.shape is None else (half * shape * part.scale).to(left.dtype),
    )


def _by_coordinates(z: Tensor, moments: Tensor | None, scale: Tensor) -> Tensor | None:
    """2 scale sum_j s_ij (z_i - z_j)."""
    if moments is None:
        return None
    q = z.shape[1]
    return (z * moments[:, q : q + 1] - moments[:, :q]) * (2.0 * scale)


def _row_sums(
    part: RadialPart,
    left: Tensor,
    right: Tensor,
    precision: Precision,
    coordinates: bool,
    blocks: Blocks,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Moments (n1, q + 1), and the sums for scale and shape, 0-d float64."""
    (n1, q), n2 = part.z1.shape, part.z2.shape[0]
    like, split = part.z1, precision == "tf32x3"
    if n1 == 0 or n2 == 0 or left.shape[1] == 0:
        zero = like.new_zeros((), dtype=torch.float64)
        return (like.new_zeros(n1, q + 1) if coordinates else None), zero, zero
    first, second = distance_factors(part.z1, part.z2, factor(part), precision)
    wide, many = width(first.shape[1]), width(q + 1)
    first, second = padded(first, blocks.rows, wide), padded(second, blocks.columns, wide)
    u = padded(packed(left, precision, left=True), blocks.rows, WEIGHTS_BLOCK)
    v = padded(packed(right, precision, left=False), blocks.columns, WEIGHTS_BLOCK)
    ones = like.new_ones(n2, 1)
    points = padded(torch.cat((part.z2, ones), 1), blocks.columns, many)
    points, points_low = halves(points) if split else (points, points)
    strips, tiles = first.shape[0] // blocks.rows, second.shape[0] // blocks.columns
    splits = num_splits(blocks, strips, tiles, like)
    moments = like.new_empty(splits, first.shape[0], many) if coordinates else like
    values = like.new_empty(splits, first.shape[0])
    by_shapes = torch.zeros_like(values)
    shape = like.new_zeros(()) if part.shape is None else part.shape
    with torch.cuda.device_of(like):
        gradient_kernel[(strips, splits)](
            *(first, second, u, v, points, points_low, shape, moments, values, by_shapes),
            *(first.shape[0], tiles, u.shape[1], -(-tiles // splits)),
            PROFILE=part.profile,
            SQUARE=part.square,
            HALVES=split,
            MOMENTS=coordinates,
            SHAPES=part.shape is not None,
            WIDTH=wide,
            POINTS=many,
            ROWS=blocks.rows,
            COLUMNS=blocks.columns,
            WEIGHTS=WEIGHTS_BLOCK,
            num_warps=blocks.warps,
            enable_fp_fusion=True,
            num_stages=blocks.stages,
        )
    total = moments.sum(0)[:n1, : q + 1] if coordinates else None
    return total, values.double().sum(), by_shapes.double().sum()
