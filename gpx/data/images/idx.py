"""Reader of IDX files, the format of MNIST: big-endian sizes, followed by the numbers."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpx.errors import DataError

_BYTE = 0x08
"""Type code of unsigned bytes."""


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An array of unsigned bytes with ``dimensions`` axes, from a file that may be gzipped.

    Raises:
        DataError: not such an IDX file, or its length does not match the header.
    """
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is a damaged gzip file ({error}); fetch it again") from None
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes([0, 0, _BYTE, dimensions]):
        raise DataError(
            f"{path} is not an IDX file of bytes with {dimensions} axes: it begins with "
            f"{raw[:4].hex() or 'nothing'}, expected {bytes([0, 0, _BYTE, dimensions]).hex()}"
        )
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", dimensions, offset=4))
    expected = start + math.prod(shape)
    if len(raw) != expected:
        raise DataError(
            f"{path} holds {len(raw)} bytes and its header asks for {expected} "
            f"({' x '.join(map(str, shape))}); fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
