"""Products with random Fourier features, which are evaluated and used in registers (Triton).

Two passes serve everything that a model asks of features cos and sin of the angles ``x . w_r``:

- ``fourier_product``: sum_r weights[0, r] cos + weights[1, r] sin at every row of x. With weights
  times frequencies it is also the derivative with respect to x.
- ``fourier_moments``: sums over the rows of directions times cosines, and times sines, for every
  frequency; the transposed product. With directions u and u x they hold the derivatives with
  respect to weights and to frequencies.

Frequencies are given, or made by the program that needs them from a seed (``MadeFrequencies``):
then nothing of their size is stored. Float32 products are what ``trainer.matmul`` asks for
(``gpx.linalg.matmul``), unless a caller says otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.backends.triton.blocks import Blocks, shares
from gpx.backends.triton.factors import Precision, padded, scaled_halves, width
from gpx.backends.triton.fourier_kernels import fourier_moments_kernel, fourier_product_kernel
from gpx.backends.triton.frequencies import MadeFrequencies, Source, parts
from gpx.linalg.matmul import kernel_precision

WIDEST = 32
"""Columns of weights or directions that one program multiplies at most."""


def plain_product(x: Tensor, frequencies: Tensor, weights: Tensor) -> Tensor:
    """The twin of ``fourier_product`` in torch."""
    angles = x @ frequencies.T
    return angles.cos() @ weights[0] + angles.sin() @ weights[1]


def plain_moments(x: Tensor, frequencies: Tensor, directions: Tensor) -> Tensor:
    """The twin of ``fourier_moments`` in torch."""
    angles = frequencies @ x.T
    return torch.stack((angles.cos() @ directions, angles.sin() @ directions))


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
    precision: Precision | None = None,
    blocks: Blocks | None = None,
) -> Tensor:
    """sum_r weights[0, r] cos(x . w_r) + weights[1, r] sin(x . w_r): (n, k); not differentiable.

    Args:
        x (n, d), frequencies (R, d), weights (2, R, k): of one dtype and device.
        precision: of the matrix products in float32, None: what the run asked for; float64 is
            always computed in float64. Frequencies to be made are made inside for one column of
            weights; for several they are made once and stored, which then takes fewer
            instructions.
        blocks: rows and frequencies of a tile; None for what suits the device.

    Cost: n R pairs of cosine and sine, O(n R (d + k)) multiply-adds; memory O((n + R)(d + k)).
    """
    (n, d), (count, _), k = x.shape, frequencies.shape, weights.shape[2]
    if n == 0 or count == 0 or k == 0:
        return x.new_zeros(n, k)
    precision, single = _precision(x, precision), k == 1
    if isinstance(frequencies, MadeFrequencies) and not single:
        frequencies = frequencies.stored()
    made = isinstance(frequencies, MadeFrequencies)
    blocks = blocks or fourier_blocks(x.dtype, precision, width(d), made=made)
    split = precision == "tf32x3"
    source = Source.of(x, frequencies, blocks.columns, split)
    vectors = 16 if single else min(WIDEST, width(k))
    high, low, scale = weights, weights, None
    if split and not single:
        high, low, scale = scaled_halves(weights.reshape(2 * count, k), 1.0)
        high, low = high.view(2, count, k), low.view(2, count, k)
    fill = (0, 0 if single else -k % vectors, 0, -count % blocks.columns)
    high, low = (torch.nn.functional.pad(v, fill).contiguous() for v in (high, low))
    tiles, stride = high.shape[1] // blocks.columns, high.shape[2]
    rows = -(-n // blocks.rows) * blocks.rows
    out = _run(
        *(fourier_product_kernel, x, source, blocks, split, blocks.rows, (high, low)),
        *((rows, tiles, stride), (rows, stride), rows // blocks.rows),
        *(1 if single else stride // vectors, vectors),
        SINGLE=single,
        ROWS=blocks.rows,
        FREQUENCIES=blocks.columns,
    )
    found = out.sum(0)[:n, :k]
    return found if scale is None else found * scale


def fourier_moments(
    x: Tensor,
    frequencies: Tensor | MadeFrequencies,
    directions: Tensor,
    precision: Precision | None = None,
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
    precision = _precision(x, precision)
    blocks = blocks or fourier_blocks(x.dtype, precision, width(d))
    split = precision == "tf32x3"
    source = Source.of(x, frequencies, blocks.rows, split)
    vectors = min(WIDEST, width(k))
    high, low, scale = scaled_halves(directions, 1.0) if split else (directions, directions, None)
    high, low = (padded(v, blocks.columns, vectors) for v in (high, low))
    tiles, stride = high.shape[0] // blocks.columns, high.shape[1]
    strips = -(-count // blocks.rows)
    total = strips * blocks.rows
    out = _run(
        *(fourier_moments_kernel, x, source, blocks, split, blocks.columns, (high, low)),
        *((total, tiles, stride), (2, total, stride), strips, stride // vectors, vectors),
        ROWS=blocks.columns,
        FREQUENCIES=blocks.rows,
    )
    found = out.sum(0)[:, :count, :k]
    return found if scale is None else found * scale


def _precision(x: Tensor, asked: Precision | None) -> Precision:
    if x.dtype == torch.float64:
        return "ieee"
    return kernel_precision() if asked is None else asked


def _run(
    kernel: Any,
    x: Tensor,
    source: Source,
    blocks: Blocks,
    split: bool,
    block_rows: int,
    columns: tuple[Tensor, Tensor],
    sizes: tuple[int, int, int],
    shape: tuple[int, ...],
    strips: int,
    across: int,
    vectors: int,
    **constants: Any,
) -> Tensor:
    """What a pass leaves for every share of its loop: (shares, *shape).

    Args:
        source: frequencies.
        split: whether float32 factors are taken in halves.
        block_rows: of x, to a tile.
        columns: high and low parts of weights or directions.
        sizes: of the output's rows, of tiles of the loop, and columns of the output.
        strips, across: programs over rows or frequencies, and over blocks of ``vectors`` columns.
        constants: of the kernel, beside those that both have.
    """
    inputs = [padded(part, block_rows, source.wide) for part in parts(x, split)]
    shared = shares(blocks, strips * across, sizes[1], x)
    out = x.new_empty(shared, *shape)
    with torch.cuda.device_of(x):
        kernel[(strips, shared, across)](
            *(*inputs, *source.arrays, source.key, *columns, out),
            *(*source.sizes, *sizes, -(-sizes[1] // shared)),
            MADE=source.made,
            FREEDOM=source.freedom,
            HALVES=split,
            WIDTH=source.wide,
            VECTORS=vectors,
            num_warps=blocks.warps,
            enable_fp_fusion=True,
            num_stages=blocks.stages,
            **constants,
        )
    return out
