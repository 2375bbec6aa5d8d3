"""Random numbers by address: Philox4x32-10 on torch tensors, and standard normals from it.

A counter-based generator has no state: entry (row, column) of stream ``seed`` is a function of
those three numbers alone. Frequency r of a basis of 10^7 functions is therefore the same on every
device, independent of which others are generated and in which order, and is never stored.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpx.backends.native import has_memory, native_library
from gpx.backends.triton import triton_normals
from gpx.linalg.memory import working_memory

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF
SOURCE = Path(__file__).with_name("philox.c")

MEMORY_DIVISOR = 4
"""A table of ``KnownRows`` may take ``working_memory`` divided by this."""
CHUNK_ENTRIES = 1 << 20
"""Entries of such a table that are generated at once."""


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> Tensor:
    """Ten rounds of Philox4x32: 128 random bits per counter.

    Args:
        counter: four int64 tensors that broadcast to one shape (...), words in [0, 2^32).
        key: two words in [0, 2^32).

    Returns:
        (4, ...) int64, words in [0, 2^32).

    Exactness: bit-identical on every device (integer arithmetic modulo 2^64 only); checked against
    the known-answer vectors of the reference implementation.
    Cost: about 140 elementwise operations per four words; no state.
    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    multiplied, kept = torch.stack((c0, c2)), torch.stack((c3, c1))
    shape = (2,) + (1,) * c0.ndim
    # tensors made while torch traces (export, fake tensors) hold no values and must not be cached
    made = _constants if type(c0) is Tensor else _constants.__wrapped__
    multiplier, *keys = (words.view(shape) for words in made(key, c0.device).unbind(0))
    for one in keys:
        # int64 products wrap modulo 2^64, so the low 64 bits of the 32 x 32 product are exact; bits
        # above the 32nd are masked at the end
        product = multiplied * multiplier
        high = (product >> 32).bitwise_xor_(kept).bitwise_xor_(one)
        multiplied, kept = high.bitwise_and_(MASK).flip(0), product
    kept = kept & MASK
    return torch.stack((multiplied[0], kept[1], multiplied[1], kept[0]))


def words_at(
    seed: int,
    stream: int,
    address: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
) -> Tensor:
    """Random words of a stream of a seed: (4, ...) int64, see ``philox4x32``.

    Args:
        seed: 0 <= seed < 2^64.
        stream: below 2^32; streams of one seed are independent of each other.
        address: int64 >= 0; second, third: below 2^32, zero where not given. They broadcast to one
            shape (...).
    """
    zero = torch.zeros_like(address)
    second, third = (zero if part is None else part for part in (second, third))
    key = seed & MASK, ((seed >> 32) & MASK) ^ stream
    return philox4x32((address & MASK, address >> 32, second, third), key)


@lru_cache(maxsize=64)
def _constants(key: tuple[int, int], device: torch.device) -> Tensor:
    """Multipliers (2,) of both products, then the key (2,) of each round: (1 + ROUNDS, 2)."""
    rounds = [
        [(word + i * weyl) & MASK for word, weyl in zip(key[::-1], WEYL[::-1], strict=True)]
        for i in range(ROUNDS)
    ]
    return torch.tensor([list(MULTIPLIERS), *rounds], device=device)


@cache
def _compiled() -> Callable[..., None] | None:
    library = native_library(SOURCE)
    if library is None:
        return None
    run = library.philox_uniforms
    word, array = ctypes.c_uint32, ctypes.c_void_p
    run.argtypes = (ctypes.c_long, ctypes.c_long, array, word, word, array)
    run.restype = None
    found: Callable[..., None] = run
    return found


def _uniforms(seed: int, rows: Tensor, quads: int) -> Tensor:
    """(word + 1/2) / 2^32 of rows (r,) and column quads: (4, r, quads) float64.

    Compiled on a CPU where there is a compiler: the same numbers, eight times faster.
    """
    run = _compiled() if has_memory(rows) and quads else None
    if run is not None:
        rows = rows.to(torch.int64).contiguous()
        found = torch.empty(4, rows.shape[0], quads, dtype=torch.float64)
        key = seed & MASK, (seed >> 32) & MASK
        run(rows.shape[0], quads, rows.data_ptr(), *key, found.data_ptr())
        return found
    words = words_at(seed, 0, rows[:, None], torch.arange(quads, device=rows.device))
    return (words.double() + 0.5) * 2.0**-32


def standard_normals(
    seed: int, rows: Tensor, num_columns: int, *, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Independent standard normals addressed by (seed, row, column).

    Args:
        seed: stream, 0 <= seed < 2^64.
        rows (r,): int64 row addresses >= 0, any order, repeats allowed; their device is used.
        num_columns: columns 0 .. num_columns - 1 are returned; entries do not depend on it.
        dtype: of the result; the transform itself runs in float64.

    Returns:
        (r, num_columns).

    Exactness: the 32-bit uniforms are identical everywhere; Box-Muller in float64 may differ in
    the last bit between devices (their log, cos and sin do), on one device it never does. |z| is
    at most 6.8: uniforms have 32 bits.
    Cost: O(r num_columns) time and memory; on a CUDA device with Triton one launch.
    Source: Box and Muller 1958; features from a saved seed as in Evans and Nair 2020 (QSGP).
    """
    if triton_normals(rows):
        from gpx.backends.triton import normals as compiled

        return compiled.standard_normals(seed, rows, num_columns, dtype)
    quads = -(-num_columns // 4)
    uniforms = _uniforms(seed, rows, quads)
    radius = torch.sqrt(-2.0 * torch.log(uniforms[0::2]))  # (2, r, quads)
    angle = (2.0 * math.pi) * uniforms[1::2]
    normals = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    # (2, r, quads, 2) -> (r, quads, 2, 2): column 4 q + 2 p + t
    ordered = normals.permute(1, 2, 0, 3).reshape(rows.shape[0], 4 * quads)
    return ordered[:, :num_columns].to(dtype)


class KnownRows:
    """Tables of random rows, generated at the first use, for GPUs, where a look-up is cheaper.

    Copies share the tables; they are not saved.
    """

    def __init__(self) -> None:
        self.tables: dict[tuple[tuple[int, int], torch.dtype, torch.device], Tensor] = {}

    def of(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        make: Callable[[Tensor], Tensor],
    ) -> Tensor | None:
        """The table of ``shape`` (r, q); None where it does not fit.

        Args:
            make: from addresses (k,) below r to their rows (k, q).
        """
        count, width = shape
        if MEMORY_DIVISOR * count * width * dtype.itemsize > working_memory(device):
            return None
        kind = shape, dtype, device
        if kind not in self.tables:
            with torch.inference_mode(False), torch.no_grad():
                pieces = torch.arange(count, device=device).split(max(1, CHUNK_ENTRIES // width))
                self.tables[kind] = torch.cat([make(piece) for piece in pieces])
        return self.tables[kind]

    def __deepcopy__(self, memo: dict[int, Any]) -> KnownRows:
        return self

    def __reduce__(self) -> tuple[type[KnownRows], tuple[()]]:
        return KnownRows, ()
