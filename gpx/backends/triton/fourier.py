"""Products with random Fourier features, which are evaluated and used in registers (Triton).

Two passes cover all uses of the features cos and sin of the angles ``x . w_r``:

- ``fourier_product``: sum_r weights[0, r] cos + weights[1, r] sin at every row of x. With weights
  times frequencies it is also the derivative with respect to x.
- ``fourier_moments``: sums over the rows of directions times cosines, and times sines, for every
  frequency; the transposed product. With directions u and u x it gives the derivatives with
  respect to weights and to frequencies.

Frequencies are given as an array or generated inside the program from a seed
(``SeededFrequencies``), so that they are never stored. Float32 products have the precision of
``trainer.matmul`` (``gpx.linalg.matmul``) unless a caller chooses another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.backends.triton.blocks import Blocks, num_splits
from gpx.backends.triton.factors import Precision, padded, scaled_halves, width
from gpx.backends.triton.fourier_kernels import fourier_moments_kernel, fourier_product_kernel
from gpx.backends.triton.frequencies import SeededFrequencies, Source, parts
from gpx.linalg.matmul import kernel_precision

MAX_VECTORS = 32
"""Largest number of columns of weights or directions per program."""


def plain_product(x: Tensor, frequencies: Tensor, weights: Tensor) -> Tensor:
    """``fourier_product`` in torch."""
    angles = x @ frequencies.T
    return angles.cos() @ weights[0] + angles.sin() @ weights[1]


def plain_moments(x: Tensor, frequencies: Tensor, directions: Tensor) -> Tensor:
    """``fourier_moments`` in torch."""
    angles = frequencies @ x.T
    return torch.stack((angles.cos() @ directions, angles.sin() @ directions))


def fourier_blocks(
    dtype: torch.dtype, precision: Precision, wide: int, *, seeded: bool = False
) -> Blocks:
    """Rows and frequencies per tile that fit the registers of sm_90 (``scripts/triton_counts.py``).

    The first side is that of the program, the second that of its loop. With seeded frequencies,
    which are generated again for every strip of rows, strips are higher.
    """
    if dtype == torch.float64:
        return Blocks(128 if seeded else 64, 16, 4, 2)
    if precision == "ieee":
        return Blocks(64, 32, 4, 2)
    if seeded:
        return Blocks(256, 32, 4, 2)
    return Blocks(128, 32 if wide <= 32 else 16, 4, 2)


def fourier_product(
    x: Tensor,
    frequencies: Tensor | SeededFrequencies,
    weights: Tensor,
    precision: Precision | None = None,
    blocks: Blocks | None = None,
) -> Tensor:
    """sum_r weights[0, r] cos(x . w_r) + weights[1, r] sin(x . w_r): (n, k); not differentiable.

    Args:
        x (n, d), frequencies (R, d), weights (2, R, k): of one dtype and device.
        precision: of the matrix products in float32; None for that of the run. float64 is always
            computed in float64. Seeded frequencies are generated inside the program for one column
            of weights; for several they are stored once, which takes fewer instructions.
        blocks: rows and frequencies of a tile; None for the defaults.

    Cost: n R pairs of cosine and sine, O(n R (d + k)) multiply-adds; memory O((n + R)(d + k)).
    """
    (n, d), (count, _), k = x.shape, frequencies.shape, weights.shape[2]
    if n == 0 or count == 0 or k == 0:
        return x.new_zeros(n, k)
    precision, single = _precision(x, precision), k == 1
    if isinstance(frequencies, SeededFrequencies) and not single:
        frequencies = frequencies.materialise()
    seeded = isinstance(frequencies, SeededFrequencies)
    blocks = blocks or fourier_blocks(x.dtype, precision, width(d), seeded=seeded)
    split = precision == "tf32x3"
    source = Source.create(x, frequencies, blocks.columns, split)
    vectors = 16 if single else min(MAX_VECTORS, width(k))
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
    frequencies: Tensor | SeededFrequencies,
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
    source = Source.create(x, frequencies, blocks.rows, split)
    vectors = min(MAX_VECTORS, width(k))
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


def _precision(x: Tensor, requested: Precision | None) -> Precision:
    if x.dtype == torch.float64:
        return "ieee"
    return kernel_precision() if requested is None else requested


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
    """The partial result of every split of the loop: (splits, *shape).

    Args:
        source: frequencies.
        split: whether float32 factors are split into halves.
        block_rows: rows of x per tile.
        columns: high and low parts of weights or directions.
        sizes: rows of the output, tiles of the loop, and columns of the output.
        strips, across: programs over rows or frequencies, and over blocks of ``vectors`` columns.
        constants: constants of the kernel besides those that both have.
    """
    inputs = [padded(part, block_rows, source.wide) for part in parts(x, split)]
    splits = num_splits(blocks, strips * across, sizes[1], x)
    out = x.new_empty(splits, *shape)
    with torch.cuda.device_of(x):
        kernel[(strips, splits, across)](
            *(*inputs, *source.arrays, source.key, *columns, out),
            *(*source.sizes, *sizes, -(-sizes[1] // splits)),
            SEEDED=source.seeded,
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
