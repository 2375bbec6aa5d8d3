"""Triton: the product of a stationary kernel matrix with a block of vectors.

Each program has a strip of rows and loops over tiles of columns: it computes distances by one thin
matrix product, the profile in registers, and the product with the vectors by another. The kernel
matrix never leaves the registers.

In "tf32x3" the tile of kernel values (between 0 and 1) and the vectors (scaled) are pairs of
float16, with eleven bits each as in tf32. Tensor cores read float16 directly from the registers;
tf32 would first have to be shuffled between threads (six more instructions per pair).

Tensor cores truncate what they add to a float32 sum. Over thousands of tiles these errors, all of
one sign, would grow far beyond float32 rounding, so the product of a tile starts from zero and is
added to the sum of all tiles by an ordinary, rounded addition (Ootomo and Yokota 2022).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpx.backends.radial_parts import RadialPart
from gpx.backends.triton.blocks import Blocks, num_splits
from gpx.backends.triton.factors import Precision, distance_factors, padded, scaled_halves, width
from gpx.backends.triton.profiles import factor, plain_profile, radial

MAX_VECTORS = 64
"""Largest number of columns of vectors per program."""
LIFT = tl.constexpr(2.0**15)
"""Factor of kernel values before they are rounded to float16, so that small ones keep bits."""


def plain_product(part: RadialPart, right: Tensor) -> Tensor:
    """K @ right in torch, with the matrix stored and distances from differences."""
    r2 = (part.z1[:, None] - part.z2[None]).square().sum(-1)
    value = plain_profile(part, r2.masked_fill(r2 == 0, 1.0))
    return part.scale * torch.where(r2 == 0, torch.ones_like(value), value) @ right


@triton.jit
def product_kernel(
    left,
    right,
    high,
    low,
    shape,
    out,
    total_rows,
    total_tiles,
    stride,
    tiles_each,
    PROFILE: tl.constexpr,
    SQUARE: tl.constexpr,
    HALVES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTORS: tl.constexpr,
):
    """out[split, rows] = sum over the tiles of this split of phi(distances) @ vectors.

    left (total_rows, WIDTH), right (total_tiles * COLUMNS, WIDTH): factors of the distances. high,
    low (..., stride): vectors; low is read with HALVES only. All are padded with zeros to whole
    tiles: a padded column is multiplied by zero. Grid: strips, splits, blocks of VECTORS.
    """
    number: tl.constexpr = left.dtype.element_ty
    strip = tl.program_id(0)
    rows = strip * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    vector = tl.program_id(2) * VECTORS + tl.arange(0, VECTORS)
    start = tl.program_id(1) * tiles_each
    end = tl.minimum(start + tiles_each, total_tiles)
    inner = tl.arange(0, WIDTH)
    z1 = tl.load(left + rows.to(tl.int64)[:, None] * WIDTH + inner[None, :])
    alpha = tl.load(shape)
    at = start.to(tl.int64) * COLUMNS + columns
    where_right = right + at[None, :] * WIDTH + inner[:, None]
    where_high = high + at[:, None] * stride + vector[None, :]
    where_low = low + at[:, None] * stride + vector[None, :]
    total = tl.zeros((ROWS, VECTORS), number)
    rest = tl.zeros((ROWS, VECTORS), number)
    for tile in range(start, end):
        z2 = tl.load(where_right)
        v = tl.load(where_high)
        if HALVES:
            t = tl.dot(z1, z2, input_precision="tf32")
        else:
            t = tl.dot(z1, z2, input_precision="ieee", out_dtype=number)
        if SQUARE:  # noqa: SIM102 - decided by the compiler, the other by the device
            if (tile * COLUMNS < strip * ROWS + ROWS) & (tile * COLUMNS + COLUMNS > strip * ROWS):
                t = tl.where(rows[:, None] == tile * COLUMNS + columns[None, :], 0.0, t)
        k = radial(t, alpha, PROFILE)
        if HALVES:
            k = k * LIFT
            k_high = k.to(tl.float16)
            k_low = ((k - k_high.to(tl.float32)) * 2048.0).to(tl.float16)
            v_low = tl.load(where_low)
            # a multiply-add, as the compiler would make a product and a sum one operation again
            total = tl.fma(tl.dot(k_high, v, input_precision="ieee"), 1.0 / LIFT, total)
            rest = tl.dot(k_high, v_low, rest, input_precision="ieee")
            rest = tl.dot(k_low, v, rest, input_precision="ieee")
            where_low += COLUMNS * stride
        else:
            total = tl.dot(k, v, total, input_precision="ieee", out_dtype=number)
        where_right += COLUMNS * WIDTH
        where_high += COLUMNS * stride
    if HALVES:
        total += rest * (1.0 / (2048.0 * LIFT))
    place = tl.program_id(1).to(tl.int64) * total_rows + rows
    tl.store(out + place[:, None] * stride + vector[None, :], total)


def product_blocks(dtype: torch.dtype, precision: Precision, wide: int) -> Blocks:
    """Tiles that fit the registers of sm_90 (``scripts/triton_counts.py``)."""
    if dtype == torch.float64:
        return Blocks(64, 32, 4, 2)
    if precision == "ieee":
        return Blocks(64, 32 if wide <= 32 else 16, 4, 2)
    return Blocks(128, 64, 8, 3 if wide <= 32 else 2)


class Product:
    """phi(distances) times vectors, with prepared distance factors; not differentiable.

    Args:
        part: coordinates with device and dtype of the vectors.
        precision: of the matrix products; "tf32x3" for float32 only.
        blocks: tiles; None for the defaults.

    Cost of a call with right (n2, c): n1 n2 (3 q + 6 + 3 c) multiply-adds on tensor cores and one
    exponential per pair in "tf32x3"; memory O((n1 + n2)(q + c)).
    """

    def __init__(
        self, part: RadialPart, precision: Precision, blocks: Blocks | None = None
    ) -> None:
        self.part, self.precision = part, precision
        self.shape = part.z1.shape[0], part.z2.shape[0]
        left, right = distance_factors(part.z1, part.z2, factor(part), precision)
        self.width = width(left.shape[1])
        self.blocks = blocks or product_blocks(left.dtype, precision, self.width)
        self.left = padded(left, self.blocks.rows, self.width)
        self.right = padded(right, self.blocks.columns, self.width)
        self.parameter = left.new_zeros(()) if part.shape is None else part.shape

    def __call__(self, vectors: Tensor) -> Tensor:
        """scale * phi(distances) @ vectors (n2, c): (n1, c)."""
        (n1, n2), count, blocks = self.shape, vectors.shape[1], self.blocks
        if n1 == 0 or n2 == 0 or count == 0:
            return vectors.new_zeros(n1, count)
        split, block = self.precision == "tf32x3", min(MAX_VECTORS, width(count))
        high, low, scale = scaled_halves(vectors, 2048.0) if split else (vectors, None, None)
        high = padded(high, blocks.columns, block)
        low = high if low is None else padded(low, blocks.columns, block)
        rows, stride = self.left.shape[0], high.shape[1]
        strips, tiles = rows // blocks.rows, self.right.shape[0] // blocks.columns
        splits = num_splits(blocks, strips * (stride // block), tiles, vectors)
        out = self.left.new_empty(splits, rows, stride)
        with torch.cuda.device_of(out):
            product_kernel[(strips, splits, stride // block)](
                *(self.left, self.right, high, low, self.parameter, out),
                *(rows, tiles, stride, -(-tiles // splits)),
                PROFILE=self.part.profile,
                SQUARE=self.part.square,
                HALVES=split,
                WIDTH=self.width,
                ROWS=blocks.rows,
                COLUMNS=blocks.columns,
                VECTORS=block,
                num_warps=blocks.warps,
                enable_fp_fusion=True,
                num_stages=blocks.stages,
            )
        found = out.sum(0)[:n1, :count] * self.part.scale
        return found if scale is None else found * scale
