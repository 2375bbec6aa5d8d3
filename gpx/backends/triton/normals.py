"""Triton: counter-based standard normals, equal to those of ``gpx.bases.counter_random``.

The random words are those of Philox4x32-10, bit for bit. Box-Muller runs in float64; its cosine and
sine are polynomials of an angle whose reduction is exact, since it is a word over 2^32 of a turn.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.random import philox_impl

from gpx.backends.triton.waves import cosine_sine_of_turns

ROWS = 32
"""Rows of one program."""


@triton.jit
def _normal_pair(first, second):
    """Two normals from two words."""
    radius = tl.sqrt(-2.0 * tl.log((first.to(tl.float64) + 0.5) * 2.0**-32))
    cosine, sine = cosine_sine_of_turns((second.to(tl.float64) + 0.5) * 2.0**-32)
    return radius * cosine, radius * sine


@triton.jit
def normals_tile(rows, key, QUADS: tl.constexpr):
    """Standard normals of addresses ``rows`` (R,) int64, columns 0 .. 4 QUADS - 1: float64.

    key: seed, int64.
    """
    quad = tl.arange(0, QUADS)[None, :]
    none = tl.zeros_like(quad) + tl.zeros_like(rows)[:, None].to(tl.int32)
    low = rows.to(tl.uint32)[:, None] + none.to(tl.uint32)
    high = (rows >> 32).to(tl.uint32)[:, None] + none.to(tl.uint32)
    wide = none.to(tl.int64) + key  # Triton passes a small seed as a narrower integer
    column = (quad + none).to(tl.uint32)
    a, b, c, d = philox_impl(
        low, high, column, none.to(tl.uint32), wide.to(tl.uint32), (wide >> 32).to(tl.uint32)
    )
    first, second = _normal_pair(a, b)
    third, fourth = _normal_pair(c, d)
    # (R, QUADS, which of a pair, which pair) -> columns 4 q + 2 pair + which
    both = tl.join(tl.join(first, second), tl.join(third, fourth))
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), (rows.shape[0], 4 * QUADS))


@triton.jit(do_not_specialize=["key"])
def normals_kernel(addresses, out, key, total, columns, QUADS: tl.constexpr, BLOCK: tl.constexpr):
    """out (total, columns) in its dtype. Grid: blocks of rows."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, 4 * QUADS)
    address = tl.load(addresses + row, mask=row < total, other=0)
    found = normals_tile(address, key, QUADS)
    kept = (row < total)[:, None] & (column < columns)[None, :]
    place = out + row[:, None] * columns + column[None, :]
    tl.store(place, found.to(out.dtype.element_ty), mask=kept)


def signed(seed: int) -> int:
    """A seed in [0, 2^64) as the int64 of the same bits."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def standard_normals(seed: int, rows: Tensor, num_columns: int, dtype: torch.dtype) -> Tensor:
    """Normals (r, num_columns) of addresses rows (r,), as in ``gpx.bases.counter_random``.

    Cost: one launch; 10 rounds of Philox for every four normals, memory the result.
    """
    out = torch.empty(rows.shape[0], num_columns, dtype=dtype, device=rows.device)
    if not out.numel():
        return out
    quads = 1 << (-(-num_columns // 4) - 1).bit_length()
    block = max(1, ROWS // quads)
    with torch.cuda.device_of(out):
        normals_kernel[(-(-rows.shape[0] // block),)](
            rows.to(torch.int64).contiguous(),
            out,
            signed(seed),
            rows.shape[0],
            num_columns,
            QUADS=quads,
            BLOCK=block,
        )
    return out
