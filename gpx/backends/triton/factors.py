"""Thin matrices that the Triton kernels multiply on tensor cores, split into halves for tf32.

Tensor cores read eleven bits of each float32 factor ("tf32"). The sum of two such halves has 22
bits, and three products of halves (the fourth is below float32 rounding) are as accurate as a
float32 product: "tf32x3". Tensor cores truncate a sum after every eight columns of the factors, so
the columns are in an order in which few of these sums are large. Thin matrices are split here once;
only the kernel matrix itself is split inside the kernels. "ieee" means products in the dtype
itself.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Precision = Literal["tf32x3", "ieee"]

_KEPT = -(1 << 13)  # the bits of a float32 that tf32 keeps


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """float32 values as high and low, eleven bits each: their sum is accurate to 2^-22."""
    high = _rounded(values)
    return high, _rounded(values - high)


def _rounded(values: Tensor) -> Tensor:
    """Rounded to eleven bits; infinities and NaN are kept."""
    bits = values.contiguous().view(torch.int32)
    rounded = ((bits + (1 << 12)) & _KEPT).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)


def packed(values: Tensor, precision: Precision, *, left: bool) -> Tensor:
    """Factor (n, k) or (n, 3 k) such that left_i . right_j is the product of the original rows.

    The last k columns are those of the large halves of both.
    """
    if precision == "ieee":
        return values
    high, low = halves(values)
    return torch.cat((high, low, high) if left else (low, high, high), dim=1)


def distance_factors(
    z1: Tensor, z2: Tensor, factor: float | Tensor, precision: Precision
) -> tuple[Tensor, Tensor]:
    """left (n1, k) and right (n2, k): left_i . right_j is ``factor`` times |z1_i - z2_j|^2.

    Norms are shrunk by a few times the rounding of the product, so that coincident rows get a
    distance of at most zero (see ``gpx.kernels.fused``); with "tf32x3" they are exact sums of three
    eleven-bit parts. The products of coordinates come between the norms: sums stay below one norm.
    """
    shrink = 1.0 - 4.0 * torch.finfo(z1.dtype).eps
    norms = [z.double().square().sum(1, keepdim=True) * shrink * factor for z in (z1, z2)]
    first, second = ([n.to(z1.dtype)] for n in norms)
    if precision == "tf32x3":
        first, second = (_thirds(n) for n in norms)
    a = packed(z1 * factor * -2.0, precision, left=True)
    b = packed(z2, precision, left=False)
    ones1, ones2 = torch.ones_like(first[0]), torch.ones_like(second[0])
    small = a.shape[1] - z1.shape[1]  # number of columns with a small half
    return (
        torch.cat([a[:, :small], *first, a[:, small:], *[ones1] * len(second)], dim=1),
        torch.cat([b[:, :small], *[ones2] * len(first), b[:, small:], *second], dim=1),
    )


def distance_width(coordinates: int, precision: Precision) -> int:
    """Padded width of the distance factors for so many coordinates."""
    return width((coordinates + 2) * (3 if precision == "tf32x3" else 1))


def _thirds(values: Tensor) -> list[Tensor]:
    """float64 values as three float32 of eleven bits each."""
    found = []
    for _ in range(3):
        high = _rounded(values.float())
        found.append(high)
        values = values - high
    return found


def padded(values: Tensor, rows: int, columns: int) -> Tensor:
    """Padded with zeros to multiples of ``rows`` and ``columns``; contiguous."""
    n, k = values.shape
    return torch.nn.functional.pad(values, (0, -k % columns, 0, -n % rows)).contiguous()


def width(columns: int) -> int:
    """Tile width for so many columns: the next power of two, at least 16."""
    return max(16, 1 << (columns - 1).bit_length())


def scaled_halves(vectors: Tensor, lift: float) -> tuple[Tensor, Tensor, Tensor]:
    """float32 vectors (n, c) as float16 high and low, and a scale (c,) that fits float16.

    ``vectors = scale * (high + low / lift)`` to 22 bits, and to 2^-38 / lift of a column's largest
    entry (or of 2^-100): a lift of 2048 keeps as many bits of small entries.
    """
    largest = vectors.abs().amax(0) if vectors.shape[0] else vectors.new_zeros(vectors.shape[1])
    scale = largest.clamp(min=2.0**-100) * 2.0**-14  # the clamp is for zero and subnormal columns
    scaled = vectors / scale
    high = scaled.half()
    return high, ((scaled - high) * lift).half(), scale
