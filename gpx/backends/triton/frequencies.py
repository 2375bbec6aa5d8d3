"""Triton: frequencies of random Fourier features, given or generated from a seed in the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpx.backends.triton.factors import halves, padded, width
from gpx.backends.triton.normals import normals_tile, signed, standard_normals

HALF_A_BIT = tl.constexpr(1 << 12)
KEPT = tl.constexpr(-(1 << 13))


@dataclass(frozen=True)
class SeededFrequencies:
    """Frequencies (r, d) generated from a seed: normals over lengthscales, or Student t for Matern.

    Attributes:
        seed: of the normals (``gpx.bases.counter_random``).
        addresses (r,): rows of the stream, int64.
        inverse_lengthscales (d,): their device is used.
        freedom: degrees of freedom 2 nu of Student t, as extra normals for its denominator; 0 for
            RBF.
    """

    seed: int
    addresses: Tensor
    inverse_lengthscales: Tensor
    freedom: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(r, d)."""
        return self.addresses.shape[0], self.inverse_lengthscales.shape[0]

    def materialise(self) -> Tensor:
        """The frequencies (r, d) as an array, equal to those generated in the kernels."""
        inverse, inputs = self.inverse_lengthscales, self.shape[1]
        normals = standard_normals(self.seed, self.addresses, inputs + self.freedom, inverse.dtype)
        if self.freedom:
            rest = normals[:, inputs:].square().sum(1, keepdim=True)
            normals = normals[:, :inputs] * (self.freedom / rest).sqrt()
        return normals * inverse


@dataclass(frozen=True)
class Source:
    """The frequencies of a program, in whole blocks.

    Attributes:
        seeded: whether the program generates them.
        arrays: high parts, low parts, addresses, inverse lengthscales; some of them unused.
        key: the seed as a signed integer.
        sizes: numbers of frequencies and of inputs.
        freedom: of ``SeededFrequencies``.
        wide: columns to which inputs are padded.
    """

    seeded: bool
    arrays: tuple[Tensor, Tensor, Tensor, Tensor]
    key: int
    sizes: tuple[int, int]
    freedom: int
    wide: int

    @classmethod
    def create(
        cls, x: Tensor, frequencies: Tensor | SeededFrequencies, block: int, split: bool
    ) -> Source:
        """For inputs x (n, d), in blocks of ``block`` frequencies, in halves with ``split``."""
        count, inputs = frequencies.shape
        if isinstance(frequencies, SeededFrequencies):
            wide = width(inputs + frequencies.freedom)
            inverse = frequencies.inverse_lengthscales.contiguous()
            arrays = x, x, frequencies.addresses.to(torch.int64).contiguous(), inverse
            key, freedom = signed(frequencies.seed), frequencies.freedom
            return cls(True, arrays, key, (count, inputs), freedom, wide)
        wide = width(inputs)
        high, low = (padded(part, block, wide) for part in parts(frequencies, split))
        return cls(False, (high, low, x, x), 0, (count, inputs), 0, wide)


def parts(values: Tensor, split: bool) -> tuple[Tensor, Tensor]:
    """High and low halves of values with ``split``, otherwise the values twice."""
    if not split:
        return values, values
    high, low = halves(values)
    return high, low


@triton.jit
def tf32(values):
    """Rounded to the eleven bits of a float32 that tensor cores read."""
    bits = (values.to(tl.int32, bitcast=True) + HALF_A_BIT) & KEPT
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def frequencies_tile(
    high,
    low,
    addresses,
    inverse,
    key,
    number_of,
    inputs,
    some,
    SEEDED: tl.constexpr,
    FREEDOM: tl.constexpr,
    HALVES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Frequencies ``some`` (F,) as (F, WIDTH) high and low parts, zeros beyond the inputs."""
    column = tl.arange(0, WIDTH)[None, :]
    if SEEDED:
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
            first = tf32(second)
            second -= first
    else:
        place = some.to(tl.int64)[:, None] * WIDTH + column
        first = tl.load(high + place)
        second = first
        if HALVES:
            second = tl.load(low + place)
    return first, second
